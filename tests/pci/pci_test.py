#!/usr/bin/env python3
"""Daemons on PCI NICs, driven by DPDK from user space: two virtual machines (guest.py) whose NICs are
connected, one with an IOMMU and vfio-pci, one without and uio_pci_generic. e1000e, virtio and vmxnet3
are real drivers' devices; what they are slow at says nothing.

  tests/pci/pci_test.py build/apps/stackd/mercury-stackd build/apps/ctl/mercuryctl \\
      build/benchmarks/goodput/goodput_client

Takes five minutes on two cores, and keeps the guests' kernel in build/pci (100 MB).
"""
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest

import guest

STACKD, CTL, CLIENT = (os.path.abspath(path) for path in sys.argv[1:4]) if len(sys.argv) > 3 else ("", "", "")
WORK = "/run/work"
PORT = 7470
# Each model's slot and options, and the rate that its link agrees on, bytes per second; virtio's has none.
MODELS = {
    "e1000e": (8, "", 125_000_000),
    "virtio-net-pci": (9, ",disable-legacy=on,iommu_platform=on,host_mtu=9000", 0),
    "vmxnet3": (10, "", 1_250_000_000),
}
# Whose driver lets go of what has been sent: sums leave from where they lie.
GATHERS = ("vmxnet3",)
TO_BIND = 11  # an e1000e that begins with its kernel driver
SHARED = 12  # one that stays with it
CHUNK_HEADER = 48
EXCHANGE = 1 << 19  # the client halves its working set
# What a driver, or what we told it of checksums and buffers, may do to a frame. A slow guest also drops what comes
# twice, or before its session.
DAMAGE = ("drop_truncated", "drop_magic", "drop_version", "drop_type", "drop_length", "drop_header_crc",
          "drop_payload_crc", "drop_bad_ip", "drop_ip_checksum", "drop_too_large")


class Host:
    """A guest with a daemon on one of its NICs."""

    def __init__(self, kernel, folder, number, iommu):
        self.number = number
        self.right_driver = "vfio-pci" if iommu else "uio_pci_generic"
        listens = number == 1
        self.nics = {model: guest.Nic(model, slot, f"{folder}/wire{slot}", listens, options)
                     for model, (slot, options, _) in MODELS.items()}
        self.to_bind = guest.Nic("e1000e", TO_BIND, f"{folder}/wire{TO_BIND}", listens)
        self.shared = guest.Nic("e1000e", SHARED, f"{folder}/wire{SHARED}", listens)
        self.guest = guest.Guest(kernel, f"{folder}/{number}", [*self.nics.values(), self.to_bind, self.shared], iommu)
        self.daemon = None

    def prepare(self):
        self.guest.up()
        for nic in self.nics.values():
            self.sh(f"modprobe {self.right_driver} && dpdk-devbind.py -b {self.right_driver} {nic.address}")

    def sh(self, command, status=0, seconds=60):
        code, output = self.guest.run("bash", "-c", command, seconds=seconds)
        if status is not None and code != status:
            raise AssertionError(f"host {self.number}: {command}: status {code}: {output}")
        return output

    def write_config(self, port):
        self.guest.write(f"{WORK}/stackd.toml", f'[port]\n{port}\n[jobs]\nopen = true\n[attach]\nsocket = "{WORK}/stackd.sock"\n')

    def config(self, nic, address, extra="", short=False):
        name = nic.address.removeprefix("0000:") if short else nic.address
        self.write_config(f'device = "{name}"\naddress = ["{address}"]\n{extra}')

    def config_shared(self, device):
        """The daemon shares the NIC that the kernel keeps."""
        interface = self.sh(f"ls /sys/bus/pci/devices/{self.shared.address}/net").strip()
        self.sh(f"ip address replace 10.0.2.{self.number}/24 dev {interface} && ip link set {interface} up")
        self.write_config(f'device = "{device}"\ninterface = "{interface}"')

    def start(self, nic, address, extra="", short=False):
        self.config(nic, address, extra, short)
        self.start_configured()

    def start_configured(self):
        try:
            self.daemon = self.guest.start(STACKD, "--config", "stackd.toml", log="stackd.log", ready=True)
        except guest.Failed as error:
            raise AssertionError(f"host {self.number}: {error}: {self.guest.read('stackd.log')}") from None

    def stop(self, how=signal.SIGTERM):
        if self.daemon is None:
            return 0
        self.guest.kill(self.daemon, how)
        daemon, self.daemon = self.daemon, None
        return self.guest.wait(daemon, 30)

    def doctor(self):
        """Its checks by name."""
        output = self.sh(f"{CTL} doctor --config stackd.toml --json", status=None)
        return {check["name"]: check for check in json.loads(output)}

    def answer(self, question):
        return json.loads(self.sh(f"{CTL} --socket stackd.sock {question} --json"))

    def counters(self):
        total = {}
        for engine in self.answer("stats")["engines"]:
            for name, value in engine["counters"].items():
                total[name] = total.get(name, 0) + value
        return total

    def exchange(self, server, seconds, job="first"):
        """Starts a worker that pushes and pulls 1 MB and verifies it: its pid."""
        self.sh("rm -f client.log")
        return self.guest.start(CLIENT, "--server", server, "--seconds", str(seconds), "--job", job, log="client.log",
                                environment={"MERCURY_SOCKET": f"{WORK}/stackd.sock"})


class Pci(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="mercury-pci-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        kernel = guest.Kernel(os.path.join(os.path.dirname(STACKD), "..", "..", "pci"))
        cls.hosts = []
        for number, iommu in ((1, True), (2, False)):
            cls.hosts.append(Host(kernel, cls.folder, number, iommu))
            cls.addClassCleanup(cls.hosts[-1].guest.end)
        for host in cls.hosts:
            host.prepare()
        cls.server, cls.worker = cls.hosts

    def tearDown(self):
        for host in self.hosts:
            host.stop()

    def start_both(self, model, v6=False, extra=""):
        """On that model's NICs; where the server's daemon is."""
        for host in self.hosts:
            host.stop()
            host.sh("rm -f stackd.log")
            address = f"fd00::{host.number}/64" if v6 else f"10.0.0.{host.number}/24"
            host.start(host.nics[model], address, extra)
        return f"[fd00::1]:{PORT}" if v6 else f"10.0.0.1:{PORT}"

    def said(self, client, seconds=60):
        """What the worker printed when it ended well."""
        status = self.worker.guest.wait(client, seconds)
        output = self.worker.guest.read("client.log")
        logs = "\n".join(host.guest.read("stackd.log") for host in self.hosts)
        self.assertEqual(status, 0, f"{output}\n{logs}")
        return json.loads(output)

    def assert_undamaged(self):
        for host in self.hosts:
            counters = host.counters()
            self.assertEqual({name: counters[name] for name in DAMAGE if counters[name] > 0}, {}, f"host {host.number}")

    def test_a_nic_is_bound_as_doctor_says(self):
        for host in self.hosts:
            with self.subTest(host=host.number):
                host.config(host.to_bind, "10.0.1.1/24", short=True)
                said = host.sh(f"{STACKD} --config stackd.toml", status=1)
                self.assertIn(f"kernel driver of {host.to_bind.address}: e1000e", said)
                check = host.doctor()["driver"]
                self.assertFalse(check["ok"])
                self.assertIn(check["fix"], said)
                self.assertIn(host.right_driver, check["fix"])
                host.sh(check["fix"])
                self.assertTrue(all(check["ok"] for check in host.doctor().values()), host.doctor())
                host.start(host.to_bind, "10.0.1.1/24", short=True)
                self.assertEqual(host.stop(), 0, host.guest.read("stackd.log"))

    def test_a_nic_that_is_not_there(self):
        self.server.config(guest.Nic("e1000e", 29, "", False), "10.0.1.1/24")
        self.assertIn("no PCI device 0000:00:1d.0", self.server.sh(f"{STACKD} --config stackd.toml", status=1))
        self.assertFalse(self.server.doctor()["pci"]["ok"])

    def test_ordinary_pages_do_where_an_iommu_is(self):
        extra = 'hugepages = "off"'
        self.server.start(self.server.nics["e1000e"], "10.0.0.1/24", extra)
        self.assertTrue(self.server.doctor()["hugepages"]["ok"])
        self.worker.config(self.worker.nics["e1000e"], "10.0.0.2/24", extra)
        check = self.worker.doctor()["hugepages"]
        self.assertFalse(check["ok"])
        said = self.worker.sh(f"{STACKD} --config stackd.toml", status=1)
        self.assertIn("uio_pci_generic works with no other pages", said)
        self.assertIn(check["fix"], said)

    def test_sums_and_rates(self):
        for model, (_, _, rate) in MODELS.items():
            for v6, extra, engines in ((False, "", 1), (True, "mtu = 9000\nengines = 2", 2)):
                with self.subTest(model=model, v6=v6, engines=engines):
                    client = self.worker.exchange(self.start_both(model, v6, extra), seconds=3)
                    exchanges = self.said(client)["exchanges"]
                    self.assertGreater(exchanges, 0)
                    self.assert_undamaged()
                    largest = 9000 - 48 - CHUNK_HEADER if v6 else 1500 - 28 - CHUNK_HEADER
                    counters = self.server.counters()
                    if model in GATHERS:  # all but those that a second engine sends without a queue of its own
                        least = counters["push_chunks"] // (1 if engines == 1 else 3)
                        self.assertGreaterEqual(counters["tx_gathered"], least)
                    else:
                        self.assertEqual(counters["tx_gathered"], 0)
                    chunks = counters["push_chunks"]  # and a few that were sent again
                    self.assertLess(chunks * largest, 1.1 * exchanges * EXCHANGE, "chunks do not fill frames")
                    for host in self.hosts:
                        rates = [engine["link_bytes_per_second"] for engine in host.answer("status")["engines"]]
                        self.assertEqual(rates, [rate] * engines)
                    for host in self.hosts:
                        self.assertEqual(host.stop(), 0)

    def test_a_nic_that_the_kernel_keeps_says_its_rate(self):
        for device in ("af_packet", "af_xdp"):
            with self.subTest(device=device):
                for host in self.hosts:
                    host.stop()
                    host.sh("rm -f stackd.log")
                    host.config_shared(device)
                    host.start_configured()
                self.said(self.worker.exchange(f"10.0.2.1:{PORT}", seconds=2))
                for host in self.hosts:
                    self.assertEqual(host.answer("status")["engines"][0]["link_bytes_per_second"], 125_000_000)
                    self.assertEqual(host.sh(f"ping -c 1 -W 5 10.0.2.{3 - host.number} > ping.log; echo $?"), "0\n")

    def test_a_killed_daemon_starts_again_on_its_nic(self):
        for model in MODELS:
            for killed in self.hosts:
                with self.subTest(model=model, killed=killed.number):
                    server = self.start_both(model)
                    client = self.worker.exchange(server, seconds=60)
                    while self.server.counters()["push_chunks"] == 0:
                        self.assertIsNone(self.worker.guest.wait(client, 0.1), self.worker.guest.read("client.log"))
                    killed.stop(signal.SIGKILL)
                    self.assertEqual(self.worker.guest.wait(client, 60), 1)
                    killed.start(killed.nics[model], f"10.0.0.{killed.number}/24")
                    # The first job keeps its members until they have been silent for the peer time-out.
                    self.said(self.worker.exchange(server, seconds=1, job="second"))
                    for host in self.hosts:
                        self.assertEqual(host.stop(), 0)

    def test_a_cable_that_is_pulled_and_plugged_in(self):
        for model, (slot, _, rate) in MODELS.items():
            with self.subTest(model=model):
                client = self.worker.exchange(self.start_both(model), seconds=12)
                while self.server.counters()["push_chunks"] == 0:
                    self.assertIsNone(self.worker.guest.wait(client, 0.1), self.worker.guest.read("client.log"))
                self.worker.guest.control("set_link", name=f"wire{slot}", up=False)
                time.sleep(1)  # how long it is out: some round trips and time-outs
                before = self.server.counters()["push_chunks"]
                time.sleep(1)
                self.assertEqual(self.server.counters()["push_chunks"], before, "the cable is not out")
                self.worker.guest.control("set_link", name=f"wire{slot}", up=True)
                self.said(client)
                self.assertGreater(self.server.counters()["push_chunks"], before)
                self.assertEqual(self.worker.answer("status")["engines"][0]["link_bytes_per_second"], rate)
                for host in self.hosts:
                    self.assertEqual(host.counters()["peers_lost"], 0)
                    self.assertEqual(host.stop(), 0)


if __name__ == "__main__":
    if not CLIENT:
        sys.exit(__doc__)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
