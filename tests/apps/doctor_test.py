"""`mercuryctl doctor` on machines that lack something, and what then becomes of the traffic. Needs root
(network namespaces).

usage: doctor_test.py STACKD CTL TRAINER [unittest arguments]
"""
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import netlab  # noqa: E402
import ready  # noqa: E402

STACKD, CTL, TRAINER = sys.argv[1:4]


class DoctorTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def lab(self, names):
        lab = netlab.Lab(f"md{os.getpid()}", names)
        self.addCleanup(lab.close)
        return lab

    def config(self, name, port):
        path = f"{self.folder}/{name}.toml"
        with open(path, "w") as file:
            file.write(f'[port]\nhugepages = "off"\n{port}\n[attach]\nsocket = "{self.folder}/{name}.sock"\n')
        return path

    def doctor(self, path, ns=None, wrap=(), **options):
        """Its checks by name, and its exit status."""
        enter = ["nsenter", f"--net=/run/netns/{ns}"] if ns else []
        done = subprocess.run([*enter, *wrap, CTL, "doctor", "--json", "--config", path], capture_output=True, text=True,
                              **options)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return {check["name"]: check for check in json.loads(done.stdout)}, done.returncode

    def check_fix(self, path, host, name, fix):
        """The check `name` fails, says so in the exit status, and passes after its fix."""
        checks, status = self.doctor(path, host.ns)
        self.assertEqual((checks[name]["ok"], checks[name]["fix"], status), (False, fix, 1), checks)
        netlab.sh(*fix.split(), ns=host.ns)
        checks, status = self.doctor(path, host.ns)
        self.assertEqual((checks[name]["ok"], checks[name]["fix"], status), (True, "", 0), checks)

    def start(self, name, host, path):
        with open(f"{self.folder}/{name}.log", "w") as log:
            process = ready.start_ready(functools.partial(host.popen, [STACKD, "--config", path], stderr=log),
                                        f"{self.folder}/{name}.notify")
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

    def uncut(self, name):
        """Frames that arrived larger than any that is sent."""
        answer = subprocess.run([CTL, "--socket", f"{self.folder}/{name}.sock", "stats", "--json"], capture_output=True,
                                text=True, check=True)
        counters = json.loads(answer.stdout)["engines"][0]["counters"]
        return counters["drop_bad_ip"] + counters["drop_length"]

    def train(self, server):
        done = subprocess.run(
            [TRAINER, "--mode", "daemon", "--rank", "0", "--workers", "1", "--servers", "1", "--rendezvous",
             f"{server.ip}:7470", "--iterations", "3", "--batch", "16", "--weights", f"{self.folder}/weights"],
            capture_output=True, text=True, env={**os.environ, "MERCURY_SOCKET": f"{self.folder}/worker.sock"}, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def job_of_both_kinds(self):
        """A uring worker and an af_packet server: their hosts and configurations."""
        lab = self.lab(["worker", "server"])
        worker, server = lab.hosts
        worker_config = self.config("worker", f'kind = "uring"\naddress = ["{worker.ip}/24"]')
        server_config = self.config("server", f'device = "af_packet"\ninterface = "eth0"\naddress = ["{server.ip}/24"]')
        self.start("worker", worker, worker_config)
        self.start("server", server, server_config)
        return lab, worker_config, server_config

    def check_mends(self, server, mend):
        """Frames arrive uncut before mend(), and none after."""
        self.train(server)
        before = self.uncut("server")
        self.assertGreater(before, 0)
        mend()
        self.train(server)
        self.assertEqual(self.uncut("server"), before)

    def test_a_veth_that_does_not_cut_batches(self):
        lab, worker_config, server_config = self.job_of_both_kinds()
        worker, server = lab.hosts
        for ns, interface in ((worker.ns, "eth0"), (lab.switch, server.port)):  # as a veth is when it is made
            netlab.sh("ethtool", "-K", interface, "tx", "on", "tso", "on", "gso", "on", ns=ns)
        self.check_mends(server, lambda: self.check_fix(
            worker_config, worker, "offload", "ethtool -K eth0 tx-udp-segmentation off"))
        # What the server's own interface does to what it sends harms nobody.
        netlab.sh("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", ns=server.ns)
        checks, status = self.doctor(server_config, server.ns)
        self.assertEqual((checks["offload"]["ok"], status), (True, 0), checks)

    def test_an_interface_that_merges_what_arrives(self):
        lab, _, server_config = self.job_of_both_kinds()
        server = lab.hosts[1]
        netlab.sh("ethtool", "-K", "eth0", "gro", "on", "rx-gro-list", "on", ns=server.ns)
        self.check_mends(server, lambda: self.check_fix(
            server_config, server, "offload", "ethtool -K eth0 rx-gro-list off"))

    def test_checksums_that_the_kernel_does_not_fill_in(self):
        lab = self.lab(["worker"])
        worker = lab["worker"]
        for address in (f"{worker.ip}/24", f"{worker.ip6}/64"):
            path = self.config("worker", f'kind = "uring"\naddress = ["{address}"]')
            netlab.sh("ethtool", "-K", "eth0", "tx", "on", "tx-udp-segmentation", "off", ns=worker.ns)
            self.assertTrue(self.doctor(path, worker.ns)[0]["offload"]["ok"])
            netlab.sh("ethtool", "-K", "eth0", "tx-udp-segmentation", "on", ns=worker.ns)
            self.assertFalse(self.doctor(path, worker.ns)[0]["offload"]["ok"])
            netlab.sh("ethtool", "-K", "eth0", "tx", "off", ns=worker.ns)
            self.assertTrue(self.doctor(path, worker.ns)[0]["offload"]["ok"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
