"""digits-train as a program. A worker that is interrupted fails, and its peer and its server hear why. Embedded engines, no root.

usage: interrupted_test.py DIGITS_TRAIN
"""
import os
import random
import signal
import subprocess
import sys
import time
import unittest

TRAINER = sys.argv.pop(1)
LIMIT_S = 60


def catches(process, number):
    with open(f"/proc/{process.pid}/status") as status:
        mask = next(line for line in status if line.startswith("SigCgt:"))
    return int(mask.split()[1], 16) >> (number - 1) & 1


class Interrupted(unittest.TestCase):
    def setUp(self):
        network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        server = f"{network}.1:17471"

        def start(role, rank, listen):
            process = subprocess.Popen(
                [TRAINER, "--role", role, "--rank", str(rank), "--workers", "2", "--servers", "1", "--rendezvous", server,
                 "--iterations", "1000000", "--mode", "embedded", "--listen", listen],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(self.end, process)
            return process

        self.server = start("server", 0, server)
        self.workers = [start("worker", rank, f"{network}.{2 + rank}") for rank in range(2)]
        deadline = time.monotonic() + LIMIT_S
        while not all(catches(process, signal.SIGINT) for process in [self.server, *self.workers]):  # the job is open
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def check(self, process, status, text):
        said, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, status, said)
        self.assertRegex(said, text)

    def test_the_others_hear_that_it_has_left(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            if number == signal.SIGTERM:
                self.setUp()
            self.workers[0].send_signal(number)
            self.check(self.workers[0], 128 + number, f"digits-train: interrupted by {number.name}")
            left = r"worker 0 of 2 \(.*\) left the job while tensor \d+ waits for it in round \d+"
            self.check(self.workers[1], 1, left)
            self.check(self.server, 1, "serve: .*" + left)

    def test_an_interrupted_server_is_named(self):
        self.server.send_signal(signal.SIGTERM)
        self.check(self.server, 143, "digits-train: interrupted by SIGTERM")
        for worker in self.workers:
            self.check(worker, 1, r"server 0 of 1 \(.*\)")


class Secrets(unittest.TestCase):
    def test_a_file_that_is_not_there(self):
        said = subprocess.run([TRAINER, "--mode", "embedded", "--listen", "127.0.0.1", "--rendezvous", "127.0.0.1:1"],
                              env={**os.environ, "MERCURY_SECRET": "", "MERCURY_SECRET_FILE": "/nowhere"}, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(said.returncode, 1)
        self.assertIn("MERCURY_SECRET_FILE: expected a readable file with the secret", said.stderr)


if __name__ == "__main__":
    unittest.main()
