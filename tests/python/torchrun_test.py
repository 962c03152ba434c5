"""Mercury's workers under torchrun.

usage: torchrun_test.py PACKAGE_FOLDER LIBRARY STACKD
"""
import os
import re
import signal
import socket
import sys
import tempfile
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "apps")]

import daemons  # noqa: E402
import elastic_runs  # noqa: E402
import programs  # noqa: E402
from elastic_runs import WORKERS  # noqa: E402

PROGRAM = os.path.join(HERE, "torchrun_program.py")
PATIENCE_S = 120
END_S = 25  # torchrun itself kills workers that have not ended 30 s after its signal


def running(group, workers):
    """Which of these workers, and of the processes of torchrun's group, there are: [PID]"""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, _, its_group = file.read().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z" and (int(its_group) == group or int(pid) in workers):
            found.append(int(pid))
    return found


class Torchrun(unittest.TestCase):
    def start(self, workers, *command, options=(), **variables):
        """In a process group of its own, as a shell does. -r, -t: without them Debian's 1.13 fails on Python 3.11."""
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        torchrun = ["setsid", sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1", "--log_dir", folder.name,
                    "--nproc_per_node", str(workers), "--master_addr", "127.0.0.1", "--master_port", str(programs.free_port(socket.SOCK_STREAM))]
        program = programs.start([*torchrun, *options, *command], LIBRARY, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", **variables)
        self.addCleanup(self.end, program)
        return program

    @staticmethod
    def end(program):
        if program.poll() is None:
            program.terminate()  # which it passes on
            program.wait(PATIENCE_S)
        programs.end(program)

    def test_ddp(self):
        program = self.start(2, os.path.join(HERE, "distributed_program.py"), PACKAGE, "check_ddp")
        said, errors = program.communicate(timeout=PATIENCE_S)
        self.assertEqual(program.returncode, 0, errors)
        self.assertEqual(re.findall(r"good$", said, re.M), ["good"] * 2, errors)

    def interrupt(self, what, **variables):
        program = self.start(2, PROGRAM, what, PACKAGE, **variables)
        workers = []
        while len(workers) < 2:
            line = program.stdout.readline()
            self.assertTrue(line, "it ended before both workers were ready")
            workers += map(int, re.findall(r"ready (\d+)$", line))
        self.assertLessEqual(set(workers), set(running(program.pid, workers)))
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        program.communicate(timeout=END_S)
        self.assertEqual(running(program.pid, workers), [])

    def test_ctrl_c_ends_workers_that_train(self):
        self.interrupt("scheduled", MERCURY_RENDEZVOUS=f"127.0.0.1:{programs.free_port()}")

    def test_ctrl_c_ends_workers_in_collectives(self):
        self.interrupt("collectives")

    def test_a_worker_that_is_killed_is_started_again_alone(self):
        """A torchrun for each, which starts its own again and leaves the others alone."""
        address, daemon = daemons.start_one(STACKD, self.addCleanup)

        def start(rank, *kills):
            _, _, *arguments = elastic_runs.command(PACKAGE, rank, f"{address}:{daemons.UDP_PORT}", elastic_runs.ITERATIONS, kills)
            return self.start(1, PROGRAM, "elastic", *arguments, options=("--max_restarts", "1", "--monitor_interval", "0.5"),
                              MERCURY_SOCKET=daemon.socket)
        started = [start(0), start(1, "later-gradient:9:before"), start(2)]
        self.assertEqual(len(started), WORKERS)
        weights = set()
        for rank, (said, errors, status) in enumerate(programs.outcomes_of(started, PATIENCE_S)):
            self.assertEqual(status, 0, errors)
            self.assertEqual(re.findall(r"life (\d)$", said, re.M), ["0", "1"] if rank == 1 else ["0"], errors)
            weights |= set(re.findall(r"([0-9a-f]{64}) ", said))
        self.assertEqual(len(weights), 1, weights)


if __name__ == "__main__":
    unittest.main()
