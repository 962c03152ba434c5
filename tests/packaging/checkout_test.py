"""What the scripts of a checkout that was never built say, instead of what they lack. Usage:
checkout_test.py SOURCES"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCES = sys.argv[1]


class CheckoutTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("quickstart", "run-tests"):
            shutil.copy(f"{SOURCES}/{name}", self.root)
        for name in ("tools", "examples/digits", "benchmarks", "tests/apps"):
            shutil.copytree(f"{SOURCES}/{name}", f"{self.root}/{name}", ignore=shutil.ignore_patterns("__pycache__"))

    def run_script(self, *command):
        program = [f"{self.root}/{command[0]}"]
        if "/" in command[0]:
            program.insert(0, "/usr/bin/python3")
        return subprocess.run([*program, *command[1:]], capture_output=True, text=True,
                              cwd=self.root, timeout=60)

    def test_help_comes_before_building(self):
        for arguments in (["--help"], ["--embedded", "--help"], ["--embedded", "-h"]):
            said = self.run_script("quickstart", *arguments)
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertIn("--embedded", said.stdout)
            self.assertNotIn("[1/5]", said.stdout)
        wrong = self.run_script("quickstart", "--embeded")
        self.assertEqual(wrong.returncode, 2)
        self.assertNotIn("[1/5]", wrong.stdout)
        self.assertFalse(os.path.exists(f"{self.root}/build"))

    def test_wrong_options_come_before_installing_and_building(self):
        for arguments in (["--suite"], ["--suite", "nosuch"], ["--sanitize", "memory"], ["--fuzz"], ["--fuzz", "0"], ["unit"]):
            wrong = self.run_script("run-tests", *arguments)
            self.assertEqual((wrong.returncode, wrong.stdout), (2, ""), wrong.stderr)
            self.assertIn("expected" if arguments != ["unit"] else "--suite unit", wrong.stderr)
        self.assertFalse(os.path.exists(f"{self.root}/build"))

    def test_what_to_run_first_is_named(self):
        for command in (["examples/digits/run_job.py", "--embedded"],
                        ["benchmarks/goodput/goodput.py", "--settings", "uring"],
                        ["benchmarks/papers/mercury.py", "speed"], ["tools/soak", "--seconds", "1"],
                        ["benchmarks/congestion/incast_netns.py"]):
            said = self.run_script(*command)
            self.assertEqual(said.returncode, 1, command)
            self.assertEqual(said.stderr.count("\n"), 1, said.stderr)
            self.assertRegex(said.stderr, "no .*: tools/build .*makes it")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
