"""torch.distributed over Mercury: processes as torchrun starts them, without anything beside.

usage: distributed_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import socket
import subprocess
import sys
import unittest

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distributed_program.py")
PATIENCE_S = 200


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_all(size, **variables):
    """(standard output, errors, status) of each rank."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
    environment.update(MERCURY_LIBRARY=LIBRARY, WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                       **variables)
    processes = [subprocess.Popen([sys.executable, PROGRAM, PACKAGE], env={**environment, "RANK": str(rank)}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(size)]
    try:
        return [process.communicate(timeout=PATIENCE_S) + (process.returncode,) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


class Distributed(unittest.TestCase):
    def test_collectives_subgroups_and_ddp(self):
        for size in (2, 3):
            for rank, (said, errors, status) in enumerate(run_all(size)):
                self.assertEqual((said, status), ("good\n", 0), f"rank {rank} of {size}: {errors}")

    def test_without_destroying_the_group_programs_end_in_order(self):
        for _ in range(5):
            for rank, (said, errors, status) in enumerate(run_all(2, JUST_EXITS="1")):
                self.assertEqual((said, status), ("good\n", 0), f"rank {rank}: {errors}")

    def test_a_rank_that_is_gone_fails_the_others(self):
        for rank, (_, errors, status) in enumerate(run_all(3, LEAVES="1")):
            self.assertEqual(status, 7 if rank == 1 else 1, errors)
            if rank != 1:
                self.assertRegex(errors, "1 of 3")


if __name__ == "__main__":
    unittest.main()
