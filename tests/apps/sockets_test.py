"""Programs that speak to mercury-stackd as the preload does (shim/socket/request.h), over the kernel's
own sockets, in a network namespace of their own: needs root.

usage: sockets_test.py STACKD CTL [unittest arguments]
"""
import array
import contextlib
import ctypes
import errno
import ipaddress
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import Daemon, config, some_address  # noqa: E402

STACKD, CTL = map(os.path.abspath, sys.argv[1:3])
MAGIC, VERSION = 0x4d534f43, 1
CONNECT, LISTEN, CLAIM, ENDED, SET, INFO = range(1, 7)
CONNECTED, KERNEL, DONE, FAILED = range(1, 5)
PRIORITY, ABORT = 1, 2
OTHER_NAMESPACE = 1
NOW, SOON, NOT = range(3)  # of LISTEN
REQUEST = struct.Struct("=IHBBBBHIQQ16sHH16sHH8x")
REPLY = struct.Struct("=IHBBQI16sHH16sHHIQQQQQ8x")
SO_COOKIE, SO_PASSRIGHTS = 57, 83
CLONE_NEWNET = 0x40000000
assert REQUEST.size == 80 and REPLY.size == 112


def packed(address):
    """Of IPv4, mapped."""
    ip = ipaddress.ip_address(address[0])
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


def knows_passrights():
    """Whether the kernel can refuse descriptors for who receives them (Linux 6.16)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as some, contextlib.suppress(OSError):
        some.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
        return True
    return False


class Reply:
    def __init__(self, data, descriptors):
        fields = REPLY.unpack(data)
        assert fields[:2] == (MAGIC, VERSION), fields
        self.kind, self.id, self.value = fields[2], fields[4], fields[5]
        self.local = (str(ipaddress.ip_address(fields[6]).ipv4_mapped or ipaddress.ip_address(fields[6])), fields[7])
        self.remote = (str(ipaddress.ip_address(fields[9]).ipv4_mapped or ipaddress.ip_address(fields[9])), fields[10])
        self.end = socket.socket(fileno=descriptors[0]) if descriptors else None
        if self.end is not None:
            self.end.settimeout(20)


class Program:
    """One connection of a program to the daemon."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(20)
        self.connection.connect(path)

    def send(self, kind, option=0, v6_only=False, value=0, cookie=0, number=0, local=("::", 0), remote=("::", 0)):
        self.connection.send(REQUEST.pack(MAGIC, VERSION, kind, option, 0, v6_only, 0, value, cookie, number,
                                          packed(local), local[1], 0, packed(remote), remote[1], 0))

    def reply(self):
        data, control, _, _ = self.connection.recvmsg(256, socket.CMSG_SPACE(4))
        if not data:
            raise EOFError
        descriptors = array.array("i")
        for _, _, fds in control:
            descriptors.frombytes(fds[:len(fds) - len(fds) % 4])
        return Reply(data, descriptors)

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        return self.reply()

    def listen(self, listener, listening=NOW):
        return self.ask(LISTEN, value=listening, cookie=cookie_of(listener), local=listener.getsockname())

    def claim(self, accepted):
        return self.ask(CLAIM, local=accepted.getsockname(), remote=accepted.getpeername())

    def close(self):
        self.connection.close()


def cookie_of(sock):
    return struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]


def listener_at(*address, backlog=16, reuse_port=False):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(address)
    listener.listen(backlog)
    listener.settimeout(20)
    return listener


def wait_until(holds, seconds=20):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


class SocketsTest(unittest.TestCase):
    EXTRA = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.daemon = Daemon(STACKD, CTL, folder.name, config(folder.name, some_address(), self.EXTRA))
        self.addCleanup(self.daemon.stop, signal.SIGKILL)
        self.path = self.daemon.socket + ".tcp"
        self.closing = contextlib.ExitStack()
        self.addCleanup(self.closing.close)

    def program(self):
        return self.closing.enter_context(contextlib.closing(Program(self.path)))

    def listener(self, *address, **how):
        return self.closing.enter_context(listener_at(*(address or ("127.0.0.1", 0)), **how))

    def sockets(self):
        return self.daemon.status()["sockets"]

    def connected(self, listener, server, client, remote=None):
        """The two ends of a connection: who connected, who accepted."""
        connecting = client.ask(CONNECT, remote=remote or listener.getsockname())
        self.assertEqual(connecting.kind, CONNECTED)
        accepted, _ = listener.accept()
        with accepted:
            claimed = server.claim(accepted)
        self.assertEqual(claimed.kind, CONNECTED)
        self.closing.enter_context(connecting.end)
        self.closing.enter_context(claimed.end)
        return connecting, claimed


class TwoPrograms(SocketsTest):
    def test_bytes_go_between_them_and_none_through_the_daemon(self):
        server, client, listener = self.program(), self.program(), self.listener()
        self.assertEqual(server.listen(listener).kind, DONE)
        connecting, claimed = self.connected(listener, server, client)
        self.assertEqual(connecting.remote, listener.getsockname())
        self.assertEqual(connecting.local[0], "127.0.0.1")
        self.assertEqual((claimed.local, claimed.remote), (connecting.remote, connecting.local))
        self.assertEqual(claimed.id, connecting.id)
        self.assertEqual(client.ask(INFO, number=connecting.id).kind, DONE)
        # The daemon stands still, and has nothing of it open any more.
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            connecting.end.sendall(b"ping" * 1000)
            self.assertEqual(claimed.end.recv(4000, socket.MSG_WAITALL), b"ping" * 1000)
            claimed.end.sendall(b"pong")
            self.assertEqual(connecting.end.recv(4), b"pong")
            claimed.end.close()
            self.assertEqual(connecting.end.recv(1), b"")
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        ended = client.ask(ENDED, number=connecting.id)
        self.assertEqual((ended.kind, ended.value), (DONE, 0))
        self.assertEqual(self.sockets(), {"programs": 2, "listeners": 1, "sessions": 0, "connections": 0,
                                          "unclaimed": 0, "local_connections": 1})
        self.assertIn("1 listeners", self.daemon.ctl("status").stdout)

    def test_nothing_stays_behind(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        client.ask(ENDED)
        before = self.daemon.descriptors()
        for _ in range(200):
            connecting, claimed = self.connected(listener, server, client)
            connecting.end.close()
            claimed.end.close()
        self.assertTrue(wait_until(lambda: self.daemon.descriptors() <= before), "descriptors stay open")
        with open("/proc/net/tcp") as file:
            port = f":{listener.getsockname()[1]:04X}"
            states = [line.split()[3] for line in file if port in line]
        self.assertEqual(states, ["0A"], "more than the listener is left, TIME_WAIT perhaps")

    def test_addresses_of_all_kinds(self):
        # Where it listens, what is connected to, from where.
        for at, to, source in (("0.0.0.0", "127.0.0.7", "127.0.0.1"), ("::", "127.0.0.1", "127.0.0.1"), ("::", "::1", "::1"),
                               ("10.9.0.1", "10.9.0.1", "10.9.0.1"), ("0.0.0.0", "10.9.0.1", "10.9.0.1"),
                               ("fd09::1", "fd09::1", "fd09::1")):
            with self.subTest(at=at, to=to), listener_at(at, 0) as listener:
                server, client = self.program(), self.program()
                self.assertEqual(server.listen(listener).kind, DONE)
                remote = (to, listener.getsockname()[1])
                connecting, claimed = self.connected(listener, server, client, remote)
                self.assertEqual((connecting.remote, connecting.local[0]), (remote, source))
                self.assertEqual((claimed.local, claimed.remote), (connecting.remote, connecting.local))
                server.close()
                client.close()

    def test_an_ordinary_client_stays_the_kernels(self):
        server, listener = self.program(), self.listener()
        server.listen(listener)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                self.assertEqual(server.claim(accepted).kind, KERNEL)

    def test_a_server_that_the_daemon_does_not_know_is_the_kernels(self):
        listener, client = self.listener(), self.program()
        self.assertEqual(client.ask(CONNECT, remote=listener.getsockname()).kind, KERNEL)
        listener.settimeout(0.1)
        with self.assertRaises(TimeoutError):
            listener.accept()

    def test_whoever_connects_before_it_listens_waits_for_it(self):
        server, client = self.program(), self.program()
        for _ in range(10):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                self.assertEqual(server.listen(listener, SOON).kind, DONE)
                began = time.monotonic()
                client.send(CONNECT, remote=listener.getsockname())
                # By then the daemon has looked for it: it serves one request after the other.
                self.assertEqual(server.ask(ENDED).kind, DONE)
                waits = select.select([client.connection], [], [], 0)[0] == []
                listener.listen()
                in_time = time.monotonic() - began < 0.15  # the daemon waits for 0.2 s
                connecting = client.reply()
                if in_time:
                    self.assertTrue(waits)
                    self.assertEqual(connecting.kind, CONNECTED)
                    connecting.end.close()
                    return
        self.fail("this machine is too busy to tell")

    def test_one_that_never_listens_is_nobody(self):
        server, client = self.program(), self.program()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            server.listen(listener, SOON)
            self.assertEqual(client.ask(CONNECT, remote=listener.getsockname()).kind, KERNEL)
            server.listen(listener, SOON)
            self.assertEqual(server.listen(listener, NOT).kind, DONE)
            self.assertEqual(self.sockets()["listeners"], 0)
            listener.listen()
            self.assertEqual(client.ask(CONNECT, remote=listener.getsockname()).kind, KERNEL)

    def test_another_that_took_the_port_is_not_knocked_at(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        address = listener.getsockname()
        listener.close()
        stranger = self.listener(*address)
        self.assertEqual(client.ask(CONNECT, remote=address).kind, KERNEL)
        stranger.settimeout(0.1)
        with self.assertRaises(TimeoutError):
            stranger.accept()
        self.assertEqual(self.sockets()["listeners"], 0)

    def test_another_at_this_very_address_is_not_knocked_at(self):
        server, client = self.program(), self.program()
        wide = self.listener("0.0.0.0", 0, reuse_port=True)
        server.listen(wide)
        address = ("127.0.0.1", wide.getsockname()[1])
        stranger = self.listener(*address, reuse_port=True)
        self.assertEqual(client.ask(CONNECT, remote=address).kind, KERNEL)
        stranger.settimeout(0.1)
        with self.assertRaises(TimeoutError):
            stranger.accept()
        # Elsewhere it is reached.
        self.connected(wide, server, client, ("127.0.0.2", address[1]))

    def test_a_listener_that_closes_resets_what_it_has_not_accepted(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        connecting = client.ask(CONNECT, remote=listener.getsockname())
        listener.close()
        self.assertEqual(connecting.end.recv(1), b"")
        ended = client.ask(ENDED, number=connecting.id)
        self.assertEqual((ended.kind, ended.value), (DONE, errno.ECONNRESET))

    def test_whoever_accepts_without_mercury_and_speaks_resets_it(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        connecting = client.ask(CONNECT, remote=listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"220 welcome")
            self.assertEqual(connecting.end.recv(1), b"")
        self.assertEqual(client.ask(ENDED, number=connecting.id).value, errno.ECONNRESET)

    def test_a_full_queue_is_left_to_the_kernel(self):
        server, client, listener = self.program(), self.program(), self.listener("127.0.0.1", 0, backlog=0)
        server.listen(listener)
        kinds = [client.ask(CONNECT, remote=listener.getsockname()).kind for _ in range(4)]
        self.assertEqual(kinds[0], CONNECTED)
        self.assertEqual(kinds[-1], KERNEL)
        self.assertEqual(self.sockets()["listeners"], 1, "it listens all the same")

    def test_a_queue_that_is_emptied_in_time_takes_it(self):
        server, client, listener = self.program(), self.program(), self.listener("127.0.0.1", 0, backlog=0)
        server.listen(listener)
        waiting = 0
        for _ in range(4):  # until one finds the queue full
            client.send(CONNECT, remote=listener.getsockname())
            waiting += 1
            time.sleep(0.02)
            if self.sockets()["unclaimed"] < waiting:
                break
            client.reply()
        for _ in range(waiting):
            accepted, _ = listener.accept()
            with accepted:
                self.assertEqual(server.claim(accepted).kind, CONNECTED)
        self.assertEqual(client.reply().kind, CONNECTED)

    def test_a_child_accepts_for_the_program_that_listens(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        connecting = client.ask(CONNECT, remote=listener.getsockname())
        child = os.fork()
        if child == 0:
            with contextlib.suppress(Exception):
                own = Program(self.path)
                accepted, _ = listener.accept()
                own.claim(accepted).end.sendall(b"child")
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(connecting.end.recv(5), b"child")

    def test_a_program_that_ends_listens_no_more(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        server.close()
        self.assertTrue(wait_until(lambda: self.sockets()["listeners"] == 0))
        self.assertEqual(client.ask(CONNECT, remote=listener.getsockname()).kind, KERNEL)

    def test_connections_outlive_the_daemon(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        connecting, claimed = self.connected(listener, server, client)
        pending = client.ask(CONNECT, remote=listener.getsockname())
        self.daemon.stop(signal.SIGKILL)
        self.assertEqual(pending.end.recv(1), b"", "one that was not accepted ends with it")
        connecting.end.sendall(b"still here")
        self.assertEqual(claimed.end.recv(10), b"still here")
        with self.assertRaises(EOFError):
            client.reply()


class BadPrograms(SocketsTest):
    def test_what_is_no_request_ends_that_program_alone(self):
        other, listener = self.program(), self.listener()
        other.listen(listener)
        good = REQUEST.pack(MAGIC, VERSION, ENDED, 0, 0, 0, 0, 0, 0, 0, bytes(16), 0, 0, bytes(16), 0, 0)
        for bad, words in ((b"x", "none of a program's sockets"), (b"y" * 80, "none of a program's sockets"),
                           (good[:-1], "none of a program's sockets"), (good + b"z", "none of a program's sockets"),
                           (good[:4] + b"\x09\x00" + good[6:], "two releases"), (good[:6] + b"\x63" + good[7:], "request 99"),
                           (bytes(200_000), "longer than")):
            program = self.program()
            with contextlib.suppress(OSError):  # the kernel may refuse to send as much
                program.connection.send(bad)
                with self.assertRaises((EOFError, ConnectionResetError)):
                    program.reply()
                self.assertTrue(wait_until(lambda: words in self.daemon.log()), f"{words}: {self.daemon.log()}")
        self.assertEqual(other.ask(ENDED, number=5).kind, DONE)
        self.assertEqual(self.sockets()["listeners"], 1)

    def test_descriptors_that_come_along_are_refused_or_closed(self):
        before = self.daemon.descriptors()
        program = self.program()
        with open("/dev/null") as file:
            def send():
                socket.send_fds(program.connection, [bytes(80)], [file.fileno()] * 50)
            if knows_passrights():
                self.assertRaises(PermissionError, send)
                program.connection.close()
            else:
                send()
                with self.assertRaises((EOFError, ConnectionResetError)):
                    program.reply()
        self.assertTrue(wait_until(lambda: self.daemon.descriptors() <= before))

    def test_a_second_request_before_the_reply_ends_it(self):
        server, client, listener = self.program(), self.program(), self.listener("127.0.0.1", 0, backlog=0)
        server.listen(listener)
        while client.ask(CONNECT, remote=listener.getsockname()).kind == CONNECTED:
            pass
        client.send(CONNECT, remote=listener.getsockname())  # waits for room in the queue
        client.send(ENDED)
        with self.assertRaises((EOFError, ConnectionResetError)):
            client.reply()
        self.assertIn("a request before the reply", self.daemon.log())

    def test_one_that_does_not_read_is_disconnected(self):
        program = self.program()
        program.connection.setblocking(False)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    program.send(ENDED)
        self.assertTrue(wait_until(lambda: "does not read its replies" in self.daemon.log()))
        self.assertEqual(self.program().ask(ENDED).kind, DONE)

    def test_a_program_that_goes_while_it_waits_leaves_nothing(self):
        server, client, listener = self.program(), self.program(), self.listener("127.0.0.1", 0, backlog=0)
        server.listen(listener)
        while client.ask(CONNECT, remote=listener.getsockname()).kind == CONNECTED:
            pass
        client.send(CONNECT, remote=listener.getsockname())
        client.close()
        listener.close()
        server.close()
        self.assertTrue(wait_until(lambda: self.sockets() == {
            "programs": 0, "listeners": 0, "sessions": 0, "connections": 0, "unclaimed": 0,
            "local_connections": self.sockets()["local_connections"]}), self.sockets())


class OtherNamespace(SocketsTest):
    def stranger(self):
        """A program on whose host 127.0.0.1 is another."""
        made = []

        def make():
            unshare_network()
            made.append(self.program())
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def test_all_that_a_program_there_asks_for_is_the_kernels(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        stranger = self.stranger()
        self.assertTrue(wait_until(lambda: "another network namespace" in self.daemon.log()))
        with self.listener() as another:
            for asked in (stranger.ask(CONNECT, remote=listener.getsockname()), stranger.listen(another)):
                self.assertEqual((asked.kind, asked.value), (KERNEL, OTHER_NAMESPACE))
            self.assertEqual(client.ask(CONNECT, remote=another.getsockname()).kind, KERNEL)
        connecting = client.ask(CONNECT, remote=listener.getsockname())
        self.assertEqual(connecting.kind, CONNECTED)
        accepted, _ = listener.accept()
        with accepted, connecting.end:
            self.assertEqual(stranger.claim(accepted).kind, KERNEL)
            claimed = server.claim(accepted)
        self.assertEqual(claimed.kind, CONNECTED)
        claimed.end.close()
        # What names no address is answered as to anybody.
        self.assertEqual(stranger.ask(ENDED, number=connecting.id).kind, DONE)
        self.assertEqual(self.daemon.log().count("another network namespace"), 1)


class Limits(SocketsTest):
    EXTRA = '[sockets]\nmax_programs = 3\nmax_connections = 2\nmax_listeners = 1\n'

    def test_one_too_many_of_each_is_the_kernels(self):
        server, client, listener = self.program(), self.program(), self.listener()
        server.listen(listener)
        self.assertEqual(server.listen(self.listener()).kind, KERNEL)
        connecting = [client.ask(CONNECT, remote=listener.getsockname()) for _ in range(3)]
        self.assertEqual([one.kind for one in connecting], [CONNECTED, CONNECTED, KERNEL])
        accepted, _ = listener.accept()
        with accepted:
            server.claim(accepted)
        self.assertEqual(client.ask(CONNECT, remote=listener.getsockname()).kind, CONNECTED)
        self.program()
        with self.assertRaises((EOFError, ConnectionResetError, BrokenPipeError)):
            self.program().ask(ENDED)
        self.assertIn("sockets.max_programs = 3", self.daemon.log())


    def test_listeners_that_were_closed_make_room(self):
        server = self.program()
        for _ in range(3):
            with listener_at("127.0.0.1", 0) as listener:
                # The daemon asks the kernel once a second at most.
                self.assertTrue(wait_until(lambda now=listener: server.listen(now).kind == DONE))
                self.assertEqual(self.sockets()["listeners"], 1)
        kept = self.listener()
        self.assertTrue(wait_until(lambda: server.listen(kept).kind == DONE))
        self.assertEqual(server.listen(self.listener()).kind, KERNEL)
        self.assertTrue(wait_until(lambda: server.listen(self.listener()).kind == KERNEL and "sockets.max_listeners = 1" in self.daemon.log()))


class Switches(SocketsTest):
    EXTRA = "[sockets]\nserve = false\n"

    def test_a_daemon_that_serves_no_sockets_has_no_socket_for_them(self):
        self.assertFalse(os.path.exists(self.path))
        self.assertIsNone(self.sockets())
        self.assertNotIn("sockets", self.daemon.ctl("status").stdout)

    def test_the_socket_goes_with_the_daemon(self):
        folder = os.path.dirname(self.path)
        other = Daemon(STACKD, CTL, folder, config(folder, some_address(), f'[sockets]\nsocket = "{folder}/own"\n', "other"))
        self.addCleanup(other.stop, signal.SIGKILL)
        self.assertEqual(os.stat(f"{folder}/own").st_mode & 0o777, 0o660)
        other.stop()
        self.assertFalse(os.path.exists(f"{folder}/own"))


def unshare_network():
    """Of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        sys.exit(f"needs root: {os.strerror(ctypes.get_errno())}")


def enter_namespace():
    unshare_network()
    for arguments in (("link", "set", "lo", "up"), ("addr", "add", "10.9.0.1/24", "dev", "lo"),
                      ("addr", "add", "fd09::1/64", "dev", "lo", "nodad")):
        subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    enter_namespace()
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], warnings="ignore")
