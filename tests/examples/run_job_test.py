#!/usr/bin/python3
"""What ./quickstart runs once everything is built: examples/digits/run_job.py.

usage: run_job_test.py BUILD [unittest arguments]     (all but EmbeddedTest need root; PromiseTest a machine with
                                                       nothing else to do: tools/nightly main_job)
"""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BUILD = os.path.abspath(sys.argv[1])
RUN_JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "digits", "run_job.py")
IDENTICAL = "weights bit-identical to a single-process run: yes"


def of_session(number):
    """The processes of a session that have not ended."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                before, _, after = file.read().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, session = after.split()[0], int(after.split()[3])
        if session == number and state != "Z":
            found.append(before)
    return found


class Job(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")
        self.scratch = os.path.join(folder.name, "tmp")
        os.mkdir(self.scratch)

    def start(self, *arguments):
        """In a session of its own, as in a terminal of its own."""
        job = subprocess.Popen(["/usr/bin/python3", RUN_JOB, "--build", BUILD, "--out", self.out, *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                               env={**os.environ, "TMPDIR": self.scratch, "PYTHONUNBUFFERED": "1"})
        self.addCleanup(self.end, job)
        return job

    @staticmethod
    def end(job):
        if job.poll() is None:
            job.terminate()
            job.wait()
        job.stdout.close()

    def check_nothing_is_left(self, job):
        self.assertEqual(of_session(job.pid), [])
        self.assertEqual(os.listdir(self.scratch), [])
        namespaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
        self.assertEqual([name for name in namespaces if name.startswith(f"mq{job.pid}-")], [])


class EmbeddedTest(Job):
    def test_trains_and_draws(self):
        job = self.start("--embedded")
        said, _ = job.communicate()
        self.assertEqual(job.returncode, 0, said)
        self.assertIn(IDENTICAL, said)
        accuracy = re.search(r"test accuracy: ([\d.]+) %", said)
        self.assertTrue(accuracy, said)
        self.assertGreater(float(accuracy[1]), 95)
        self.assertIn("no link to fill", said)
        with open(os.path.join(self.out, "timeline.json")) as file:
            timeline = json.load(file)
        self.assertTrue(timeline["traceEvents"] if isinstance(timeline, dict) else timeline)
        picture = xml.etree.ElementTree.parse(os.path.join(self.out, "timeline.svg"))
        self.assertTrue(picture.getroot().tag.endswith("svg"))
        self.check_nothing_is_left(job)


class HostsTest(Job):
    def test_an_interrupt_leaves_nothing_behind(self):
        job = self.start()
        said = []
        for line in job.stdout:
            said.append(line)
            if re.search(r"iteration +\d+ of", line) and any(before.startswith("[4/5]") for before in said):
                break
        self.assertIsNone(job.poll(), "".join(said))
        os.killpg(job.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        rest, _ = job.communicate()
        self.assertEqual(job.returncode, 130, "".join(said) + rest)
        self.assertIn("interrupted", rest)
        self.check_nothing_is_left(job)

    def test_frames_that_af_xdp_cannot_carry_go_over_af_packet(self):
        job = self.start("--mtu", "9000", "--turns", "1")
        said, _ = job.communicate()
        self.assertEqual(job.returncode, 0, said)
        self.assertIn("af_xdp does not start here, using af_packet: ", said)
        self.assertIn("one mercury-stackd in each, over DPDK af_packet", said)
        self.assertIn(IDENTICAL, said)
        self.check_nothing_is_left(job)


class ReachTest(Job):
    def test_promises_and_reaches(self):
        job = self.start("--turns", "2")
        said, _ = job.communicate()
        self.assertEqual(job.returncode, 0, said)
        with open(os.path.join(self.out, "result.json")) as file:
            result = json.load(file)
        # Wherever exchange and computing take equally long, Theorem 1 promises so much.
        self.assertGreater(result["promised"]["over_fifo"], 1.2, said)
        self.assertGreater(result["promised"]["over_native"], 1.6, said)
        # How much of it is reached depends on who else uses this machine (tools/nightly main_job asks for 0.9);
        # that Mercury is ahead of both does not.
        self.assertGreater(result["reached"]["over_fifo"], 1, said)
        self.assertGreater(result["reached"]["over_native"], 1.2, said)
        for policy, times in result["iterations_ms"].items():
            self.assertEqual(len(times), 10, policy)  # the first and last of a turn are not counted
        self.check_nothing_is_left(job)


class PromiseTest(Job):
    def test_three_runs_reach_nine_tenths_of_the_promise(self):
        for _ in range(3):
            job = self.start()
            said, _ = job.communicate()
            print(said)
            self.assertEqual(job.returncode, 0, said)
            with open(os.path.join(self.out, "result.json")) as file:
                result = json.load(file)
            for gain, promised in result["promised"].items():
                self.assertGreaterEqual(result["reached"][gain], 0.9 * promised, gain)
            for policy, simulated in result["simulated_ms"].items():
                self.assertAlmostEqual(result["iteration_ms"][policy] / simulated, 1, delta=0.05, msg=policy)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[2:]])
