"""ScheduledOptimizer in programs of their own: loaders that fork, and Ctrl-C.

usage: torch_programs_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import signal
import subprocess
import sys
import unittest

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [PACKAGE, HERE]
os.environ["MERCURY_LIBRARY"] = LIBRARY

from cluster import FOREVER_S, free_port  # noqa: E402


class Programs(unittest.TestCase):
    def start(self, what):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        environment.update(MERCURY_LIBRARY=LIBRARY, MERCURY_WORKERS="2", MERCURY_ROLE="worker",
                           MERCURY_RENDEZVOUS=f"127.0.0.1:{free_port()}")
        programs = [subprocess.Popen([sys.executable, os.path.join(HERE, "torch_program.py"), PACKAGE, what], text=True,
                                     env={**environment, "MERCURY_RANK": str(rank)}, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
        for program in programs:
            self.addCleanup(self.end, program)
        return programs

    def end(self, program):
        if program.poll() is None:
            program.kill()
        program.communicate()

    def test_loaders_that_fork(self):
        said = []
        for program in self.start("load"):
            output, errors = program.communicate(timeout=FOREVER_S)
            self.assertEqual(program.returncode, 0, errors)
            said.append(output)
        self.assertEqual(said[0], said[1])
        self.assertEqual(len(said[0]), 65)

    def test_an_interrupt_while_the_forward_pass_waits(self):
        first, second = self.start("interrupt")
        for program in (first, second):
            self.assertEqual(program.stdout.readline(), "ready\n")
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=FOREVER_S)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual(first.returncode, -signal.SIGINT, errors)
        _, errors = second.communicate("\n", timeout=FOREVER_S)
        self.assertEqual(second.returncode, 1, errors)
        self.assertRegex(errors, "JobFailedError: .* the gradient of 0.weight: .*(worker|server) 0 of 2")


if __name__ == "__main__":
    unittest.main()
