"""A job whose path carries less from one moment to the next, while gradients travel: real daemons on virtual hosts.
Needs root (network namespaces).

usage: shrinking_path_test.py STACKD CTL LIBMERCURYSTACK
"""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hosts_test  # noqa: E402
import netlab  # noqa: E402
from program import Program  # noqa: E402

LIBRARY = sys.argv[3]
TENSOR = [0, 200000, "f32", "sum"]
HOSTS = ("left", "right", "server")
SEALED = '[jobs]\nauthentication = "required"\n[[job]]\nname = "train"\nsecret = "hush"\n'


def lower_mtu(lab):
    for host in lab.hosts:
        netlab.sh("ip", "link", "set", host.port, "mtu", "1500", ns=lab.switch)


def add_switch(lab):
    """The server's, and a cable between both. (Where the other end of its own veth refuses a frame, af_packet sends
    nothing more; a switch farther away tells nobody.)"""
    for command in (("add", "br1", "mtu", "9000", "type", "bridge", "mcast_snooping", "0"), ("set", "br1", "up"),
                    ("add", "u0", "mtu", "9000", "type", "veth", "peer", "name", "u1", "mtu", "9000"),
                    ("set", "u0", "master", "br0", "up"), ("set", "u1", "master", "br1", "up"),
                    ("set", lab["server"].port, "master", "br1")):
        netlab.sh("ip", "link", *command, ns=lab.switch)


def lower_mtu_between(lab):
    for end in ("u0", "u1"):
        netlab.sh("ip", "link", "set", end, "mtu", "1500", ns=lab.switch)


class ShrinkingPathTest(unittest.TestCase):
    def expect_sums(self, port, prepare, shrink, sealed=False):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        lab = netlab.Lab(f"mp{os.getpid()}", HOSTS, mtu=9000)
        self.addCleanup(lab.close)
        prepare(lab)
        site = hosts_test.Site(folder.name)
        self.addCleanup(site.close)
        for host in lab.hosts:
            site.daemon(host.name, host.popen, f'{port}address = ["{host.ip}/24"]\n' + (SEALED if sealed else ""))
        programs = [Program(LIBRARY, site.path(f"{name}.sock")) for name in ("left", "right")]
        for program in programs:
            self.addCleanup(program.kill)

        def all_do(call, **arguments):
            for rank, program in enumerate(programs):
                program.begin(call, **({**arguments, "rank": rank} if call == "open" else arguments))
            for program in programs:
                reply = program.result()
                self.assertEqual((reply.code, reply.text), (0, ""))

        secret = {"secret": "hush"} if sealed else {}
        all_do("open", name="train", workers=2, servers=1, rendezvous=f"{lab['server'].ip}:7470", **secret)
        all_do("declare", tensors=[TENSOR])
        all_do("exchange", tensor=0, rounds=2)  # with frames of 9,000 bytes, each sum checked
        counted = lambda name: sum(site.counters(host)[0][name] for host in HOSTS)
        self.assertEqual(counted("parts_sent"), 0)
        self.assertEqual(counted("sessions_sealed") > 0, sealed)
        shrink(lab)
        all_do("exchange", tensor=0, rounds=3)
        self.assertGreater(counted("paths_doubted"), 0)
        self.assertGreater(counted("parts_sent"), 0)
        self.assertEqual((counted("peers_lost"), counted("drop_seal")), (0, 0))
        all_do("close")

    def test_io_uring(self):
        self.expect_sums('kind = "uring"\n', lambda lab: None, lower_mtu)

    def test_with_seals(self):
        self.expect_sums('kind = "uring"\n', lambda lab: None, lower_mtu, sealed=True)

    def test_af_packet(self):
        self.expect_sums('kind = "ethdev"\ndevice = "af_packet"\ninterface = "eth0"\nmtu = 9000\n',
                         add_switch, lower_mtu_between)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
