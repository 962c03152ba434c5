"""torch.distributed where daemons serve: a rank on each of two hosts.

usage: distributed_daemon_test.py PACKAGE_FOLDER LIBRARY STACKD
"""
import os
import socket
import sys
import tempfile
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "apps"))

import daemons  # noqa: E402
from programs import free_port, outcomes_of, start  # noqa: E402

PATIENCE_S = 200


class Daemons(unittest.TestCase):
    def test_collectives_and_ddp(self):
        directory = self.enterContext(tempfile.TemporaryDirectory())
        hosts = []
        for name in ("first", "second"):
            address = daemons.some_address()
            hosts.append((address, daemons.Daemon(STACKD, None, directory, daemons.config(directory, address, name=name))))
            self.addCleanup(hosts[-1][1].stop)
        terms = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(socket.SOCK_STREAM)), "OMP_NUM_THREADS": "1",
                 "MERCURY_RENDEZVOUS": ",".join(f"{address}:{daemons.UDP_PORT}" for address, _ in hosts)}
        command = [sys.executable, os.path.join(HERE, "distributed_program.py"), PACKAGE, "daemons"]
        outcomes = outcomes_of([start(command, LIBRARY, RANK=str(rank), MERCURY_SOCKET=daemon.socket, **terms)
                                for rank, (_, daemon) in enumerate(hosts)], PATIENCE_S)
        for rank, (said, errors, status) in enumerate(outcomes):
            self.assertEqual((said, status), ("good\n", 0), f"rank {rank}: {errors}")

    def test_a_rank_that_does_not_reach_the_daemon_which_the_other_reaches(self):
        """It has an engine of its own, at an address of another family than the daemon's."""
        directory = self.enterContext(tempfile.TemporaryDirectory())
        address = daemons.some_address()
        daemon = daemons.Daemon(STACKD, None, directory, daemons.config(directory, address))
        self.addCleanup(daemon.stop)
        place = f"{address}:{daemons.UDP_PORT}"
        terms = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(socket.SOCK_STREAM)), "OMP_NUM_THREADS": "1",
                 "MERCURY_RENDEZVOUS": place}
        own = ({"MERCURY_SOCKET": daemon.socket}, {"MERCURY_LISTEN": "[::1]"})
        command = [sys.executable, os.path.join(HERE, "distributed_program.py"), PACKAGE, "daemons missing"]
        outcomes = outcomes_of([start(command, LIBRARY, RANK=str(rank), **own[rank], **terms) for rank in range(2)], PATIENCE_S)
        for rank, (_, errors, status) in enumerate(outcomes):
            why = "missing.*: worker 1 of 2" if rank == 0 else f"{place} is of another address family"
            self.assertEqual(status, 1, errors)
            self.assertRegex(errors, f"GroupError: .*rank {rank} of 2 .*daemons at {place} .*: {why}")


if __name__ == "__main__":
    unittest.main()
