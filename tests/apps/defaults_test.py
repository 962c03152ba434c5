"""A daemon with the configuration that is shipped, and strangers. Over io_uring on loopback; no root needed.

usage: defaults_test.py MERCURY_STACKD_TOML STACKD CTL
"""
import os
import re
import signal
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import frames  # noqa: E402
from daemons import UDP_PORT, Daemon, some_address  # noqa: E402

SHIPPED, STACKD, CTL = sys.argv[1:4]
del sys.argv[1:4]
WAIT_S = 10


class DefaultsTest(unittest.TestCase):
    maxDiff = None
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.address = some_address()
        with open(SHIPPED) as file:
            text = file.read()
        # What each host has of its own.
        for key, value in (("kind", '"uring"'), ("address", f'["{self.address}/8"]'), ("udp_port", str(UDP_PORT)),
                           ("socket", f'"{folder.name}/stackd.sock"')):
            text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
            self.assertEqual(count, 1, key)
        path = f"{folder.name}/stackd.toml"
        with open(path, "w") as file:
            file.write(text)
        self.daemon = Daemon(STACKD, CTL, folder.name, path)
        self.addCleanup(self.daemon.stop, signal.SIGKILL)

    def refused(self, stranger, session, name, **hello):
        """What the daemon says to this HELLO, which has the right proof of a name without a secret."""
        nonce = os.urandom(16)
        stranger.sendto(frames.frame(frames.HELLO, frames.hello(name, session, nonce=nonce, **hello)), (self.address, UDP_PORT))
        kind, of, payload = frames.parse(stranger.recv(2048))
        self.assertEqual((kind, of), (frames.REFUSE, session), frames.parse_reason(payload))
        return frames.parse_reason(payload)[1]

    def test_strangers_get_nothing(self):
        before = self.daemon.holds()
        for number in range(1, 41):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.settimeout(WAIT_S)
                stranger.bind((some_address(), 0))
                self.assertIn("[[job]]", self.refused(stranger, number, "train"))
                self.refused(stranger, number + 100, "train", kind=frames.DATA_SESSION)
                self.assertIn("neither sockets.secret nor sockets.open",
                              self.refused(stranger, number + 200, "mercury.sockets", kind=frames.DATA_SESSION, features=frames.STREAMS))
        deadline = time.monotonic() + WAIT_S
        while self.daemon.holds() != before and time.monotonic() < deadline:  # counts are as of a moment ago
            time.sleep(0.05)
        self.assertEqual(self.daemon.holds(), before)
        self.assertEqual(self.daemon.counters()["sessions_opened"], 0)


if __name__ == "__main__":
    unittest.main()
