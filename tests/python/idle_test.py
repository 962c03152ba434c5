"""Whoever waits for another worker leaves the processor to others: none of its threads spins.

usage: idle_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import socket
import sys
import unittest

from programs import free_port, outcomes_of, start

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "idle_program.py")
WORKERS, PATIENCE_S = 2, 200
# One thread that spins takes 1, or what other load leaves of it; waiting took 0.01 or less.
MOST = 0.5


class Idle(unittest.TestCase):
    def test_no_thread_spins_while_a_sum_is_waited_for(self):
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(socket.SOCK_STREAM)), "WORLD_SIZE": str(WORKERS)}
        command = [sys.executable, PROGRAM, PACKAGE, f"127.0.0.1:{free_port()}"]
        outcomes = outcomes_of([start(command, LIBRARY, RANK=str(rank), OMP_NUM_THREADS="1", **where) for rank in range(WORKERS)], PATIENCE_S)
        for rank, (said, errors, status) in enumerate(outcomes):
            self.assertEqual(status, 0, errors)
            waits = [line.split() for line in said.splitlines()]
            self.assertEqual([what for what, _, _ in waits], ["collective", "scheduled"])
            for what, spent, waited in waits:
                self.assertLess(float(spent), MOST * float(waited), f"worker {rank}, {what}")


if __name__ == "__main__":
    unittest.main()
