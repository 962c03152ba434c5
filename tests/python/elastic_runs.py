"""Runs of elastic_program.py whose workers are killed and started again, wherever a test's daemons are.

MERCURY_ELASTIC_SOAK_SECONDS: how long soak() kills (default: not at all)
MERCURY_ELASTIC_KILL_EVERY: seconds (default 30)
"""
import os
import random
import signal
import sys
import time
import unittest

import programs

SOAK_S = int(os.environ.pop("MERCURY_ELASTIC_SOAK_SECONDS", "0"))
KILL_EVERY_S = int(os.environ.pop("MERCURY_ELASTIC_KILL_EVERY", "30"))
SOAK_PACE_S = 0.1
SOAK_ITERATIONS = round((SOAK_S + KILL_EVERY_S) / SOAK_PACE_S)  # more than the kills leave time for
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "elastic_program.py")
WORKERS, ITERATIONS, PATIENCE_S = 3, 8, 300

soaks = unittest.skipUnless(SOAK_S, "MERCURY_ELASTIC_SOAK_SECONDS")


class Runs(unittest.TestCase):
    """A subclass has start(rank, *kills, iterations=ITERATIONS, **variables), which starts a worker's life with command()."""

    def run_all(self, lives, iterations=ITERATIONS, patience_s=PATIENCE_S):
        """(standard output, errors, status) of each worker's last life. lives: of a rank, what kills each of its lives but the
        last, by which it is started again."""
        left, self.kills = {rank: list(kills) for rank, kills in lives.items()}, 0

        def begin(rank):
            return self.start(rank, *(left[rank].pop(0).split() if left.get(rank) else ()), iterations=iterations)
        running = [begin(rank) for rank in range(WORKERS)]
        due = time.monotonic() + patience_s
        try:
            while any(process.poll() is None or process.returncode == -signal.SIGKILL for process in running):
                self.assertLess(time.monotonic(), due, f"it hangs: {[process.returncode for process in running]}, {left} to come")
                for rank, process in enumerate(running):
                    if process.poll() == -signal.SIGKILL:
                        self.kills += 1
                        programs.end(process)
                        running[rank] = begin(rank)
                time.sleep(0.02)
            self.assertFalse(any(left.values()), f"lives that were not lived: {left}")
            return programs.outcomes_of(running, patience_s)
        finally:
            for process in running:
                programs.end(process)

    def expect_same(self, outcomes, undisturbed, words=2, why=None):
        """Weights, optimizer and rate, to the bit; of more words, the attempts that it took too."""
        for (said, errors, status), (expected, its_errors, _) in zip(outcomes, undisturbed):
            self.assertEqual(status, 0, errors)
            self.assertTrue(expected, its_errors)
            self.assertEqual(said.split()[:words], expected.split()[:words], why)

    def soak(self, undisturbed):
        """Kills whose moments nobody chooses."""
        workers = [self.start_paced(rank) for rank in range(WORKERS)]
        try:
            begun, chance = time.monotonic(), random.Random(SOAK_S)
            for kill in range(1, SOAK_S // KILL_EVERY_S + 1):
                time.sleep(max(0, begun + kill * KILL_EVERY_S - time.monotonic()))
                lost = chance.randrange(WORKERS)
                self.assertIsNone(workers[lost].poll(), f"worker {lost} has ended before kill {kill}")
                workers[lost].kill()
                programs.end(workers[lost])
                workers[lost] = self.start_paced(lost)
            self.expect_same(programs.outcomes_of(workers, SOAK_S + PATIENCE_S), undisturbed)
            print(f"{kill} kills in {time.monotonic() - begun:.0f} s, {SOAK_ITERATIONS} iterations", file=sys.stderr)
        finally:
            for worker in workers:
                programs.end(worker)

    def start_paced(self, rank):
        return self.start(rank, iterations=SOAK_ITERATIONS, MERCURY_TEST_PACE_S=str(SOAK_PACE_S))

    def soak_undisturbed(self):
        """What soak() is to become."""
        return self.run_all({}, SOAK_ITERATIONS, SOAK_S + PATIENCE_S)


def command(package, rank, rendezvous, iterations, kills):
    return [sys.executable, PROGRAM, package, str(rank), str(WORKERS), rendezvous, str(iterations), *kills]
