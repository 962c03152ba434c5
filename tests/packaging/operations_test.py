"""Runs the commands of docs/operations.md, "Two daemons on one machine", as they stand there, but for
the addresses and the folder, which test runs beside each other do not share.

usage: operations_test.py OPERATIONS_MD BUILD
"""
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

OPERATIONS_MD, BUILD = sys.argv[1:3]


NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


class OperationsTest(unittest.TestCase):
    def two_daemons_on_one_machine(self, **user):
        """What the commands print."""
        with open(OPERATIONS_MD) as file:
            section = file.read().split("## Two daemons on one machine\n")[1].split("\n## ")[0]
        script = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.S | re.M))
        network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
            os.chmod(folder, 0o777)
            for old, new in (("127.0.0.", network + "."), ("/tmp/mercury-demo", f"{folder}/demo"),
                             ("build/apps/", f"{BUILD}/apps/")):
                self.assertIn(old, script)
                script = script.replace(old, new)
            # Whatever fails, the daemons end.
            script = "set -eu; daemons=; trap 'test -z \"$daemons\" || kill $daemons 2>/dev/null || :' EXIT\n" + script
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100, env=inherited, **user)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        shown = done.stdout.splitlines()
        for line in ("ok       io_uring", f"ok       UDP port         UDP {network}.2:7470 can be had", "mercury-stackd ",
                     "demo  server 0, running; 2 workers, 1 servers; 16 tensors",
                     f"    worker 1 {network}.2:7470", "  sessions_opened"):
            self.assertTrue(any(text.startswith(line) for text in shown), f"{line}\nis not in\n{done.stdout}")
        self.assertEqual(sum("verified" in line and line.endswith(" 0 wrong") for line in shown), 2, done.stdout)
        self.assertIn(f"job 'demo' opened for server 0 of 1 ({network}.1:7470)", done.stdout)
        self.assertIn("signal 15: stopping", done.stdout)

    def test_two_daemons_on_one_machine(self):
        self.two_daemons_on_one_machine()

    def test_two_daemons_on_one_machine_of_an_ordinary_user(self):
        if os.geteuid() != 0:
            self.skipTest("that is who ran the test before this one")
        try:
            subprocess.run([f"{BUILD}/apps/stackd/mercury-stackd", "--version"], capture_output=True, check=True, **NOBODY)
        except PermissionError:
            self.skipTest("nobody may run what is built here")
        self.two_daemons_on_one_machine(**NOBODY)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
