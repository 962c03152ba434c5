"""Workers of a ScheduledOptimizer on virtual hosts whose links lose frames; of an elastic one, that are killed beside: the weights
of a run without losses, bit for bit. No seed says which frames are lost (netlab). Needs root (network namespaces).

usage: lossy_test.py STACKD CTL LIBRARY PACKAGE_FOLDER [unittest arguments]
MERCURY_ELASTIC_LOSS: percent of each link's frames, in turns, for the class Soak (default: 1 5)
Those of elastic_runs.py, for the class Soak.
"""
import os
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", *folder) for folder in (("apps",), ("..", "tools"))]

import elastic_runs  # noqa: E402
import hosts_test  # noqa: E402
import netlab  # noqa: E402
import programs  # noqa: E402
from elastic_runs import ITERATIONS, WORKERS  # noqa: E402

LIBRARY, PACKAGE = sys.argv[3:5]
PLAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plain_program.py")
SOAK_PERCENT = [int(percent) for percent in os.environ.pop("MERCURY_ELASTIC_LOSS", "1 5").split()]
WIDTH = 1024  # some hundred frames of gradients, each way, in an iteration of a worker


class OverHosts(elastic_runs.Runs):
    """A daemon on each: one serves, the others have a worker each."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        cls.addClassCleanup(folder.cleanup)
        cls.lab = netlab.Lab(f"ml{os.getpid()}", ["server", *(f"w{rank}" for rank in range(WORKERS))])
        cls.addClassCleanup(cls.lab.close)
        cls.site = hosts_test.Site(folder.name)
        cls.addClassCleanup(cls.site.close)  # runs first: daemons end before their namespaces go
        for host in cls.lab.hosts:
            cls.site.daemon(host.name, host.popen, hosts_test.HostsTest.uring(host, False))

    command = staticmethod(elastic_runs.command)

    def start(self, rank, *kills, iterations=ITERATIONS, **variables):
        name = f"w{rank}"
        command = self.command(PACKAGE, rank, f"{self.lab['server'].ip}:7470", iterations, kills)
        return programs.start(self.lab[name].command(command), LIBRARY, MERCURY_SOCKET=self.site.path(f"{name}.sock"),
                              MERCURY_TEST_WIDTH=str(WIDTH), **variables)

    def sent_again(self):
        """Chunks, by each daemon."""
        return [sum(engine["retransmits"] for engine in self.site.counters(host.name)) for host in self.lab.hosts]


class Compared(OverHosts):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls("run_all").run_all({})

    def expect_undisturbed(self, percent, lives, words):
        before = self.sent_again()
        with self.lab.losses(percent) as lost:
            outcomes = self.run_all(lives)
            lost = lost()
        self.expect_same(outcomes, self.undisturbed, words)
        again = [now - then for now, then in zip(self.sent_again(), before)]
        print(f"{percent} % of each link's frames: {lost} lost, {again} chunks sent again, {self.kills} killed", file=sys.stderr)
        self.assertGreater(lost, 0)
        self.assertGreater(min(again), 0, again)
        self.assertEqual(self.kills, sum(map(len, lives.values())))


class Lossy(Compared):
    def test_frames_are_lost(self):
        """Nobody is taken for lost with them: each iteration takes one attempt."""
        for percent in (1, 5):
            with self.subTest(percent=percent):
                self.expect_undisturbed(percent, {}, words=4)

    def test_frames_and_a_worker_are_lost(self):
        self.expect_undisturbed(5, {1: ["later-gradient:15:behind"]}, words=2)


class Plain(Compared):
    """Not elastic: sums come back beside the next forward pass, and each module waits for its own."""

    @staticmethod
    def command(package, rank, rendezvous, iterations, _):
        return [sys.executable, PLAIN, package, str(rank), str(WORKERS), rendezvous, str(iterations)]

    def test_frames_are_lost(self):
        self.expect_undisturbed(5, {}, words=1)


@elastic_runs.soaks
class Soak(OverHosts):
    def test_workers_killed_again_and_again_while_frames_are_lost(self):
        undisturbed = self.soak_undisturbed()
        for percent in SOAK_PERCENT:
            with self.subTest(percent=percent), self.lab.losses(percent) as lost:
                self.soak(undisturbed)
                print(f"{percent} % of each link's frames: {lost()} lost", file=sys.stderr)
                self.assertGreater(lost(), 0)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root for network namespaces: skipped")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[5:]])
