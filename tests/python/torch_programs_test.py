"""ScheduledOptimizer in programs of their own: loaders that fork, and Ctrl-C.

usage: torch_programs_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import signal
import sys
import unittest

import programs

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_program.py")
PATIENCE_S = 120


class Programs(unittest.TestCase):
    def start(self, what):
        job = {"MERCURY_WORKERS": "2", "MERCURY_ROLE": "worker", "MERCURY_RENDEZVOUS": f"127.0.0.1:{programs.free_port()}"}
        started = [programs.start([sys.executable, PROGRAM, PACKAGE, what], LIBRARY, MERCURY_RANK=str(rank), **job) for rank in range(2)]
        for program in started:
            self.addCleanup(programs.end, program)
        return started

    def test_loaders_that_fork(self):
        (first, errors, status), (second, other_errors, other_status) = programs.outcomes_of(self.start("load"), PATIENCE_S)
        self.assertEqual((status, other_status), (0, 0), errors + other_errors)
        self.assertEqual(first, second)
        self.assertEqual(len(first), 65)

    def test_an_interrupt_while_the_forward_pass_waits(self):
        first, second = self.start("interrupt")
        for program in (first, second):
            self.assertEqual(program.stdout.readline(), "ready\n")
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=PATIENCE_S)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual(first.returncode, -signal.SIGINT, errors)
        _, errors = second.communicate("\n", timeout=PATIENCE_S)
        self.assertEqual(second.returncode, 1, errors)
        self.assertRegex(errors, "JobFailedError: .* the gradient of 0.weight: .*(worker|server) 0 of 2")


if __name__ == "__main__":
    unittest.main()
