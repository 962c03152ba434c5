"""The package where a daemon runs: whether a context is attached to it, and a sum through it.

usage: daemon_test.py PACKAGE_FOLDER LIBRARY STACKD
"""
import errno
import os
import signal
import sys
import unittest

PACKAGE, LIBRARY, STACKD = sys.argv[1:4]
del sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [PACKAGE, os.path.join(HERE, "..", "apps")]
os.environ["MERCURY_LIBRARY"] = LIBRARY

import daemons  # noqa: E402
import mercurystack  # noqa: E402


class Modes(unittest.TestCase):
    def setUp(self):
        self.address, self.daemon = daemons.start_one(STACKD, self.addCleanup)

    def test_a_context_says_what_it_is_attached_to(self):
        for asked in ("auto", "daemon"):
            with mercurystack.Context(asked, socket=self.daemon.socket) as context:
                self.assertEqual(context.mode, "daemon")
        with self.assertRaisesRegex(ValueError, "the context is closed"):
            context.mode
        with mercurystack.Context("embedded", listen="127.0.0.1") as context:
            self.assertEqual(context.mode, "embedded")

    def test_a_daemon_that_is_named_and_gone(self):
        os.environ["MERCURY_SOCKET"] = self.daemon.socket
        self.addCleanup(os.environ.pop, "MERCURY_SOCKET")
        with mercurystack.Context() as context:
            self.assertEqual(context.mode, "daemon")
        self.daemon.stop()
        # Where a socket is named, nothing else is meant.
        for asked in ("auto", "daemon"):
            with self.assertRaises(mercurystack.MercuryError):
                mercurystack.Context(asked)

    def test_a_timeout_is_the_librarys_or_refused_by_its_name(self):
        for good in (None, 0, 200, 2**31 - 1, -1):
            mercurystack.Context("daemon", socket=self.daemon.socket, daemon_timeout_ms=good).close()
        for bad, error in ((199, mercurystack.MercuryError), (-2, ValueError), (2**31, ValueError), (0.8, TypeError)):
            with self.assertRaisesRegex(error, "daemon_timeout_ms"):
                mercurystack.Context("daemon", socket=self.daemon.socket, daemon_timeout_ms=bad)

    def test_a_program_gives_up_a_daemon_that_is_stopped(self):
        with mercurystack.Context("daemon", socket=self.daemon.socket, daemon_timeout_ms=800) as context:
            self.daemon.process.send_signal(signal.SIGSTOP)
            self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
            with self.assertRaisesRegex(mercurystack.MercuryError, "stands still") as failed:
                context.zeros(1000)
            self.assertEqual(failed.exception.errno, errno.EPIPE)

    def test_a_sum_through_it(self):
        size = {"workers": 1, "servers": 1, "rendezvous": f"{self.address}:{daemons.UDP_PORT}"}
        with mercurystack.Context(socket=self.daemon.socket) as context, context.open_job("sum", role="worker", rank=0, **size) as job:
            array = context.zeros(1000)
            array[:] = 3
            job.declare(1, array).push_pull().wait(60)
            self.assertTrue((array == 3).all())


if __name__ == "__main__":
    unittest.main()
