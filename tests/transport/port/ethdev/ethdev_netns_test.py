"""The ethdev port over real devices in network namespaces: ethdev_netns_test.py PINGPONG FOREIGN ACCESS_PORT CASE.

PINGPONG is ethdev_pingpong, FOREIGN an XDP object file that is not Mercury's, ACCESS_PORT one that
makes a switch's port one of a VLAN. Needs root; exits 77 (skipped) without.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "tools"))
from netlab import Lab, sh  # noqa: E402

PINGPONG = FOREIGN = ACCESS_PORT = ""
PORT = 7470
INTERFACE = "eth0"  # of each host


def two_hosts(mtu=1500):
    """Two hosts behind a switch, in namespaces that no other test uses."""
    return Lab(f"ethdev{os.getpid()}", ["a", "b"], mtu=mtu)


class Program:
    """A running ethdev_pingpong."""

    def __init__(self, host, role, *arguments):
        command = [PINGPONG, role, *(str(argument) for argument in arguments)]
        self.process = host.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = None

    def wait_ready(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"did not start: {self.process.stderr.read()}")
        self.ready = json.loads(line)
        return self

    def finish(self, stop=False):
        """Exit status, one report per engine, and what it said on stderr."""
        if stop:
            self.process.terminate()
        out, err = self.process.communicate(timeout=40)
        reports = [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, [r for r in reports if "good" in r], err

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def counters_of(host):
    """ICMP unreachables sent and received by the kernel of a host, both families."""
    text = sh("cat", "/proc/net/snmp", "/proc/net/snmp6", ns=host.ns)
    lines = [line.split() for line in text.splitlines()]
    icmp = [line for line in lines if line[0] == "Icmp:"]
    values = dict(zip(icmp[0][1:], (int(value) for value in icmp[1][1:])))
    total = values["InDestUnreachs"] + values["OutDestUnreachs"]
    for line in lines:
        if line[0] in ("Icmp6InDestUnreachs", "Icmp6OutDestUnreachs"):
            total += int(line[1])
    return total


def echo_from_kernel(host, *addresses):
    """A socket of the kernel on `host` gets its datagrams back: headers satisfy a real receiver."""
    script = f"""
import socket, sys
for ip in {addresses!r}:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for size in (1, 13, 1400):
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.settimeout(0.5)
        data = (bytes(range(200)) * 8)[:size]
        for attempt in range(20):
            sock.sendto(data, (ip, {PORT}))
            try:
                assert sock.recv(9000) == data
                break
            except TimeoutError:
                pass
        else:
            sys.exit("no answer from " + ip)
"""
    sh(sys.executable, "-c", script, ns=host.ns)


class EthdevCase(unittest.TestCase):
    def setUp(self):
        self.programs = []

    def tearDown(self):
        for program in self.programs:
            if not program.process.stdout.closed:
                program.kill()

    def start(self, host, role, *arguments):
        program = Program(host, role, *arguments)
        self.programs.append(program)
        return program

    def peers(self, host, engines=1):
        arguments = []
        for engine in range(engines):
            arguments += ["--peer", f"{host.ip}:{PORT + engine}",
                          "--peer", f"[{host.ip6}]:{PORT + engine}"]
        return arguments

    def exchange(self, lab, server, client, engines=1, frames=1000):
        """Runs both ends until all frames came back; returns the server's and client's reports."""
        first, second = lab.hosts
        serving = self.start(first, "server", *server).wait_ready()
        calling = self.start(second, "client", "--frames", frames,
                             *self.peers(first, engines), *client)
        status, reports, err = calling.finish()
        _, served, server_err = serving.finish(stop=True)
        self.assertEqual(status, 0, f"{reports}\n{err}\n{served}\n{server_err}")
        return served, reports

    def netdev(self, kind, mtu, *server):
        with two_hosts(mtu) as lab:
            device = ["--device", f"{kind}:{INTERFACE}"]
            served, called = self.exchange(lab, device + list(server), device)
            self.assertEqual(called[0]["max_udp_payload"], mtu - 28)
            self.assertGreater(served[0]["wakeups"], 0, "slept through its frames")


    def missed(self, kind):
        """A server that is stopped while the other host's kernel sends more than its rings hold says
        how much it missed, and goes on.
        """
        with two_hosts() as lab:
            first, second = lab.hosts
            server = self.start(first, "server", "--device", f"{kind}:{INTERFACE}").wait_ready()
            echo_from_kernel(second, first.ip)
            server.process.send_signal(signal.SIGSTOP)
            sh(sys.executable, "-c", f"""
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(40000):
    sock.sendto(bytes(1000), ("{first.ip}", {PORT}))
""", ns=second.ns)
            server.process.send_signal(signal.SIGCONT)
            end = time.monotonic() + 4  # devices are asked every second
            while time.monotonic() < end:
                echo_from_kernel(second, first.ip)
            _, (report,), err = server.finish(stop=True)
            self.assertGreater(report.get("drop_no_buffer", 0), 0, f"{report}\n{err}")


class AfPacket(EthdevCase):
    def test_counts_what_it_misses(self):
        self.missed("af_packet")

    def test_1500(self):
        self.netdev("af_packet", 1500)

    def test_9000_with_shared_payload(self):
        self.netdev("af_packet", 9000, "--share-payload", 1)

    def test_second_engine_is_fed_by_hand_off(self):
        with two_hosts() as lab:
            device = ["--device", f"af_packet:{INTERFACE}"]
            served, _ = self.exchange(lab, device + ["--engines", 2, "--queues", 1], device,
                                      engines=2)
            self.assertGreater(served[0].get("handoffs", 0) + served[1].get("handoffs", 0), 0)
            self.assertGreater(min(report["good"] for report in served), 0)

    def test_two_queues(self):
        with two_hosts() as lab:
            device = ["--device", f"af_packet:{INTERFACE}", "--engines", 2]
            self.exchange(lab, device, device, engines=2)


class AfXdp(EthdevCase):
    def test_counts_what_it_misses(self):
        self.missed("af_xdp")

    def test_1500(self):
        self.netdev("af_xdp", 1500)

    def test_largest_mtu(self):
        self.netdev("af_xdp", 3502, "--share-payload", 1)

    def test_second_engine_is_fed_by_hand_off(self):
        with two_hosts() as lab:
            device = ["--device", f"af_xdp:{INTERFACE}", "--engines", 2]
            served, _ = self.exchange(lab, device, device, engines=2)
            self.assertGreater(sum(report.get("handoffs", 0) for report in served), 0)
            self.assertGreater(min(report["good"] for report in served), 0)

    def test_talks_to_af_packet(self):
        with two_hosts() as lab:
            self.exchange(lab, ["--device", f"af_xdp:{INTERFACE}"],
                          ["--device", f"af_packet:{INTERFACE}"])

    def test_talks_to_sockets_of_the_kernel(self):
        with two_hosts() as lab:
            first, second = lab.hosts
            self.start(first, "server", "--device", f"af_xdp:{INTERFACE}").wait_ready()
            echo_from_kernel(second, first.ip, first.ip6)

    def test_larger_mtu_is_refused_with_the_limit(self):
        with two_hosts(9000) as lab:
            program = self.start(lab.hosts[0], "server", "--device", f"af_xdp:{INTERFACE}")
            status, _, err = program.finish()
            self.assertEqual(status, 2)
            self.assertIn("3502", err)


class Xdp(EthdevCase):
    def attached(self, lab):
        return "prog/xdp" in sh("ip", "-details", "link", "show", INTERFACE, ns=lab.hosts[0].ns)

    def test_restarts_after_kill(self):
        with two_hosts() as lab:
            device = ["--device", f"af_xdp:{INTERFACE}"]
            self.start(lab.hosts[0], "server", *device).wait_ready().kill()
            self.assertTrue(self.attached(lab), "nothing was left to clear: the test is void")
            self.exchange(lab, device, device, frames=200)
            self.assertFalse(self.attached(lab), "a clean exit left the program")

    def test_second_process_is_refused(self):
        with two_hosts() as lab:
            device = ["--device", f"af_xdp:{INTERFACE}"]
            self.start(lab.hosts[0], "server", *device).wait_ready()
            second = self.start(lab.hosts[0], "server", *device, "--port", PORT + 100)
            status, _, err = second.finish()
            self.assertEqual(status, 2)
            self.assertIn("another Mercury process", err)

    def test_foreign_program_is_refused_by_name(self):
        with two_hosts() as lab:
            sh("ip", "link", "set", INTERFACE, "xdp", "object", FOREIGN, "section", "xdp",
               ns=lab.hosts[0].ns)
            program = self.start(lab.hosts[0], "server", "--device", f"af_xdp:{INTERFACE}")
            status, _, err = program.finish()
            self.assertEqual(status, 2)
            self.assertIn("foreign_pass", err)
            self.assertTrue(self.attached(lab), "took a foreign program off")


class SharedInterface(EthdevCase):
    def manners(self, kind):
        with two_hosts() as lab:
            first, second = lab.hosts
            self.start(first, "server", "--device", f"{kind}:{INTERFACE}").wait_ready()
            before = counters_of(first) + counters_of(second)
            sh("ping", "-c", "2", "-i", "0.2", "-W", "5", first.ip, ns=second.ns)
            sh("ping", "-c", "2", "-i", "0.2", "-W", "5", first.ip6, ns=second.ns)
            client = self.start(second, "client", "--device", f"{kind}:{INTERFACE}",
                                "--frames", 300, *self.peers(first))
            status, _, err = client.finish()
            self.assertEqual(status, 0, err)
            sh("ping", "-c", "1", "-W", "5", first.ip, ns=second.ns)
            self.assertEqual(counters_of(first) + counters_of(second), before,
                             "the kernel answered a frame of ours with ICMP unreachable")

    def test_af_packet(self):
        self.manners("af_packet")

    def test_af_xdp(self):
        self.manners("af_xdp")

    def test_port_in_use_is_named(self):
        with two_hosts() as lab:
            device = ["--device", f"af_packet:{INTERFACE}"]
            self.start(lab.hosts[0], "server", *device).wait_ready()
            status, _, err = self.start(lab.hosts[0], "server", *device).finish()
            self.assertEqual(status, 2)
            self.assertIn(f"{lab.hosts[0].ip}:{PORT} is in use", err)


class Memif(EthdevCase):
    def over_memif(self, mtu, engines=1, client_first=False):
        with two_hosts() as lab, tempfile.TemporaryDirectory() as folder:
            first, second = lab.hosts
            device = ["--device", f"memif:{folder}/memif.sock", "--mtu", mtu, "--engines", engines]
            addresses = [["--v4", f"{host.ip}/24", "--v6", f"{host.ip6}/64"] for host in lab.hosts]
            server = [*device, *addresses[0], "--memif-server", 1, "--share-payload", 1]
            client = [*device, *addresses[1]]
            if not client_first:
                _, called = self.exchange(lab, server, client, engines=engines)
                self.assertEqual(called[0]["max_udp_payload"], mtu - 28)
                return
            calling = self.start(second, "client", "--frames", 300, *self.peers(first),
                                 *client).wait_ready()
            self.start(first, "server", *server).wait_ready()
            status, _, err = calling.finish()
            self.assertEqual(status, 0, err)

    def test_1500(self):
        self.over_memif(1500)

    def test_9000(self):
        self.over_memif(9000)

    def test_two_queues(self):
        self.over_memif(1500, engines=2)

    def test_client_survives_a_killed_server_and_finds_the_next(self):
        with two_hosts() as lab, tempfile.TemporaryDirectory() as folder:
            first, second = lab.hosts
            device = ["--device", f"memif:{folder}/memif.sock"]
            server = [*device, "--memif-server", 1, "--v4", f"{first.ip}/24"]
            doomed = self.start(first, "server", *server).wait_ready()
            client = self.start(second, "client", *device, "--v4", f"{second.ip}/24", "--peer",
                                f"{first.ip}:{PORT}", "--frames", 40000).wait_ready()
            self.assertIn("first", client.process.stdout.readline())  # the first of many
            doomed.kill()
            self.start(first, "server", *server).wait_ready()
            status, reports, err = client.finish()
            self.assertEqual(status, 0, f"{reports}\n{err}")
            second_server = self.start(second, "server", *server)
            self.assertIn("another process serves it", second_server.finish()[2])

    def test_client_waits_for_its_server(self):
        self.over_memif(1500, client_first=True)


class VlanTags(EthdevCase):
    """One host's frames have tags, which the kernel that plays the switch takes off and puts on; the other's have none."""

    VLAN = 5  # access_port.bpf.c

    def tagged_host(self, lab, kind):
        """The first host, whose interface is Mercury's alone: what it is started with."""
        host = lab.hosts[0]
        sh("ip", "address", "flush", "dev", INTERFACE, ns=host.ns)
        # XDP does not see a tag that travels beside the frame.
        sh("ethtool", "-K", host.port, "txvlan", "off", ns=lab.switch)
        sh("tc", "qdisc", "add", "dev", host.port, "clsact", ns=lab.switch)
        for way, section in (("ingress", "from_host"), ("egress", "to_host")):
            sh("tc", "filter", "add", "dev", host.port, way, "bpf", "direct-action", "object-file", ACCESS_PORT,
               "section", section, ns=lab.switch)
        return ["--device", f"{kind}:{INTERFACE}", "--shared", 0, "--vlan", self.VLAN,
                "--v4", f"{host.ip}/24", "--v6", f"{host.ip6}/64"]

    def talks_to_a_host_without_tags(self, kind):
        with two_hosts() as lab:
            first, second = lab.hosts
            server = self.tagged_host(lab, kind)
            serving = self.start(first, "server", *server, "--share-payload", 1).wait_ready()
            largest = 1500 - 8
            for ip, header in ((first.ip, 20), (first.ip6, 40)):
                sh("ping", "-c", "2", "-i", "0.2", "-W", "5", "-M", "do", "-s", str(largest - header), ip, ns=second.ns)
            echo_from_kernel(second, first.ip, first.ip6)
            calling = self.start(second, "client", "--device", f"af_packet:{INTERFACE}", "--frames", 1000,
                                 *self.peers(first))
            status, reports, err = calling.finish()
            _, served, server_err = serving.finish(stop=True)
            self.assertEqual(status, 0, f"{reports}\n{err}\n{served}\n{server_err}")
            self.assertEqual(reports[0]["max_udp_payload"], served[0]["max_udp_payload"])

    def test_af_packet_fills_them_in(self):
        self.talks_to_a_host_without_tags("af_packet")

    def test_af_xdp_leaves_it_to_the_port(self):
        self.talks_to_a_host_without_tags("af_xdp")

    def test_of_another_vlan_nothing_is_taken(self):
        with two_hosts() as lab:
            first, second = lab.hosts
            device = self.tagged_host(lab, "af_packet")
            device[device.index(self.VLAN)] = self.VLAN + 1
            serving = self.start(first, "server", *device).wait_ready()
            sh("ping", "-c", "2", "-i", "0.2", "-W", "1", first.ip, ns=second.ns, check=False)
            _, (report,), err = serving.finish(stop=True)
            self.assertGreater(report.get("drop_vlan", 0), 0, f"{report}\n{err}")

    def test_memif(self):
        """As long as a buffer allows, whose size the tag decides."""
        with two_hosts() as lab, tempfile.TemporaryDirectory() as folder:
            device = ["--device", f"memif:{folder}/memif.sock", "--mtu", 9010, "--vlan", self.VLAN]
            addresses = [["--v4", f"{host.ip}/24", "--v6", f"{host.ip6}/64"] for host in lab.hosts]
            _, called = self.exchange(lab, [*device, *addresses[0], "--memif-server", 1, "--share-payload", 1],
                                      [*device, *addresses[1]])
            self.assertEqual(called[0]["max_udp_payload"], 9010 - 28)


class OwnInterface(EthdevCase):
    """A tap: the kernel at its other end sees a host that Mercury alone plays."""

    def test_answers_ping_and_neighbours(self):
        with two_hosts() as lab:
            host = lab.hosts[0]
            server = self.start(host, "server", "--device", "tap:mtap0", "--v4", "10.78.0.1/24",
                                "--v6", "fd78::1/64").wait_ready()
            sh("ip", "link", "set", "mtap0", "up", ns=host.ns)
            sh("ip", "address", "add", "10.78.0.2/24", "dev", "mtap0", ns=host.ns)
            sh("ip", "address", "add", "fd78::2/64", "dev", "mtap0", "nodad", ns=host.ns)
            sh("ping", "-c", "2", "-i", "0.2", "-W", "5", "10.78.0.1", ns=host.ns)
            sh("ping", "-c", "2", "-i", "0.2", "-W", "5", "-s", "1400", "fd78::1", ns=host.ns)
            echo_from_kernel(host, "10.78.0.1", "fd78::1")
            server.finish(stop=True)


class Checks(EthdevCase):
    """What doctor prints, against the state that it is about."""

    def checks(self, lab, *arguments, user=(), interface=INTERFACE):
        text = sh(*user, PINGPONG, "check", "--device", f"af_xdp:{interface}", *arguments,
                  ns=lab.hosts[0].ns)
        return {line.split()[1].rstrip(":"): line for line in text.splitlines()}

    def test_healthy_host_has_nothing_to_fix(self):
        with two_hosts() as lab:
            for line in self.checks(lab).values():
                self.assertTrue(line.startswith("ok"), line)

    def test_mtu_beyond_the_driver_is_named(self):
        with two_hosts(9000) as lab:
            line = self.checks(lab)["mtu"]
            self.assertTrue(line.startswith("BAD"), line)
            self.assertIn(f"ip link set dev {INTERFACE} mtu 3502", line)

    def test_leftover_and_foreign_programs_are_told_apart(self):
        with two_hosts() as lab:
            host = lab.hosts[0]
            program = self.start(host, "server", "--device", f"af_xdp:{INTERFACE}").wait_ready()
            self.assertIn("of a running process", self.checks(lab)["xdp"])
            program.kill()
            self.assertIn("left by a killed process", self.checks(lab)["xdp"])
            sh("ip", "link", "set", INTERFACE, "xdp", "off", ns=host.ns)
            sh("ip", "link", "set", INTERFACE, "xdp", "object", FOREIGN, "section", "xdp",
               ns=host.ns)
            self.assertTrue(self.checks(lab)["xdp"].startswith("BAD"))
            self.assertIn(f"ip link set dev {INTERFACE} xdp off", self.checks(lab)["xdp"])

    def test_commands_that_a_driver_would_refuse_are_not_named(self):
        with two_hosts() as lab:
            host = lab.hosts[0]
            # Its queues receive or transmit: nothing is "combined". Its driver knows native XDP.
            sh("ip", "link", "add", "many", "numrxqueues", "4", "numtxqueues", "4", "type", "veth", "peer",
               "name", "other", ns=host.ns)
            sh("ip", "link", "set", "many", "up", ns=host.ns)
            sh("ip", "link", "set", "dev", "many", "xdpgeneric", "object", FOREIGN, "section", "xdp", ns=host.ns)
            for check, command in (("queues", "ethtool -L many rx 1 tx 1"), ("xdp", "ip link set dev many xdpgeneric off")):
                line = self.checks(lab, interface="many")[check]
                self.assertTrue(line.startswith("BAD"), line)
                self.assertIn(command, line)
                sh(*command.split(), ns=host.ns)
                self.assertTrue(self.checks(lab, interface="many")[check].startswith("ok"), check)

    def test_missing_privileges_are_named(self):
        with two_hosts() as lab:
            line = self.checks(lab, user=("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"))
            self.assertIn("CAP_NET_RAW", line["privileges"])


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root for network namespaces: skipped")
        sys.exit(77)
    PINGPONG, FOREIGN, ACCESS_PORT, case = sys.argv[1:]
    unittest.main(argv=[sys.argv[0], case, "-v"])
