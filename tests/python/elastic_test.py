"""Workers of an elastic ScheduledOptimizer that are killed and started again: the weights of a run without kills, bit for bit.

usage: elastic_test.py PACKAGE_FOLDER LIBRARY STACKD
MERCURY_SEEDS: how many runs with kills drawn by seed (default 1)
Those of elastic_runs.py, for the class Soak.
"""
import os
import random
import sys
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
SEEDS = int(os.environ.pop("MERCURY_SEEDS", "1"))
sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apps")]

import daemons  # noqa: E402
import elastic_runs  # noqa: E402
import programs  # noqa: E402
from elastic_runs import ITERATIONS, WORKERS  # noqa: E402


class OverADaemon(elastic_runs.Runs):
    @classmethod
    def setUpClass(cls):
        cls.address, cls.daemon = daemons.start_one(STACKD, cls.addClassCleanup)

    def start(self, rank, *kills, iterations=ITERATIONS, **variables):
        return programs.start(elastic_runs.command(PACKAGE, rank, f"{self.address}:{daemons.UDP_PORT}", iterations, kills), LIBRARY,
                              MERCURY_SOCKET=self.daemon.socket, **variables)


class Elastic(OverADaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls("run_all").run_all({})

    def check(self, lives, every_kill=True):
        """As many kills as were asked for, and nothing to be seen of them."""
        outcomes = self.run_all(lives)
        if every_kill:
            self.assertEqual(self.kills, sum(map(len, lives.values())), lives)
        self.expect_same(outcomes, self.undisturbed, why=lives)

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


@elastic_runs.soaks
class Soak(OverADaemon):
    def test_a_worker_killed_again_and_again(self):
        self.soak(self.soak_undisturbed())


if __name__ == "__main__":
    unittest.main()
