"""Two paths of equal cost between a worker and a server, of which routers choose one by a frame's addresses and ports:
real daemons on virtual hosts. What is counted are bytes on each path, not time. Needs root (network namespaces).

usage: equal_paths_test.py STACKD CTL LIBMERCURYSTACK
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hosts_test  # noqa: E402
import netlab  # noqa: E402
from program import Program  # noqa: E402

LIBRARY = sys.argv[3]
TENSOR = [0, 1_000_000, "f32", "sum"]
ROUNDS = 4
PATHS = ("path0", "path1")
RATE_MBIT = 400
MOST_PORTS = 16


class Lab:
    """worker - router - (two links) - router - server: networks of their own at both ends."""

    def __init__(self, prefix):
        self.namespaces = [f"{prefix}-{name}" for name in ("worker", "near", "far", "server")]
        self.close()
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self):
        worker, near, far, server = self.namespaces
        for ns in self.namespaces:
            netlab.sh("ip", "netns", "add", ns)
            netlab.sh("ip", "link", "set", "lo", "up", ns=ns)
            # Its choice by addresses and ports; and it forwards.
            netlab.sh("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1", ns=ns)
        self.join(worker, "eth0", "10.78.1.2", near, "host", "10.78.1.1")
        self.join(server, "eth0", "10.78.2.2", far, "host", "10.78.2.1")
        for i, path in enumerate(PATHS):
            self.join(near, path, f"10.78.{10 + i}.1", far, path, f"10.78.{10 + i}.2")
            for ns in (near, far):
                netlab.sh("tc", "qdisc", "add", "dev", path, "root", "tbf", "rate", f"{RATE_MBIT}mbit", "burst", "100000",
                          "limit", "1000000", ns=ns)
        netlab.sh("ip", "route", "add", "default", "via", "10.78.1.1", ns=worker)
        netlab.sh("ip", "route", "add", "default", "via", "10.78.2.1", ns=server)
        for ns, network, end in ((near, 2, 2), (far, 1, 1)):
            hops = [word for i in range(len(PATHS)) for word in ("nexthop", "via", f"10.78.{10 + i}.{end}", "weight", "1")]
            netlab.sh("ip", "route", "add", f"10.78.{network}.0/24", *hops, ns=ns)

    @staticmethod
    def join(one, name, ip, other, its_name, its_ip):
        netlab.sh("ip", "link", "add", name, "type", "veth", "peer", "name", its_name, "netns", other, ns=one)
        for ns, interface, address in ((one, name, ip), (other, its_name, its_ip)):
            # What the kernel sends over veth otherwise has unfilled checksums and frames beyond the MTU.
            netlab.sh("ethtool", "-K", interface, "tx", "off", "tso", "off", "gso", "off", ns=ns)
            netlab.sh("ip", "address", "add", f"{address}/24", "dev", interface, ns=ns)
            netlab.sh("ip", "link", "set", interface, "up", ns=ns)

    def popen_on(self, ns):
        def popen(command, **options):
            return subprocess.Popen(["nsenter", f"--net=/run/netns/{ns}", *command], **options)
        return popen

    def sent(self):
        """Bytes so far on each path: from the worker, and from the server."""
        _, near, far, _ = self.namespaces
        return [[json.loads(netlab.sh("ip", "-s", "-j", "link", "show", "dev", path, ns=ns))[0]["stats64"]["tx"]["bytes"]
                 for path in PATHS] for ns in (near, far)]

    def close(self):
        for ns in self.namespaces:
            netlab.sh("ip", "netns", "delete", ns, check=False)


class EqualPathsTest(unittest.TestCase):
    def bytes_of_job(self, port, worker_ports, server_ports, engines=1):
        """What each path has carried of a job, from the worker and from the server; its sums are right."""
        self.doCleanups()
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        lab = Lab(f"me{os.getpid()}")
        self.addCleanup(lab.close)
        site = hosts_test.Site(folder.name)
        self.addCleanup(site.close)
        for ns, name, ip, ports in ((lab.namespaces[0], "worker", "10.78.1.2", worker_ports),
                                    (lab.namespaces[3], "server", "10.78.2.2", server_ports)):
            site.daemon(name, lab.popen_on(ns),
                        f'{port}address = ["{ip}/24"]\nsource_ports = {ports}\nengines = {engines}\n')
        program = Program(LIBRARY, site.path("worker.sock"))
        self.addCleanup(program.kill)
        before = lab.sent()
        for call, arguments in (("open", dict(name="train", rank=0, workers=1, servers=1, rendezvous="10.78.2.2:7470")),
                                ("declare", dict(tensors=[TENSOR])), ("exchange", dict(tensor=0, rounds=ROUNDS))):
            reply = program.call(call, **arguments)
            self.assertEqual((reply.code, reply.text), (0, ""))
        after = lab.sent()
        for name in ("worker", "server"):
            for counters in site.counters(name):
                self.assertEqual(counters["drop_foreign_source"], 0)
        return [[b - a for a, b in zip(*ends)] for ends in zip(before, after)]

    def expect_both(self, carried):
        self.assertGreater(sum(carried), 4 * TENSOR[1] * ROUNDS)
        # Of 16 ports none is on one of the paths in one run of 30,000.
        self.assertGreater(min(carried), sum(carried) / 32)

    def expect_one(self, carried):
        self.assertGreater(sum(carried), 4 * TENSOR[1] * ROUNDS)
        self.assertLess(min(carried), sum(carried) / 32)

    def expect_paths(self, port):
        pushed, summed = self.bytes_of_job(port, 1, 1)
        self.expect_one(pushed)
        self.expect_one(summed)
        pushed, summed = self.bytes_of_job(port, MOST_PORTS, 1)
        self.expect_both(pushed)
        self.expect_one(summed)
        pushed, summed = self.bytes_of_job(port, MOST_PORTS, MOST_PORTS)
        self.expect_both(pushed)
        self.expect_both(summed)

    def test_io_uring(self):
        self.expect_paths('kind = "uring"\n')

    def test_af_packet(self):
        self.expect_paths('kind = "ethdev"\ndevice = "af_packet"\ninterface = "eth0"\n')

    def test_af_xdp(self):
        self.expect_paths('kind = "ethdev"\ndevice = "af_xdp"\ninterface = "eth0"\n')

    def test_two_engines(self):
        for carried in self.bytes_of_job('kind = "uring"\n', MOST_PORTS, MOST_PORTS, engines=2):
            self.expect_both(carried)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
