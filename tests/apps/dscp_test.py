"""Traffic classes (port.dscp) as they are on the link: every frame of a job between two virtual hosts, read from
the switch's ends of their cables. Needs root (network namespaces).

usage: dscp_test.py STACKD CTL LIBMERCURYSTACK
"""
import collections
import ctypes
import os
import socket
import struct
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import frames  # noqa: E402
import hosts_test  # noqa: E402
import netlab  # noqa: E402
from program import Program  # noqa: E402

LIBRARY = sys.argv[3]
TENSOR = [0, 20000, "f32", "sum"]
UDP_PORT = 7470
ECT0 = 2
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
Seen = collections.namedtuple("Seen", "type priority class_byte")


def wire_of(namespace, interface):
    """A socket that reads an interface of another network namespace: that of the thread that makes it."""
    made = []

    def make():
        with open(f"/run/netns/{namespace}") as there:
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        wire.bind((interface, 0))
        made.append(wire)

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    return made[0]


def seen_in(packet):
    """What a Mercury frame says and the class that it has; None: it is another's."""
    kind, = struct.unpack_from(">H", packet, 12)
    if kind not in (ETH_P_IP, ETH_P_IPV6):
        return None
    at = 14 + (20 if kind == ETH_P_IP else 40)
    protocol = packet[14 + (9 if kind == ETH_P_IP else 6)]
    if protocol != socket.IPPROTO_UDP or UDP_PORT not in struct.unpack_from(">HH", packet, at):
        return None
    frame = packet[at + 8:]
    if kind == ETH_P_IP:
        total = sum(struct.unpack_from(">10H", packet, 14))
        assert (total & 0xFFFF) + (total >> 16) in (0xFFFF, 0x1FFFE), f"checksum of {packet[14:34].hex()}"
    class_byte = packet[15] if kind == ETH_P_IP else struct.unpack_from(">H", packet, 14)[0] >> 4 & 0xFF
    datagram = frame[3] in (frames.PUSH, frames.RESULT)
    return Seen(frame[3], struct.unpack_from(">H", frame, 36)[0] if datagram else None, class_byte)


class DscpTest(unittest.TestCase):
    def run_job(self, port, v6, dscp):
        """All frames of a job whose gradients have priorities of each class."""
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        lab = netlab.Lab(f"md{os.getpid()}", ["worker", "server"])
        self.addCleanup(lab.close)
        site = hosts_test.Site(folder.name)
        self.addCleanup(site.close)
        wires = [wire_of(lab.switch, host.port) for host in lab.hosts]
        for wire in wires:
            self.addCleanup(wire.close)
        for host in lab.hosts:
            address = f"{host.ip6}/64" if v6 else f"{host.ip}/24"
            site.daemon(host.name, host.popen, f'{port}address = ["{address}"]\n{dscp}')
        program = Program(LIBRARY, site.path("worker.sock"))
        self.addCleanup(program.kill)
        server = lab["server"]
        rendezvous = f"[{server.ip6}]" if v6 else server.ip
        for reply in (program.call("open", name="train", rank=0, workers=1, servers=1, rendezvous=f"{rendezvous}:{UDP_PORT}"),
                      program.call("declare", tensors=[TENSOR])):
            self.assertEqual((reply.code, reply.text), (0, ""))
        for priority in (0, 15, 16, 255, 256, 65535):
            handle = program.call("push_pull", tensor=0, priority=priority).fields["handle"]
            reply = program.call("wait", handle=handle, timeout_ms=60000)
            self.assertEqual((reply.code, reply.text), (0, ""))
        found = set()
        for wire in wires:
            wire.setblocking(False)
            try:
                while True:
                    found.add(seen_in(wire.recv(65536)))
            except BlockingIOError:
                pass
        self.doCleanups()
        return found - {None}

    def expect_classes(self, port, dscp, class_of):
        for v6 in (False, True):
            with self.subTest(port=port, ipv6=v6, dscp=dscp):
                found = self.run_job(port, v6, dscp)
                for one in found:
                    self.assertEqual(one.class_byte, class_of(one.priority) << 2 | ECT0, one)
                for kind in (frames.PUSH, frames.RESULT):
                    self.assertEqual({one.priority for one in found if one.type == kind}, {0, 15, 16, 255, 256, 65535})
                others = {one.type for one in found if one.priority is None}
                self.assertLessEqual({frames.HELLO, frames.HELLO_ACK, frames.ACK, frames.PING, frames.CONTROL}, others)

    @staticmethod
    def configured(priority):
        if priority is None or priority < 16:
            return 46
        return 26 if priority < 256 else 0

    UDP_SOCKET = 'kind = "uring"\n'
    PACKET_SOCKET = 'kind = "ethdev"\ndevice = "af_packet"\ninterface = "eth0"\n'
    CLASSES = 'dscp = "16:46, 256:26"\n'

    def test_io_uring(self):
        self.expect_classes(self.UDP_SOCKET, self.CLASSES, self.configured)

    def test_ethdev(self):
        self.expect_classes(self.PACKET_SOCKET, self.CLASSES, self.configured)

    def test_by_default_there_are_none(self):
        for port in (self.UDP_SOCKET, self.PACKET_SOCKET):
            self.expect_classes(port, "", lambda priority: 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
