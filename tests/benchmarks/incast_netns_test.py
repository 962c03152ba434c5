"""A short run of incast_netns.py with two senders: that it counts what it is to count. Needs root
(network namespaces).

usage: incast_netns_test.py BUILD [unittest arguments]
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "..", "benchmarks", "congestion", "incast_netns.py")
BUILD = sys.argv[1]


class IncastTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = f"mi{os.getpid()}"
        with tempfile.NamedTemporaryFile(prefix="mercury-") as file:
            subprocess.run([sys.executable, SCRIPT, "--build", BUILD, "--senders", "2", "--seconds", "1",
                            "--readings", "1", "--kinds", "mercury", "cubic", "--prefix", cls.prefix,
                            "--json", file.name], check=True, timeout=400)
            cls.results = json.load(file)

    def of(self, part, kind):
        return next(result for result in self.results[part] if result["kind"] == kind)

    def test_every_sum_was_right(self):
        for part in ("steps", "losses"):
            result = self.of(part, "mercury")
            self.assertTrue(result["verified"])
            self.assertGreater(result["push_chunks"], 0)

    def test_the_link_becomes_slower_and_marks(self):
        result = self.of("steps", "mercury")
        self.assertEqual([row["mbit"] for row in result["phases"]], [500, 50, 500])
        self.assertGreater(result["marked"], 0)

    def test_what_is_lost_is_what_queues_dropped(self):
        result = self.of("steps", "mercury")
        self.assertEqual(result["lost_by_rule"], 0)
        self.assertGreaterEqual(result["lost"], 0)
        self.assertLessEqual(result["lost"], result["queue_drops"])

    def test_frames_lost_by_rule_are_missed_and_sent_again(self):
        result = self.of("losses", "mercury")
        self.assertEqual([row["loss_percent"] for row in result["phases"]], [0, 1, 5])
        self.assertGreater(result["lost"], 0)
        self.assertLessEqual(result["lost"], result["queue_drops"] + result["lost_by_rule"])
        self.assertGreater(result["retransmits"], 0)

    def test_tcp_is_counted_by_who_receives_it(self):
        for algorithm in ("cubic", "bbr"):
            reading, = self.results["beside"][algorithm]
            self.assertGreater(reading["received"][1], 0)
            self.assertGreaterEqual(reading["received"][1], reading["received"][0])

    def test_nothing_is_left(self):
        self.assertEqual(glob.glob(f"/run/netns/{self.prefix}-*"), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
