"""ScheduledOptimizer in a job with a quorum: it goes on without workers that are slow or lost, and says who was in each step.

usage: quorum_test.py PACKAGE_FOLDER LIBRARY STACKD
"""
import os
import signal
import sys
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "apps")]

import daemons  # noqa: E402
import programs  # noqa: E402

PROGRAM = os.path.join(HERE, "quorum_program.py")
WORKERS, QUORUM, PATIENCE_S = 3, 2, 150
FOREVER_MS = 1000 * PATIENCE_S  # nobody who is there misses a sum


class Quorum(unittest.TestCase):
    def setUp(self):
        self.address, self.daemon = daemons.start_one(STACKD, self.addCleanup)

    def start(self, rank, what="goes-on", patience_ms=FOREVER_MS):
        program = programs.start([sys.executable, PROGRAM, PACKAGE, str(rank), str(WORKERS), str(QUORUM), str(patience_ms),
                                  f"{self.address}:{daemons.UDP_PORT}", what], LIBRARY, MERCURY_SOCKET=self.daemon.socket)
        self.addCleanup(programs.end, program)
        return program

    def test_a_worker_that_is_killed(self):
        """The others go on, with the same weights, and it does not come back."""
        workers = [self.start(rank, "dies" if rank == 1 else "goes-on") for rank in range(WORKERS)]
        # While the others train: that they have one step without it shows that they do not wait.
        before = [programs.line_of(workers[0]) for _ in range(4)]
        self.assertEqual(before, [f"{i} [0, 1, 2] []\n" for i in range(3)] + ["3 [0, 2] []\n"], workers[0].poll())
        (first, _, _), (_, _, status), (third, _, _) = programs.outcomes_of(workers, PATIENCE_S)
        self.assertEqual(status, -signal.SIGKILL)
        self.assertEqual(first.splitlines()[:-1], [f"{i} [0, 2] []" for i in range(4, 8)])
        self.assertEqual(first, "".join(third.splitlines(keepends=True)[4:]))

    def test_a_worker_that_is_slow(self):
        """Its gradient is in no sum, but the sums are in its weights."""
        workers = [self.start(rank, "waits" if rank == 1 else "goes-on", patience_ms=100) for rank in range(WORKERS)]
        steps = [programs.line_of(workers[0]) for _ in range(4)]
        self.assertEqual(steps[3], "3 [0, 2] []\n", steps)
        workers[1].stdin.write("\n")
        workers[1].stdin.flush()
        outcomes = programs.outcomes_of(workers, PATIENCE_S)
        for said, errors, status in outcomes:
            self.assertEqual(status, 0, errors)
        self.assertEqual(len({said.splitlines()[-1] for said, _, _ in outcomes}), 1, outcomes)
        # Whoever is in a step is so for all.
        self.assertEqual(outcomes[1][0].splitlines(), [line.strip() for line in steps] + outcomes[0][0].splitlines())

    def test_a_worker_that_comes_back_is_refused(self):
        workers = [self.start(0, "waits"), self.start(1, "dies"), self.start(2)]
        self.assertEqual(workers[1].wait(PATIENCE_S), -signal.SIGKILL)
        _, errors, status = programs.outcomes_of([self.start(1)], PATIENCE_S)[0]
        self.assertEqual(status, 1)
        self.assertIn("worker 1 has come back to a job with a quorum, which goes on without it", errors)
        workers[0].stdin.write("\n")
        workers[0].stdin.flush()
        for place in (0, 2):
            _, errors, status = programs.outcomes_of([workers[place]], PATIENCE_S)[0]
            self.assertEqual(status, 0, errors)


if __name__ == "__main__":
    unittest.main()
