"""A worker that is killed and started again takes its place: the run ends with the weights of one without kills, bit for
bit. Where it dies is by seed.

usage: rejoin_test.py PACKAGE_FOLDER LIBRARY
MERCURY_SEEDS: how many (default 2; each waits 10 s until an embedded worker counts as lost)
"""
import os
import random
import signal
import sys
import tempfile
import unittest

import programs

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
SEEDS = int(os.environ.pop("MERCURY_SEEDS", "2"))
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rejoin_program.py")
WORKERS, ITERATIONS, PATIENCE_S = 3, 8, 150
PLACES = ("before the push", "behind the push", "before the state is saved", "behind the state")


class Run:
    """A job's processes. What is left of them ends with it."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.rendezvous = f"127.0.0.1:{programs.free_port()}"
        self.processes = []

    def start(self, role, rank, *kill):
        self.processes.append(programs.start(
            [sys.executable, PROGRAM, PACKAGE, role, str(rank), str(WORKERS), self.rendezvous, self.folder.name, str(ITERATIONS), *kill], LIBRARY))
        return self.processes[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            programs.end(process)
        self.folder.cleanup()


def result_of(lost=None, iteration=0, place=""):
    """What each worker printed at the end. `lost` is killed in that iteration, and started again."""
    with Run() as run:
        server = run.start("server", 0)
        workers = [run.start("worker", rank, *((str(iteration), place) if rank == lost else ())) for rank in range(WORKERS)]
        if lost is not None:
            workers[lost].wait(PATIENCE_S)
            assert workers[lost].returncode == -signal.SIGKILL, workers[lost].communicate()[1]
            workers[lost] = run.start("worker", lost)
        said = []
        for process in workers + [server]:
            output, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
            said.append(output.split())
        return said[:WORKERS]


class Rejoin(unittest.TestCase):
    def test_a_killed_worker_takes_its_place(self):
        undisturbed = result_of()
        self.assertEqual(len({tuple(worker[1:]) for worker in undisturbed}), 1, undisturbed)
        for seed in range(SEEDS):
            chance = random.Random(seed)
            lost, iteration, place = chance.randrange(WORKERS), chance.randrange(2, ITERATIONS), chance.choice(PLACES)
            with self.subTest(seed=seed, lost=lost, iteration=iteration, place=place):
                disturbed = result_of(lost, iteration, place)
                self.assertEqual([worker[1:] for worker in disturbed], [worker[1:] for worker in undisturbed])
                self.assertIn(int(disturbed[lost][0]), (iteration, iteration + 1), "it began where the others were")


if __name__ == "__main__":
    unittest.main()
