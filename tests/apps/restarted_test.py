"""Daemons that are killed and started again: who had sessions with them learns of it by their next life, not by
silence. Real daemons over io_uring on loopback, and real programs. No root needed.

usage: restarted_test.py STACKD CTL LIBMERCURYSTACK
"""
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402
from program import Program  # noqa: E402

STACKD, CTL, LIBRARY = sys.argv[1:4]
KEY_BYTES = 16
# Far longer than anybody here waits for a reply: silence tells nobody anything.
PATIENT = '[session]\npeer_timeout = "600s"\n'
SEALED = '[jobs]\nauthentication = "required"\n'
SECRET = '[[job]]\nname = "train"\nsecret = "hush"\n'
TENSOR = [0, 20000, "f32", "sum"]


class RestartedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def configure(self, name, extra=""):
        address = some_address()
        return address, config(self.folder, address, extra, name)

    def start(self, path):
        daemon = Daemon(STACKD, CTL, self.folder, path)
        self.addCleanup(daemon.stop, signal.SIGKILL)
        return daemon

    def key(self, daemon):
        with open(f"{daemon.socket}.reset", "rb") as file:
            return file.read()

    def job(self, worker, server, secret):
        """A program in a job of its own, which has exchanged a gradient."""
        program = Program(LIBRARY, worker.socket)
        self.addCleanup(program.kill)
        options = {"secret": secret} if secret else {}
        for reply in (program.call("open", name="train", rank=0, workers=1, servers=1,
                                   rendezvous=f"{server}:{UDP_PORT}", **options),
                      program.call("declare", tensors=[TENSOR]), program.call("exchange", tensor=0, rounds=1)):
            self.assertEqual((reply.code, reply.text), (0, ""))
        return program

    def expect_peer_learns(self, server="", worker="", secret=""):
        address, path = self.configure("server", PATIENT + server)
        daemon = self.start(path)
        here = self.start(self.configure("worker", PATIENT + (worker or "[jobs]\n") + "serve = false\n")[1])
        program = self.job(here, address, secret)
        self.assertEqual(here.counters()["sessions_sealed"] > 0, bool(secret))
        daemon.stop(signal.SIGKILL)
        daemon = self.start(path)
        reply = program.call("exchange", tensor=0, rounds=1)
        self.assertEqual(-reply.code, errno.EHOSTDOWN, reply.text)
        self.assertIn("was started again", reply.text)
        self.assertGreater(here.counters()["resets_received"], 0)
        self.assertGreater(daemon.counters()["resets_sent"], 0)
        self.assertEqual(here.counters()["drop_forged_answer"], 0)
        program.kill()
        self.job(here, address, secret)  # with the next life all is as it was

    def test_a_worker_learns_that_its_server_was_started_again(self):
        self.expect_peer_learns()

    def test_so_it_does_where_frames_are_authenticated(self):
        self.expect_peer_learns(SEALED + SECRET, SEALED, "hush")

    def test_each_life_leaves_its_key_to_the_next_and_to_nobody_else(self):
        _, path = self.configure("stackd")
        keys = set()
        umask = os.umask(0)
        self.addCleanup(os.umask, umask)
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            daemon = self.start(path)
            keys.add(self.key(daemon))
            self.assertEqual(stat.S_IMODE(os.stat(f"{daemon.socket}.reset").st_mode), 0o600)
            daemon.stop(how)
        self.assertEqual({len(key) for key in keys}, {KEY_BYTES})
        self.assertEqual(len(keys), 3)
        self.assertEqual([name for name in os.listdir(self.folder) if "reset" in name], ["stackd.sock.reset"])

    def test_a_daemon_that_does_not_start_changes_no_key(self):
        _, path = self.configure("stackd")
        daemon = self.start(path)
        key = self.key(daemon)
        again = subprocess.run([STACKD, "--config", path, "--set", "port.udp_port=17480"], capture_output=True, text=True,
                               timeout=20)
        self.assertEqual(again.returncode, 1)
        self.assertEqual(self.key(daemon), key)

    def test_what_no_daemon_left_there_is_refused_by_name(self):
        _, path = self.configure("stackd")
        file = f"{self.folder}/stackd.sock.reset"

        def write(data, mode=0o600):
            with open(file, "wb") as made:
                os.fchmod(made.fileno(), mode)
                made.write(data)

        rows = (("0 bytes", lambda: write(b"")),
                (f"{KEY_BYTES + 1} bytes", lambda: write(bytes(KEY_BYTES + 1))),
                ("others may read", lambda: write(bytes(KEY_BYTES), 0o640)),
                ("no file", lambda: os.mkdir(file)),
                ("no file", lambda: os.mkfifo(file, 0o600)),
                ("symbolic link", lambda: os.symlink("/dev/zero", file)))
        for said, make in rows:
            with self.subTest(said):
                make()
                refused = subprocess.run([STACKD, "--config", path], capture_output=True, text=True, timeout=60)
                self.assertEqual(refused.returncode, 1, refused.stderr)
                for words in (file, said, f"run: rm -r {file}", f"expected {KEY_BYTES} bytes"):
                    self.assertIn(words, refused.stderr)
                subprocess.run(["rm", "-r", file], check=True)
        self.assertEqual(len(self.key(self.start(path))), KEY_BYTES)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
