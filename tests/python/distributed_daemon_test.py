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


if __name__ == "__main__":
    unittest.main()
