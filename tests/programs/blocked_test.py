"""Programs that are blocked on connections on which nothing happens take nothing of a processor, and the
daemons wake for their timers alone. All in counts, which a busy machine does not raise.

usage: blocked_test.py STACKD CTL MERCURY_RUN [unittest arguments]
"""
import os
import time

from two_hosts import BOTH, DEBIAN_PYTHON, ProgramsTest, main, wait_until  # noqa: E402
import usage  # noqa: E402

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocked_program.py")
CALLS = ("poll", "epoll", "select", "recv")
IDLE_S = 5
# Of a daemon with one engine: each of its two threads looks once a second whether it has missed something. With
# a session its engine ticks each 10 ms (kTickNs), and now and then a side asks the other for a sign of life.
MOST_WAKEUPS_PER_S = {False: 5, True: 110}
COUNTS = {"wake-ups": usage.wakeups, "interruptions": usage.interruptions, "ticks": usage.cpu_s}


def counts(process):
    return {name: count(process) for name, count in COUNTS.items()}


class Blocked(ProgramsTest):
    def pairs(self, mercury):
        """Two programs for each call, all blocked in it."""
        pairs = []
        for port, how in enumerate(CALLS, 6001 if mercury else 6101):
            before = self.hosts.sockets("b")["listeners"]
            end = [DEBIAN_PYTHON, PROGRAM, "listen", self.hosts.address("b"), port, how]
            server = self.hosts.popen("b", end, mercury)
            self.assertEqual(self.hosts.line(server), "listens")
            self.assertTrue(not mercury or wait_until(lambda: self.hosts.sockets("b")["listeners"] > before))
            client = self.hosts.popen("a", [DEBIAN_PYTHON, PROGRAM, "connect", *end[3:]], mercury)
            for one in (server, client):
                self.assertEqual(self.hosts.line(one), "connected", self.hosts.words(one))
            pairs.append((server, client))
        self.assertEqual([self.hosts.sockets(name)["connections"] for name in "ab"], [len(CALLS) * mercury] * 2)
        for pair in pairs:
            for one in pair:  # it has said its last word, so what it waits for is the other end
                self.assertTrue(wait_until(lambda one=one: usage.sleeps(one)), one.how)
        return pairs

    def test_programs_do_nothing_and_daemons_wake_for_timers_alone(self):
        for mercury in BOTH:
            pairs, most = self.pairs(mercury), MOST_WAKEUPS_PER_S[mercury]
            programs = [one for pair in pairs for one in pair]
            daemons = list(self.hosts.daemons.values())
            # What setting up has left to do (acknowledgements, probes of the path) is done when a second
            # brings no more than timers do.
            self.assertTrue(wait_until(lambda: self.wakeups_in(daemons, 1) <= most), "daemons do not come to rest")
            before, began = list(map(counts, programs)), time.monotonic()
            woken = self.wakeups_in(daemons, IDLE_S)
            for one, then in zip(programs, before):
                self.assertEqual(counts(one), then, one.how)
            passed_s = time.monotonic() - began
            print(f"{'Mercury' if mercury else 'kernel'}: daemons wake {woken / passed_s:.1f} times a second at most", flush=True)
            self.assertLessEqual(woken, most * (passed_s + 1))
            for server, client in pairs:  # it was blocked, not stuck
                server.kill()
                self.assertEqual(self.hosts.output(client).split()[-1], "closed")
            self.hosts.end_programs()
            self.assertTrue(wait_until(self.hosts.is_idle))

    @staticmethod
    def wakeups_in(daemons, seconds):
        """Of that which wakes most."""
        before = list(map(usage.wakeups, daemons))
        time.sleep(seconds)
        return max(usage.wakeups(daemon) - then for daemon, then in zip(daemons, before))


if __name__ == "__main__":
    main()
