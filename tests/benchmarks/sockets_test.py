#!/usr/bin/env python3
"""What benchmarks/sockets does where a program is missing. Its short runs are tests there."""
import pathlib
import sys
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "sockets"))
import lab  # noqa: E402
import sockets  # noqa: E402

OTHERS = ["nginx", "socat", "asyncio"]


def which_but(*missing):
    return unittest.mock.patch.object(lab.shutil, "which", lambda name: None if name in missing else f"/usr/bin/{name}")


class MissingTest(unittest.TestCase):
    def test_the_others_are_measured_and_the_reason_is_said(self):
        for missing, packages in ((("redis-benchmark",), "redis-tools"), (("redis-server", "redis-benchmark"), "redis-server redis-tools")):
            with which_but(*missing):
                self.assertEqual(lab.measurable(lab.PROGRAMS), (["zeromq", "iperf3", *OTHERS], [f"not measured: redis: apt-get install {packages}"]))
        with which_but("iperf3", "redis-server"):
            self.assertEqual(lab.measurable(["iperf3"]), ([], ["not measured: iperf3: apt-get install iperf3"]))

    def test_what_was_not_asked_for_is_not_missed(self):
        with which_but("redis-server"):
            self.assertEqual(lab.measurable(["iperf3"]), (["iperf3"], []))

    def test_the_status_is_1(self):
        hosts = unittest.mock.Mock()
        with which_but("iperf3", "redis-server", "redis-benchmark"), \
                unittest.mock.patch.multiple(lab, use_build=lambda *_: None, two_hosts=lambda **_: hosts), \
                unittest.mock.patch.object(sockets.Bench, "run") as run, \
                unittest.mock.patch.object(sys, "argv", ["sockets.py", "--quick", "--where", "within"]):
            self.assertEqual(sockets.main(), 1)
        run.assert_called_once_with(["zeromq", *OTHERS])
        hosts.close.assert_called_once()


if __name__ == "__main__":
    unittest.main()
