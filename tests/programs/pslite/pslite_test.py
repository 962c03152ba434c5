"""ps-lite that was never changed: its own benchmark, and a program that checks what it gets, between two
hosts; what it sees when a worker, a server or a daemon goes.

usage: pslite_test.py STACKD CTL MERCURY_RUN [unittest arguments]

It is built in PSLITE_CACHE (a temporary folder without), of BytePS's source distribution, which is
downloaded; pslite_tree.py says more.
"""
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
import pslite_tree  # noqa: E402
from pslite_job import Job, PUSH_ONLY, PUSH_PULL  # noqa: E402
from two_hosts import ProgramsTest, main, wait_until  # noqa: E402

RUNS = 10
DROPPING_RUNS, DROPPING_PATIENCE_S, DROPPED_AND_THROUGH = 20, 10, 2
WRONG = 3  # the status of pslite_patterns where an answer was wrong
BENCHMARK = PATTERNS = None


def benchmark(bytes_each, rounds, mode):
    return [BENCHMARK, bytes_each, rounds, mode]


class PsLite(ProgramsTest):
    def job(self, command, **environment):
        return Job(self.hosts, command, NUM_KEY_PER_SERVER=1, LOG_DURATION=1, **environment)

    def test_its_benchmark_ten_times(self):
        for number in range(RUNS):
            mode = number % 4
            with self.subTest(run=number, mode=mode):
                # What each worker pushes first to the other host's server.
                with self.carries(at_least=2 * 300_000):
                    self.job(benchmark(300_000, 2, mode)).ends_well()

    def test_its_bytes_are_mercurys_and_all_of_them(self):
        with self.carries(at_least=2 * 1_000_000 * (1 + 2 * 5)):
            self.job(benchmark(1_000_000, 5, PUSH_PULL)).ends_well()
        with self.carries(at_least=0, at_most=0):
            Job(self.hosts, benchmark(100_000, 1, PUSH_PULL), mercury=False, NUM_KEY_PER_SERVER=1).ends_well()

    def test_what_is_pulled_is_what_was_pushed(self):
        patterns = ["own_key", "many_keys", "lengths_differ", "answered_in_reverse", "sum_of_all_large", "words"]
        with self.carries(at_least=4 * 1_200_000):
            self.job([PATTERNS, 1, *patterns]).ends_well()

    def test_it_resends_what_is_not_acknowledged_in_time(self):
        self.job([PATTERNS, 1, "own_key", "many_keys", "around_64_kib"], PS_RESEND=1, PS_RESEND_TIMEOUT=2000).ends_well()

    def test_it_drops_messages_itself(self):
        """PS_DROP_MSG loses all that a process is sent in one second of ten. Over the kernel, too, a process may abort then, or
        wait for ever as it ends for what nobody sends again: so whatever has come through by then must be right."""
        through = 0
        for _ in range(DROPPING_RUNS):
            job = self.job([PATTERNS, 3, "own_key", "many_keys", "around_64_kib"], PS_RESEND=1, PS_RESEND_TIMEOUT=500, PS_DROP_MSG=10)
            done = lambda worker: self.hosts.words(worker)["stdout"].endswith("round 2\n")
            wait_until(lambda: all(done(worker) or worker.poll() is not None for worker in job.workers), DROPPING_PATIENCE_S)
            through += all(map(done, job.workers)) and any("Drop message" in job.said(process) for process in job.processes)
            self.assertNotIn(WRONG, [process.poll() for process in job.processes], [job.said(worker)[-1000:] for worker in job.workers])
            self.hosts.end_programs()
            if through == DROPPED_AND_THROUGH:
                return
        self.fail(f"{through} of {DROPPING_RUNS} jobs dropped messages and came through")

    def test_a_worker_or_server_that_is_killed_costs_no_other_job(self):
        for kill in (lambda job: job.workers[0], lambda job: job.servers[1]):
            job = self.job(benchmark(100_000, 10_000, PUSH_ONLY))
            self.assertTrue(wait_until(lambda: min(map(job.rounds, job.workers)) >= 2), job.said(job.workers[0]))
            job.kill(kill(job))
            # ps-lite's others wait, or servers end that answer who has gone, as over the kernel.
            with self.carries(at_least=2 * 100_000):
                self.job(benchmark(100_000, 1, PUSH_PULL)).ends_well()
            self.hosts.end_programs()
            self.assertTrue(wait_until(self.hosts.is_idle), "connections of the dead are left")

    def test_a_daemon_that_is_killed(self):
        job = self.job(benchmark(100_000, 10_000, PUSH_ONLY))
        self.assertTrue(wait_until(lambda: min(map(job.rounds, job.workers)) >= 2), job.said(job.workers[0]))
        self.hosts.kill_daemon("b")
        # ps-lite does not survive a connection that is reset; another job goes through the kernel.
        self.hosts.end_programs()
        self.job(benchmark(100_000, 1, PUSH_PULL)).ends_well()
        self.hosts.start_daemon("b")
        with self.carries(at_least=2 * 100_000):
            self.job(benchmark(100_000, 1, PUSH_PULL)).ends_well()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        cache = os.environ.get("PSLITE_CACHE", folder)
        root = pslite_tree.tree(cache)
        built = pslite_tree.build(root, os.path.join(cache, "built"),
                                  [f"{root}/tests/test_benchmark.cc", f"{HERE}/pslite_patterns.cc"])
        BENCHMARK, PATTERNS = built["test_benchmark"], built["pslite_patterns"]
        main()
