"""A hostile program and an innocent job on the same daemons: real ones over io_uring on loopback, and
real programs. No root needed.

usage: hostile_program_test.py STACKD CTL LIBMERCURYSTACK [--seed S] [--measure SECONDS [--row NAME] [--record FILE]] [unittest arguments]

With --measure it tests nothing: it prints, for each way of being hostile, how fast the innocent job is
beside it, in proportion to its speed right before and after beside something harmless that takes as much: a
program that counts; for the one that fills memory, one that fills its own; for the one that punches, one that exchanges the same tensors; for the one that asks for a weight, one
that does not; for the flood, whose
operations are as good as others while they are few, jobs that exchange without end, one that waits for both of
its tensors and one that, like the flood, has each exchanged again as soon as it is there; for the one that is
stopped, nothing. All are at idle priority, so that they take
caches and the other half of a core from the innocent, and no time; in the last row, where the flood and its
neighbour are programs like others, time as well.
"""
import contextlib
import errno
import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hostile_program  # noqa: E402
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402
from neighbours import InnocentJob, arguments, make_idle, measured  # noqa: E402
from program import environment  # noqa: E402

OPTIONS, REST = arguments()
PATIENCE_S = 300  # a busy machine may stop everything for minutes
LIVES = 3  # of each kind but the ones that die
DEATHS = 14
JOB_MBIT = 20  # that a job may send from there, where it has a rate
LINK = "50Mbps"  # of the hostile program's host, where its job and the innocent one share it
MEMORY = "1GiB"  # that all programs of the hostile program's host may share, where it shares all it can: most of it, in pieces
PIECES = range(8, (1 << 30) // hostile_program.SHARED_BYTES)
ROUND_BYTES = 4 * InnocentJob.NUMEL  # that a worker of the innocent job sends
PAIRS = 21  # that --measure takes each median of
# Of attach_previous_version_test.cc.
JOB_OPEN = bytes.fromhex(
    "b26a636c69656e745f6a6f62036d64657465726d696e6973746963f4646e616d6565747261696e6b70617469656e63655f6d7318fa6670"
    "6f6c6963796270336671756f72756d016472616e6b016972656a6f696e5f6d731913886a72656e64657a766f7573826d31302e302e302e"
    "313a373437306e5b666430303a3a325d3a3734373164726f6c650066736563726574636b65796373657104677365727665727301707374"
    "616c6c5f74696d656f75745f6d731a001b77406a74696d656f75745f6d731903e86474797065686a6f625f6f70656e6677656967687404"
    "67776f726b65727302")


class Hostile:
    def __init__(self, daemon, rendezvous, mode, seed):
        self.process = subprocess.Popen(
            [sys.executable, hostile_program.__file__, OPTIONS.library, daemon.socket, rendezvous, mode, str(seed)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def says(self):
        return self.process.stdout.readline().strip()

    def wait_until_ready(self):
        return any(line.strip() == "ready" for line in iter(self.process.stdout.readline, ""))

    def state(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Cluster:
    """Two workers' hosts and a server's, and the innocent job on them; of the hostile program's host, `rate` is its link's,
    `memory` what all programs may share, and `job_rate` what each job may send."""

    def __init__(self, folder, rate="0bps", memory="0", job_rate="0bps"):
        self.daemons = {}
        for name in ("server", "left", "right"):
            self.address = some_address()
            limits = {"MERCURY_PORT_RATE": rate, "MERCURY_ATTACH_TOTAL_MEMORY": memory, "MERCURY_JOBS_RATE": job_rate} if name == "left" else {}
            with unittest.mock.patch.dict(os.environ, limits):
                self.daemons[name] = Daemon(OPTIONS.stackd, OPTIONS.ctl, folder, config(folder, self.address, name=name))
            if name == "server":
                self.rendezvous = f"{self.address}:{UDP_PORT}"
        self.innocent = InnocentJob(OPTIONS, [self.daemons[host].socket for host in ("left", "right")], self.rendezvous)

    def go(self, rounds):
        self.innocent.go(rounds)

    def holds(self):
        return {name: daemon.holds() for name, daemon in self.daemons.items()}

    def close(self):
        self.innocent.kill()
        for daemon in self.daemons.values():
            daemon.stop(signal.SIGKILL)


class HostileProgramTest(unittest.TestCase):
    def setUp(self):
        self.start()

    def start(self, **how):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.cluster = Cluster(folder.name, **how)
        self.addCleanup(self.cluster.close)
        self.random = random.Random(OPTIONS.seed)
        self.cluster.go(10)
        self.before = self.at_rest()

    def at_rest(self):
        """Of the daemons, once sessions are open and all is sent and acknowledged: the innocent job lies still."""
        def quiet():
            self.now = self.cluster.holds()
            return not any(engine[gauge] for held in self.now.values() for engine in held["engines"]
                           for gauge in ("handshakes", "sent_blocks", "queued_ranges", "packet_buffers"))
        self.wait_for(quiet, lambda: self.now)
        return self.now

    def wait_for(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"seed {OPTIONS.seed}: {what()}")
            time.sleep(0.005)

    def hostile(self, mode):
        hostile = Hostile(self.cluster.daemons["left"], self.cluster.rendezvous, mode, self.random.randrange(1 << 32))
        self.addCleanup(hostile.kill)
        return hostile

    def beside(self, mode, lives, until=lambda hostile: None):
        """Each time until it has done its worst, and the innocent job goes on during it and after."""
        for _ in range(lives):
            hostile = self.hostile(mode)
            self.assertTrue(hostile.wait_until_ready())
            self.cluster.go(10)
            until(hostile)
            self.cluster.go(20)
            hostile.kill()
            self.cluster.go(5)
        self.nothing_is_left()

    def nothing_is_left(self):
        def as_before():
            self.now = self.cluster.holds()
            return self.now == self.before
        self.wait_for(as_before, lambda: f"{self.now}, before {self.before}")

    def counter(self, name):
        return self.cluster.daemons["left"].counters()[name]

    def grows(self, name, by=1):
        before = self.counter(name)
        return lambda hostile: self.wait_for(lambda: self.counter(name) >= before + by, lambda: f"{name} does not grow")

    def test_one_that_scribbles_over_what_it_shares(self):
        for _ in range(LIVES):
            self.beside("scribble", 1, self.grows("bad_descriptors"))

    def test_one_that_resizes_what_it_shares(self):
        def resized(hostile):
            self.assertEqual(hostile.says(), "done []", f"seed {OPTIONS.seed}")
        self.beside("resize", LIVES, resized)

    def test_one_that_punches_large_holes(self):
        """None: the daemon, too, has its pages, and keeps them."""
        def punched(hostile):
            self.assertEqual(hostile.says(), "punched False", f"seed {OPTIONS.seed}")
            least = 4 * hostile_program.LARGE_NUMEL // 1024

            def all_there():
                self.large = max(self.cluster.daemons["left"].mappings_of("mercury-tensors"), key=lambda one: one["Rss"])
                return self.large["Rss"] >= least
            self.wait_for(all_there, lambda: f"{self.large}, at least {least} KiB")
            self.assertIn("lo", self.large["VmFlags"], "locked")
        self.beside("punch", LIVES, punched)

    def test_one_that_asks_for_huge_pages_without_end(self):
        self.beside("collapse", LIVES)

    def test_one_that_punches_holes_into_what_it_is_about_to_share(self):
        self.beside("share", LIVES, lambda hostile: self.assertEqual(hostile.says(), "shared"))

    def test_one_that_shares_as_much_as_it_may(self):
        self.start(memory=MEMORY)

        def refused_again(hostile):
            """It gets as much again, at once or once the kernel has what it has given back."""
            deadline = time.monotonic() + PATIENCE_S
            for times in (1, 2):
                pieces = 0
                while pieces not in PIECES:
                    self.assertLess(time.monotonic(), deadline, f"seed {OPTIONS.seed}, time {times}: {pieces} pieces")
                    said = hostile.says().split()
                    self.assertEqual(said[:2], ["refused", str(-errno.ENOSPC)], f"seed {OPTIONS.seed}, time {times}")
                    pieces = int(said[-1])
                    self.assertLessEqual(pieces, PIECES[-1], f"seed {OPTIONS.seed}, time {times}")
        self.beside("fill", LIVES, refused_again)

    def test_one_that_stops_in_mid_exchange(self):
        self.beside("stop", LIVES, lambda hostile: self.wait_for(lambda: hostile.state() == "T", hostile.state))

    def test_one_that_floods(self):
        for _ in range(LIVES):
            self.beside("flood", 1, self.grows("submissions", by=2000))

    def test_one_that_asks_for_the_largest_weight(self):
        self.start(rate=LINK)

        def takes_no_more_than_others(hostile):
            before = self.counter("tx_bytes")
            self.cluster.go(20)
            part = 20 * ROUND_BYTES / (self.counter("tx_bytes") - before)
            # Half, less what a busy machine keeps from it; with a weight of 10 there, not even a tenth.
            self.assertGreater(part, 0.1, f"seed {OPTIONS.seed}: of what its host sends, with one other job there")
        self.beside("weight", 1, takes_no_more_than_others)
        self.assertIn("its weight here is 1, not 1000", self.cluster.daemons["left"].log())

    def test_one_that_sends_as_fast_as_it_is_served(self):
        """Its job's rate is all that it gets, though nobody else wants the link."""
        self.start(job_rate=f"{JOB_MBIT}Mbps")

        def takes_its_time(hostile):
            before, since = self.counter("tx_bytes"), time.monotonic()
            wanted = 4 * JOB_MBIT * 125_000  # in 4 s
            self.wait_for(lambda: self.counter("tx_bytes") >= before + wanted, lambda: "it does not send")
            # A twentieth is headers and acknowledgements, which no rate counts, and what it may send at once.
            self.assertGreater(time.monotonic() - since, 0.95 * 4, f"seed {OPTIONS.seed}")
        self.beside("greedy", 1, takes_its_time)

    def test_one_that_attaches_without_end(self):
        def seen(hostile):
            client = self.client()
            self.wait_for(lambda: self.client() > client + 200, lambda: "nobody attaches")
        self.beside("attach", LIVES, seen)

    def test_one_that_reads_no_replies_gets_few_descriptors(self):
        """Until it reads them they count as the daemon's, of which it may have so many."""
        program = self.cluster.daemons["left"].attach()
        self.addCleanup(program.close)
        program.send(hostile_program.HELLO)
        program.recv(4096)
        asked = 60
        for seq in range(2, 2 + asked, 2):
            program.send(hostile_program.message(type="region_add", region=seq, bytes=4096, seq=seq))
            program.send(hostile_program.message(type="region_del", region=seq, seq=seq + 1))
        self.wait_for(lambda: unread_by_peer(program) == 0, lambda: "the daemon does not read")
        busy, descriptors = 0, []
        for _ in range(asked):
            answer, brought, _, _ = socket.recv_fds(program, 4096, 1)
            descriptors += brought
            busy += b"are not read yet" in answer
        for descriptor in descriptors:
            os.close(descriptor)
        self.assertEqual((len(descriptors), busy), (4, asked // 2 - 4))

    def test_one_that_opens_a_job_with_rings_that_it_has_not_sealed(self):
        """An engine that looks at them may wait for a hole that is being punched."""
        program = self.cluster.daemons["left"].attach()
        self.addCleanup(program.close)
        program.send(hostile_program.HELLO)
        program.recv(4096)
        program.send(JOB_OPEN)
        self.assertIn(b"channel's memory is not sealed", program.recv(4096))

    def client(self):
        """How many have attached so far: the daemon's number for the next one."""
        program = self.cluster.daemons["left"].attach()
        try:
            program.send(hostile_program.HELLO)
            answer = program.recv(4096)
        finally:
            program.close()
        place = answer.index(b"client") + 6
        width = {0x18: 1, 0x19: 2, 0x1a: 4}.get(answer[place], 0)
        return int.from_bytes(answer[place + 1:place + 1 + width], "big") if width else answer[place]

    def test_ones_that_die_at_every_step(self):
        seen = set()
        while len(seen) < len(hostile_program.STEPS) or self.deaths < DEATHS:
            hostile = self.hostile("die")
            said = [line.strip() for line in hostile.process.stdout]
            self.assertEqual(hostile.process.wait(), -signal.SIGKILL, f"seed {OPTIONS.seed}: {said}")
            seen.add(said[-1])
            self.deaths += 1
            self.cluster.go(5)
        self.nothing_is_left()

    deaths = 0


def unread_by_peer(connection):
    return struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]


def measure():
    print(f"seed {OPTIONS.seed}; rounds of the innocent job beside a hostile program, as a part of those beside a harmless one")
    return min(measure_with(memory) for memory in ("0", MEMORY))


def measure_with(memory):
    """Where all programs may share so much: `fill` where it can, all others where they need not."""
    generator = random.Random(OPTIONS.seed)
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder, contextlib.closing(Cluster(folder, memory=memory)) as cluster:

        @contextlib.contextmanager
        def beside(mode, idle=True):
            hostile = Hostile(cluster.daemons["left"], cluster.rendezvous, mode, generator.randrange(1 << 32))
            try:
                hostile.wait_until_ready()
                if idle:
                    make_idle(hostile.process)
                yield
            finally:
                hostile.kill()

        @contextlib.contextmanager
        def counting():
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                make_idle(process)
                yield
            finally:
                process.kill()
                process.wait()

        # One whose calls fail exchanges all the while as an honest job does.
        harmless = {"stop": contextlib.nullcontext, "resize": lambda: beside("honest"), "fill": lambda: beside("hold")}
        rows = [(mode, harmless.get(mode, counting), lambda mode=mode: beside(mode))
                for mode in hostile_program.MODES[:-1] if mode not in ("punch", "collapse", "flood", "weight")]  # those that live
        rows += [("punch", lambda: beside("churn"), lambda: beside("punch")),
                 ("collapse", lambda: beside("churn"), lambda: beside("collapse")),
                 ("flood, honest", lambda: beside("honest"), lambda: beside("flood")),
                 ("weight", lambda: beside("greedy"), lambda: beside("weight")),
                 ("flood, greedy", lambda: beside("greedy"), lambda: beside("flood")),
                 ("not idle", lambda: beside("greedy", False), lambda: beside("flood", False))]
        return measured([row for row in rows if (row[0] == "fill") == (memory == MEMORY)], OPTIONS, cluster.go, PAIRS)


if __name__ == "__main__":
    if OPTIONS.measure > 0:
        sys.exit(measure() < 0.9)  # docs/reliability.md says that it costs less than a tenth
    else:
        print(f"seed {OPTIONS.seed}", file=sys.stderr)
        unittest.main(argv=[sys.argv[0], "-v", *REST])
