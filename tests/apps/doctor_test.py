"""`mercuryctl doctor` on machines that lack something, and what then becomes of the traffic. Needs root
(network namespaces).

usage: doctor_test.py STACKD CTL TRAINER [unittest arguments]
"""
import ctypes
import errno
import functools
import glob
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import netlab  # noqa: E402
import ready  # noqa: E402

STACKD, CTL, TRAINER = sys.argv[1:4]

AF_XDP = 44


def without_xdp_sockets():
    """Of this process, socket(AF_XDP) fails as where the kernel was built without them (seccomp)."""
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    code = ((0x20, 0, 0, 0),  # load the number of the system call
            (0x15, 0, 3, number), (0x20, 0, 0, 16),  # socket: load its first argument
            (0x15, 0, 1, AF_XDP), (0x06, 0, 0, 0x00050000 | errno.EAFNOSUPPORT), (0x06, 0, 0, 0x7fff0000))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(seccomp, filter_mode, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


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

    def check_fix(self, path, host, name, fix, ok=False):
        """The check `name` fails, or knows better (`ok`), and has nothing to say after its fix."""
        checks, status = self.doctor(path, host.ns)
        self.assertEqual((checks[name]["ok"], checks[name]["fix"], status), (ok, fix, 0 if ok else 1), checks)
        self.assertEqual(checks[name]["level"], "advice" if ok else "MISSING")
        netlab.sh(*fix.split(), ns=host.ns)
        checks, status = self.doctor(path, host.ns)
        self.assertEqual((checks[name]["ok"], checks[name]["fix"], status), (True, "", 0), checks)

    def start(self, name, host, path):
        with open(f"{self.folder}/{name}.log", "w") as log:
            process = ready.start_ready(functools.partial(host.popen, [STACKD, "--config", path, "--set", "jobs.open=true"], stderr=log),
                                        f"{self.folder}/{name}.notify")
        self.addCleanup(self.end, process)

    def end(self, process):
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

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

    def test_whom_the_host_serves_is_said(self):
        path = self.config("jobs", 'kind = "uring"\naddress = ["127.0.0.1/8"]')
        with open(path) as file:
            text = file.read()
        for jobs, level, said in (
                ("", "ok", "a server program runs here"),
                ("[jobs]\nserve = false\n", "ok", "serves none"),
                ("[jobs]\nopen = true\n", "advice", "whoever reaches this host's UDP ports"),
                ('[[job]]\nname = "a"\nsecret = "s"\n[[job]]\nname = "b"\n', "ok", "2 listed, 1 of them with a secret")):
            with self.subTest(jobs=jobs):
                with open(path, "w") as file:
                    file.write(text + jobs)
                check = self.doctor(path)[0]["jobs"]
                self.assertEqual(check["level"], level)
                self.assertIn(said, check["message"])

    def test_what_programs_may_send_is_said(self):
        check = self.doctor(self.config("programs", 'kind = "uring"\naddress = ["127.0.0.1/8"]'))[0]["programs"]
        release = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))
        if release >= (6, 16):
            self.assertEqual((check["level"], check["message"]), ("ok", "send the daemon no descriptors"))
        else:
            self.assertEqual(check["level"], "advice")
            self.assertIn("Linux 6.16", check["fix"])

    def log(self, name):
        with open(f"{self.folder}/{name}.log") as file:
            return file.read()

    def job_of_both_kinds(self, before_start):
        """A uring worker and an af_packet server: their hosts and configurations."""
        lab = self.lab(["worker", "server"])
        worker, server = lab.hosts
        before_start(lab)
        worker_config = self.config("worker", f'kind = "uring"\naddress = ["{worker.ip}/24"]')
        server_config = self.config("server", f'device = "af_packet"\ninterface = "eth0"\naddress = ["{server.ip}/24"]')
        self.start("worker", worker, worker_config)
        self.start("server", server, server_config)
        return lab, worker_config, server_config

    def check_mends(self, server, mend, said):
        """Frames arrive uncut before mend(), of which the server's daemon warns once, and none after."""
        deadline = time.monotonic() + 60
        while "were dropped as malformed" not in self.log("server"):  # of a hundred within ten seconds
            self.assertLess(time.monotonic(), deadline, self.log("server"))
            self.train(server)
        warned = [line for line in self.log("server").splitlines() if "were dropped as malformed" in line]
        self.assertIn("drop_bad_ip, drop_length", warned[0])
        self.assertIn(said, warned[0])
        self.assertEqual(len(warned), 1)
        before = self.uncut("server")
        self.assertGreater(before, 0)
        mend()
        self.train(server)
        self.assertEqual(self.uncut("server"), before)

    def test_a_veth_that_does_not_cut_batches(self):
        def as_veths_are_made(lab):
            worker, server = lab.hosts
            for ns, interface in ((worker.ns, "eth0"), (lab.switch, server.port)):
                netlab.sh("ethtool", "-K", interface, "tx", "on", "tso", "on", "gso", "on", ns=ns)
        lab, worker_config, server_config = self.job_of_both_kinds(as_veths_are_made)
        worker, server = lab.hosts
        mending = "ethtool -K eth0 tx-udp-segmentation off"
        self.assertRegex(self.log("worker"), f"warning: veth eth0 sends batches of frames uncut.*; run: {mending}")
        self.assertNotIn("warning", self.log("server"))
        self.check_mends(server, lambda: self.check_fix(worker_config, worker, "offload", mending, ok=True),
                         "ethtool -K INTERFACE tx-udp-segmentation off")
        # What the server's own interface does to what it sends harms nobody.
        netlab.sh("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", ns=server.ns)
        checks, status = self.doctor(server_config, server.ns)
        self.assertEqual((checks["offload"]["ok"], status), (True, 0), checks)

    def test_an_interface_that_merges_what_arrives(self):
        def merge(lab):
            netlab.sh("ethtool", "-K", "eth0", "gro", "on", "rx-gro-list", "on", ns=lab.hosts[1].ns)
        lab, _, server_config = self.job_of_both_kinds(merge)
        server = lab.hosts[1]
        mending = "ethtool -K eth0 rx-gro-list off"
        self.assertNotIn("warning", self.log("worker"))
        self.assertRegex(self.log("server"), f"warning: eth0 merges datagrams that arrive.*; run: {mending}")
        self.check_mends(server, lambda: self.check_fix(server_config, server, "offload", mending), mending)

    def test_checksums_that_the_kernel_does_not_fill_in(self):
        lab = self.lab(["worker"])
        worker = lab["worker"]
        for address in (f"{worker.ip}/24", f"{worker.ip6}/64"):
            path = self.config("worker", f'kind = "uring"\naddress = ["{address}"]')
            netlab.sh("ethtool", "-K", "eth0", "tx", "on", "tx-udp-segmentation", "off", ns=worker.ns)
            self.assertEqual(self.doctor(path, worker.ns)[0]["offload"]["fix"], "")
            netlab.sh("ethtool", "-K", "eth0", "tx-udp-segmentation", "on", ns=worker.ns)
            self.assertNotEqual(self.doctor(path, worker.ns)[0]["offload"]["fix"], "")
            netlab.sh("ethtool", "-K", "eth0", "tx", "off", ns=worker.ns)
            self.assertEqual(self.doctor(path, worker.ns)[0]["offload"]["fix"], "")

    def doctor_beside_holder(self, worker, port, path):
        """What it says where it fails, while another program has a port of the host; and that one's process."""
        holder = worker.popen(["/usr/bin/python3", "-c", "import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); "
                               f"s.bind(('::', {port})); print(flush=True); input()"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with holder:
            self.addCleanup(holder.kill)
            holder.stdout.readline()
            done = subprocess.run(["nsenter", f"--net=/run/netns/{worker.ns}", CTL, "doctor", "--config", path],
                                  capture_output=True, text=True)
            holder.kill()
        self.assertEqual(done.returncode, 1)
        return done.stdout, holder.pid

    def test_a_port_that_the_kernel_gave_to_another_program(self):
        lab = self.lab(["worker"])
        worker = lab["worker"]
        for device in ("af_packet", "af_xdp"):
            path = self.config("worker", f'device = "{device}"\ninterface = "eth0"')
            said, pid = self.doctor_beside_holder(worker, 7470, path)
            for ip in (f"{worker.ip}:7470", f"[{worker.ip6}]:7470"):
                self.assertRegex(said, rf"MISSING  UDP port +UDP {re.escape(ip)} is held by python3.* \(pid {pid}\)")
            checks, _ = self.doctor(path, worker.ns)
            self.assertEqual(checks["UDP port"]["level"], "ok", checks)

    def test_a_source_port_that_another_program_has(self):
        lab = self.lab(["worker"])
        worker = lab["worker"]
        path = self.config("worker", 'device = "af_packet"\ninterface = "eth0"\nsource_ports = 4')
        checks, _ = self.doctor(path, worker.ns)
        self.assertIn(":7470 to 7473 can be had", checks["UDP port"]["message"])
        said, _ = self.doctor_beside_holder(worker, 7473, path)
        self.assertRegex(said, rf"MISSING  UDP port +UDP {re.escape(worker.ip)}:7473, one of port.source_ports, is held by python3")
        self.assertIn("or set port.source_ports = 1, or another port.udp_port", said)

    def test_a_user_with_the_capabilities_that_doctor_names(self):
        """All of them, or its daemon would not start; and each, or doctor would not say so."""
        os.chmod(self.folder, 0o777)
        for device, capabilities in (("af_packet", ("net_raw", "net_admin")), ("af_xdp", ("net_raw", "net_admin", "bpf"))):
            lab = self.lab(["server"])
            host = lab["server"]
            path = self.config("server", f'device = "{device}"\ninterface = "eth0"\nmemory = "64MiB"')

            def as_nobody(held, command):
                # Locked memory, too, whose limit a container may not let us raise.
                given = ",".join(f"+{name}" for name in (*held, "ipc_lock"))
                return ["nsenter", f"--net=/run/netns/{host.ns}", "setpriv", "--reuid", "65534", "--regid", "65534",
                        "--clear-groups", "--inh-caps", f"-all,{given}", "--ambient-caps", f"-all,{given}", *command]
            if subprocess.run(as_nobody(capabilities, [STACKD, "--version"]), capture_output=True).returncode != 0:
                self.skipTest("nobody may run what is built here, or may have these capabilities")
            for missing in (*capabilities, None):
                held = [name for name in capabilities if name != missing]
                done = subprocess.run(as_nobody(held, [CTL, "doctor", "--json", "--config", path]), capture_output=True, text=True)
                check = {check["name"]: check for check in json.loads(done.stdout)}["privileges"]
                self.assertEqual((done.returncode, check["ok"]), (1 if missing else 0, not missing), done.stdout)
                if missing:
                    self.assertEqual(check["message"], f"missing: CAP_{missing.upper()}")
                    refused = subprocess.run(as_nobody(held, [STACKD, "--config", path]), capture_output=True, text=True, timeout=60)
                    self.assertEqual(refused.returncode, 1, f"{device} starts without {missing}")
            process = subprocess.Popen(as_nobody(capabilities, [STACKD, "--config", path]), stderr=subprocess.DEVNULL)
            self.addCleanup(self.end, process)
            deadline = time.monotonic() + 60
            while not os.path.exists(f"{self.folder}/server.sock.admin"):  # the last thing before it is ready
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            self.end(process)
            lab.close()

    def test_a_kernel_without_af_xdp(self):
        lab = self.lab(["worker"])
        path = self.config("worker", 'device = "af_xdp"\ninterface = "eth0"')
        checks, _ = self.doctor(path, lab["worker"].ns)
        self.assertTrue(checks["AF_XDP"]["ok"], checks)
        checks, status = self.doctor(path, lab["worker"].ns, preexec_fn=without_xdp_sockets)
        self.assertEqual((checks["AF_XDP"]["ok"], status), (False, 1), checks)
        self.assertIn('port.device = "af_packet"', checks["AF_XDP"]["fix"])

    def nic(self):
        """The folder that a kernel would have for a NIC, and what makes it that of a command."""
        # Fails in a chroot, whose root is no mount point.
        own_mounts = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
        if own_mounts.returncode != 0:
            self.skipTest(own_mounts.stderr.strip())
        nic = f"{self.folder}/bus/pci/devices/0000:03:00.0"
        os.makedirs(nic)
        for name, number in (("vendor", "0x8086"), ("device", "0x15f2")):
            with open(f"{nic}/{name}", "w") as file:
                file.write(number + "\n")
        return nic, ("unshare", "--mount", "sh", "-c", f'mount --bind {self.folder}/bus /sys/bus && exec "$@"', "sh")

    def test_what_binds_a_nic_and_the_pages_it_needs(self):
        nic, with_nic = self.nic()
        link = 'kind = "ethdev"\naddress = ["10.79.0.1/24"]\ndevice = "0000:03:00.0"\n'
        for driver, iommu, fix in ((None, False, "uio_pci_generic"), ("igc", False, "uio_pci_generic"),
                                   ("igc", True, "vfio-pci"), ("vfio-pci", True, ""), ("uio_pci_generic", False, ""),
                                   ("igb_uio", True, ""), ("mlx5_core", True, "")):
            with self.subTest(driver=driver, iommu=iommu):
                if iommu:
                    os.makedirs(f"{nic}/iommu_group", exist_ok=True)
                elif os.path.exists(f"{nic}/iommu_group"):
                    os.rmdir(f"{nic}/iommu_group")
                if os.path.lexists(f"{nic}/driver"):
                    os.unlink(f"{nic}/driver")
                if driver:
                    os.symlink(f"/drivers/{driver}", f"{nic}/driver")
                checks, _ = self.doctor(self.config("worker", link), None, with_nic)
                self.assertEqual(checks["driver"]["ok"], fix == "", checks)
                self.assertEqual(checks["driver"]["fix"],
                                 fix and f"modprobe {fix} && dpdk-devbind.py -b {fix} 0000:03:00.0")
                pages = checks["hugepages"]  # the configuration switches them off
                uio = driver in ("uio_pci_generic", "igb_uio")
                self.assertEqual(pages["ok"], not uio, checks)
                self.assertEqual(pages["fix"], 'set port.hugepages = "auto", or bind it to vfio-pci' if uio else "")

    def test_drivers_that_are_not_installed(self):
        nic, with_nic = self.nic()
        lab = self.lab(["worker"])
        drivers = glob.glob("/usr/lib/*/dpdk/pmds-*")  # of all versions
        self.assertTrue(drivers)
        for file in [name for kind in ("bus", "net_ring") for name in glob.glob(f"/usr/lib/*/dpdk/pmds-*/librte_{kind}*.so.*")]:
            shutil.copy(file, self.folder, follow_symlinks=False)  # what mercuryctl itself is linked with
        os.symlink("/drivers/vfio-pci", f"{nic}/driver")
        hiding = " && ".join(f"mount --bind {self.folder} {folder}" for folder in drivers)
        hidden = ("unshare", "--mount", "sh", "-c", f'{hiding} && exec "$@"', "sh")
        link = 'kind = "ethdev"\naddress = ["10.79.0.1/24"]\n'
        for device, package in (('device = "af_xdp"\ninterface = "eth0"', "librte-net-af-xdp"),
                                ('device = "af_packet"\ninterface = "eth0"', "librte-net-af-packet"),
                                (f'{link}device = "tap"\ninterface = "mtap0"', "librte-net-tap"),
                                (f'{link}device = "memif"\nmemif_socket = "{self.folder}/m.sock"', "librte-net-memif"),
                                (f'{link}device = "0000:03:00.0"', "librte-meta-allpmds")):
            with self.subTest(device=device):
                path = self.config("worker", device)
                checks, _ = self.doctor(path, lab["worker"].ns, with_nic)
                self.assertTrue(checks["DPDK driver"]["ok"], checks)
                checks, status = self.doctor(path, lab["worker"].ns, with_nic + hidden)
                self.assertEqual((checks["DPDK driver"]["ok"], status), (False, 1), checks)
                self.assertRegex(checks["DPDK driver"]["fix"], f"^apt-get install {package}[0-9]*$")

    def test_mtu_of_devices_without_an_interface(self):
        link = 'kind = "ethdev"\naddress = ["10.79.0.1/24"]\n'
        for device, said in ((f'device = "memif"\nmemif_socket = "{self.folder}/m.sock"\nmtu = 9000',
                              "Mercury uses 9000, memif carries up to 9600"),
                             ('device = "tap"\ninterface = "mtap0"', "Mercury uses 1500, tap carries up to 1500"),
                             ('device = "ring"', "Mercury uses 1500, ring carries up to 9600"),
                             ('device = "0000:ff:1f.7"', "Mercury uses 1500, pci carries up to 9600, or what the NIC")):
            checks, _ = self.doctor(self.config("worker", link + device))
            self.assertIn(said, checks["mtu"]["message"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
