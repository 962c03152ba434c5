"""Compiles examples/sum/sum.rs as a user would, and runs it: two workers and two servers, embedded, on 127.0.0.0/8.

usage: client_rust_test.py SUM_RS LIBRARY
Skipped where there is no rustc that works.
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

SUM_RS, LIBRARY = sys.argv[1:3]
LIMIT_S = 120  # of a process that hangs; none waits for it otherwise
SKIPPED = 77  # to meson
MEMBERS = [("worker", 0), ("worker", 1), ("server", 0), ("server", 1)]


def has_rustc():
    """rustup's stands there without a compiler, too, and then says so."""
    return shutil.which("rustc") is not None and subprocess.run(["rustc", "--version"], capture_output=True).returncode == 0


def compiled(folder):
    library = os.path.dirname(os.path.realpath(LIBRARY))
    program = os.path.join(folder, "sum")
    subprocess.run(["rustc", "--edition", "2021", "-D", "warnings", "-L", library, "-C", f"link-arg=-Wl,-rpath,{library}", "-o",
                    program, SUM_RS], check=True)
    return program


class Rust(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.program = compiled(folder.name)
        # Test runs beside each other do not share an address.
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        self.environment |= {"MERCURY_WORKERS": "2", "MERCURY_SERVERS": "2", "MERCURY_RENDEZVOUS": f"{address}:7470"}

    def start(self, **settings):
        process = subprocess.Popen([self.program], env={**self.environment, **settings}, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_the_sum(self):
        members = [self.start(MERCURY_ROLE=role, MERCURY_RANK=str(rank)) for role, rank in MEMBERS]
        said = [(*process.communicate(timeout=LIMIT_S), process.returncode) for process in members]
        self.assertEqual(said, [("worker 0: 3\n", "", 0), ("worker 1: 3\n", "", 0), ("", "", 0), ("", "", 0)])

    def test_a_failure_says_why(self):
        process = self.start(MERCURY_ROLE="worker", MERCURY_RANK="first")
        _, errors = process.communicate(timeout=LIMIT_S)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("MERCURY_RANK='first': must be -1 to 1023", errors)


if __name__ == "__main__":
    if not has_rustc():
        print("skipped: there is no rustc that works (apt-get install rustc)")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], "-v"])
