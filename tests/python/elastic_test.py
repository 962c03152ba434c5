"""Workers of an elastic ScheduledOptimizer that are killed and started again: the weights of a run without kills, bit for bit.

usage: elastic_test.py PACKAGE_FOLDER LIBRARY STACKD
MERCURY_SEEDS: how many runs with kills drawn by seed (default 1)
MERCURY_ELASTIC_SOAK_SECONDS: how long workers are killed one after the other (class Soak; default: not at all)
MERCURY_ELASTIC_KILL_EVERY: seconds (default 30)
"""
import os
import random
import signal
import sys
import time
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
SEEDS = int(os.environ.pop("MERCURY_SEEDS", "1"))
SOAK_S = int(os.environ.pop("MERCURY_ELASTIC_SOAK_SECONDS", "0"))
KILL_EVERY_S = int(os.environ.pop("MERCURY_ELASTIC_KILL_EVERY", "30"))
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "apps")]

import daemons  # noqa: E402
import programs  # noqa: E402

PROGRAM = os.path.join(HERE, "elastic_program.py")
WORKERS, ITERATIONS, PATIENCE_S = 3, 8, 300


class OverADaemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.address, cls.daemon = daemons.start_one(STACKD, cls.addClassCleanup)

    def start(self, rank, *kills, workers=WORKERS, iterations=ITERATIONS, **variables):
        return programs.start([sys.executable, PROGRAM, PACKAGE, str(rank), str(workers), f"{self.address}:{daemons.UDP_PORT}",
                               str(iterations), *kills], LIBRARY, MERCURY_SOCKET=self.daemon.socket, **variables)


class Elastic(OverADaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls("run_all").run_all({})

    def run_all(self, lives, workers=WORKERS):
        """(standard output, errors, status) of each worker's last life. lives: of a rank, what kills each of its lives but the
        last, by which it is started again."""
        left, self.kills = {rank: list(kills) for rank, kills in lives.items()}, 0

        def begin(rank):
            return self.start(rank, *(left[rank].pop(0).split() if left.get(rank) else ()), workers=workers)
        running = [begin(rank) for rank in range(workers)]
        due = time.monotonic() + PATIENCE_S
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
            return programs.outcomes_of(running, PATIENCE_S)
        finally:
            for process in running:
                programs.end(process)

    def check(self, lives, every_kill=True):
        """Weights, optimizer and rate, to the bit, and as many kills as were asked for."""
        outcomes = self.run_all(lives)
        if every_kill:
            self.assertEqual(self.kills, sum(map(len, lives.values())), lives)
        for (said, errors, status), (expected, its_errors, _) in zip(outcomes, self.undisturbed):
            self.assertEqual(status, 0, errors)
            self.assertTrue(expected, its_errors)
            self.assertEqual(said.split()[:2], expected.split()[:2], lives)

    def test_all_have_the_same_weights(self):
        self.assertEqual([status for _, _, status in self.undisturbed], [0] * WORKERS, self.undisturbed)
        self.assertEqual(len({said for said, _, _ in self.undisturbed}), 1, self.undisturbed)
        # Each iteration took one attempt, and BatchNorm has counted each forward pass once.
        self.assertEqual(self.undisturbed[0][0].split()[2:], [str(ITERATIONS + len(range(1, ITERATIONS, 3))), str(ITERATIONS)])

    def test_killed_before_and_behind_pushes(self):
        """Of gradients in the middle, of all gradients, and of the vote."""
        self.check({0: ["later-votes:4:behind"], 1: ["later-gradient:9:before", "later-votes:3:before"], 2: ["later-gradient:15:behind"]})

    def test_killed_while_the_state_is_sent(self):
        """Rank 2 comes back. Who sends to it is killed, then itself while the next one sends, and that one once others have the state."""
        self.check({0: ["later-state:2:behind"], 1: ["later-votes:7:behind"], 2: ["later-gradient:10:behind", "state:4:behind"]})

    def test_killed_where_the_training_begins_and_ends(self):
        """The first votes count before anybody has the weights; at the end, nobody leaves before all have them."""
        self.check({0: ["votes:1:before", f"later-votes:{ITERATIONS}:behind"], 1: ["gradient:3:behind", f"later-gradient:{6 * ITERATIONS + 2}:behind"]})

    def test_kills_drawn_by_seed(self):
        for seed in range(SEEDS):
            chance = random.Random(seed)
            lives = {rank: [f"{chance.choice(['', 'later-'])}{kind}:{chance.randrange(2, most)}:{chance.choice(['before', 'behind'])}"
                            for kind, most in (chance.choice([("gradient", 30), ("votes", 5), ("state", 3)]),)] for rank in (1, 2)}
            with self.subTest(seed=seed, lives=lives):
                self.check(lives, every_kill=False)  # some wait for a state that nobody sends

    def test_nobody_has_the_state(self):
        """Worker 0 is lost before its weights are with anybody: all are told."""
        for said, errors, status in self.run_all({0: ["state:1:behind"]}):
            self.assertEqual(status, 1, said)
            self.assertRegex(errors, "no worker has the training's state: all 3 of them are new|worker . of 3 .*left the job")


@unittest.skipUnless(SOAK_S, "MERCURY_ELASTIC_SOAK_SECONDS")
class Soak(OverADaemon):
    """Kills whose moments nobody chooses."""

    def test_a_worker_killed_again_and_again(self):
        pace_s = 0.1
        iterations = round((SOAK_S + KILL_EVERY_S) / pace_s)  # more than the kills leave time for
        expected = [said for said, _, _ in programs.outcomes_of([self.start(rank, iterations=iterations) for rank in range(WORKERS)],
                                                                SOAK_S + PATIENCE_S)]
        self.assertEqual(len(set(expected)), 1, expected)
        workers = [self.start(rank, iterations=iterations, MERCURY_TEST_PACE_S=str(pace_s)) for rank in range(WORKERS)]
        try:
            begun, chance = time.monotonic(), random.Random(SOAK_S)
            for kill in range(1, SOAK_S // KILL_EVERY_S + 1):
                time.sleep(max(0, begun + kill * KILL_EVERY_S - time.monotonic()))
                lost = chance.randrange(WORKERS)
                self.assertIsNone(workers[lost].poll(), f"worker {lost} has ended before kill {kill}")
                workers[lost].kill()
                programs.end(workers[lost])
                workers[lost] = self.start(lost, iterations=iterations, MERCURY_TEST_PACE_S=str(pace_s))
            for (said, errors, status), as_expected in zip(programs.outcomes_of(workers, SOAK_S + PATIENCE_S), expected):
                self.assertEqual(status, 0, errors)
                self.assertEqual(said.split()[:2], as_expected.split()[:2])
            print(f"{kill} kills in {time.monotonic() - begun:.0f} s, {iterations} iterations", file=sys.stderr)
        finally:
            for worker in workers:
                programs.end(worker)


if __name__ == "__main__":
    unittest.main()
