"""Real daemons on real ports: a training job between virtual hosts, its weights compared bit by bit
with a single-process run. Needs root (network namespaces).

usage: hosts_test.py STACKD CTL TRAINER [unittest arguments]
"""
import contextlib
import filecmp
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import netlab  # noqa: E402
import ready  # noqa: E402
from daemons import cpu_s, least_busy  # noqa: E402

STACKD, CTL, TRAINER = sys.argv[1:4]
ITERATIONS = 3
WORKERS = 2
PATIENT = '[session]\npeer_timeout = "600s"\n'  # far longer than any test waits
NR_HUGEPAGES = "/proc/sys/vm/nr_hugepages"


def hugepages_free():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("HugePages_Free:"))


class Site:
    """Daemons on hosts, and programs attached to them; all of it ends with close()."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def daemon(self, name, popen, port, hugepages="off", open_jobs=True):
        with open(self.path(name + ".toml"), "w") as file:
            file.write(f'[port]\nudp_port = 7470\nhugepages = "{hugepages}"\n{port}\n[attach]\nsocket = "{self.path(name)}.sock"\n')
        with open(self.path(name + ".log"), "w") as log:
            try:
                process = ready.start_ready(
                    functools.partial(popen, [STACKD, "--config", file.name, *(["--set", "jobs.open=true"] if open_jobs else [])], stderr=log),
                    self.path(name + ".notify"))
            except ready.NotReady as error:
                raise AssertionError(f"{name} {error}: {self.log(name)}") from None
        self.processes.append(process)
        return process

    def log(self, name):
        with open(self.path(name + ".log")) as file:
            return file.read()

    def worker(self, name, rank, rendezvous, servers, iterations=ITERATIONS, workers=WORKERS, prefix=()):
        with open(self.path(f"worker-{rank}.log"), "w") as log:
            process = subprocess.Popen(
                [*prefix, TRAINER, "--mode", "daemon", "--rank", str(rank), "--workers", str(workers), "--servers", str(servers),
                 "--rendezvous", rendezvous, "--iterations", str(iterations), "--batch", "16", "--weights",
                 self.path(f"weights-{rank}")],
                stdout=log, stderr=log, env={**os.environ, "MERCURY_SOCKET": self.path(name) + ".sock"})
        self.processes.append(process)
        return process

    def engines(self, name, question):
        answer = subprocess.run([CTL, "--socket", self.path(name) + ".sock", question, "--json"], capture_output=True, text=True)
        return json.loads(answer.stdout)["engines"]

    def counters(self, name):
        return [engine["counters"] for engine in self.engines(name, "stats")]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()


class HostsTest(unittest.TestCase):
    def setUp(self):
        self.fresh_site()

    def fresh_site(self):
        """Ends what an earlier part of the test started, and begins anew."""
        self.doCleanups()
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.site = Site(folder.name)

    def lab(self, names, mtu=1500):
        self.fresh_site()
        lab = netlab.Lab(f"mt{os.getpid()}", names, mtu=mtu)
        self.addCleanup(lab.close)
        self.addCleanup(self.site.close)  # runs first: daemons end before their namespaces go
        return lab

    def check_weights(self, workers=WORKERS, iterations=ITERATIONS):
        reference = self.site.path("reference")
        subprocess.run([TRAINER, "--role", "reference", "--workers", str(workers), "--iterations", str(iterations),
                        "--batch", "16", "--weights", reference], check=True, stdout=subprocess.DEVNULL, timeout=120)
        for rank in range(workers):
            self.assertTrue(filecmp.cmp(self.site.path(f"weights-{rank}"), reference, shallow=False), f"worker {rank}")

    def run_workers(self, hosts, rendezvous, servers, workers=WORKERS, prefix=()):
        programs = [self.site.worker(host, rank, rendezvous, servers, workers=workers, prefix=prefix)
                    for rank, host in enumerate(hosts)]
        for rank, program in enumerate(programs):
            self.assertEqual(program.wait(120), 0, self.site.log(f"worker-{rank}"))
        self.check_weights(workers)

    def star(self, worker_port, server_port, mtu=1500, v6=False, servers=1, prefix=()):
        """Two workers, and servers, each on a host of its own; port(host) gives each [port] section."""
        names = [f"w{i}" for i in range(WORKERS)] + [f"s{i}" for i in range(servers)]
        lab = self.lab(names, mtu)
        for host in lab.hosts:
            port = (worker_port if host.name.startswith("w") else server_port)
            self.site.daemon(host.name, lambda command, h=host, **o: h.popen(list(prefix) + command, **o), port(host, v6))
        address = lambda host: f"[{host.ip6}]" if v6 else host.ip
        rendezvous = ",".join(f"{address(lab[f's{i}'])}:7470" for i in range(servers))
        self.run_workers([f"w{i}" for i in range(WORKERS)], rendezvous, servers, prefix=prefix)
        return lab

    @staticmethod
    def ethdev(device, engines=1, extra=""):
        def port(host, v6):
            address = f"{host.ip6}/64" if v6 else f"{host.ip}/24"
            return (f'kind = "ethdev"\ndevice = "{device}"\ninterface = "eth0"\naddress = ["{address}"]\n'
                    f"engines = {engines}\n{extra}")
        return port

    @staticmethod
    def uring(host, v6):
        address = f"{host.ip6}/64" if v6 else f"{host.ip}/24"
        return f'kind = "uring"\naddress = ["{address}"]\n'

    def test_af_packet(self):
        for v6 in (False, True):
            with self.subTest(ipv6=v6):
                self.star(self.ethdev("af_packet"), self.ethdev("af_packet"), v6=v6, servers=2)

    def test_af_packet_jumbo(self):
        lab = self.star(self.ethdev("af_packet"), self.ethdev("af_packet"), mtu=9000)
        engine = self.site.engines("s0", "status")[0]
        self.assertEqual(engine["max_udp_payload"], 8972)
        self.assertEqual(engine["link_bytes_per_second"], 0)  # what the kernel says of a veth is made up
        self.assertIn("ttl=", netlab.sh("ping", "-c1", "-W2", lab["s0"].ip, ns=lab["w0"].ns))

    def test_af_xdp(self):
        for v6 in (False, True):
            with self.subTest(ipv6=v6):
                lab = self.star(self.ethdev("af_xdp"), self.ethdev("af_xdp"), v6=v6)
                # The kernel goes on using the interface.
                self.assertIn("ttl=", netlab.sh("ping", "-c1", "-W2", lab["s0"].ip, ns=lab["w0"].ns))

    def test_uring(self):
        for v6 in (False, True):
            with self.subTest(ipv6=v6):
                self.star(self.uring, self.uring, v6=v6)

    def test_dpdk_hosts_talk_to_kernel_hosts(self):
        for v6 in (False, True):
            with self.subTest(ipv6=v6):
                self.star(self.ethdev("af_xdp"), self.uring, v6=v6)
        self.star(self.uring, self.ethdev("af_packet"))

    def test_two_engines(self):
        for device in ("af_packet", "af_xdp"):
            with self.subTest(device=device):
                port = self.ethdev(device, engines=2, extra='rate = "10Gbit"\n')
                self.star(port, port)
                rates = [engine["link_bytes_per_second"] for engine in self.site.engines("s0", "status")]
                self.assertEqual(rates, [10e9 / 8] * 2)
                for engine in self.site.engines("s0", "stats"):
                    self.assertGreater(engine["counters"]["push_chunks"], 0)
                    passes = sum(count for _, count in engine["passes"]["below_ns"])
                    self.assertGreater(passes, 0)
                    self.assertLess(passes, engine["counters"]["polls"])
                    self.assertGreater(engine["passes"]["longest_ns"], 0)
                    self.assertGreaterEqual(engine["passes"]["total_ns"], engine["passes"]["longest_ns"])
                if device == "af_xdp":  # one queue: the second engine is fed by hand-off
                    self.assertGreater(sum(engine["handoffs"] for engine in self.site.counters("s0")), 0)

    def test_hosts_with_different_numbers_of_engines(self):
        for workers, servers in ((1, 2), (2, 1)):
            with self.subTest(workers=workers, servers=servers):
                self.star(self.ethdev("af_packet", engines=workers), self.ethdev("af_packet", engines=servers))
                self.assertEqual(len(self.site.engines("s0", "status")), servers)

    def test_one_core(self):
        self.star(self.ethdev("af_packet"), self.ethdev("af_packet"), prefix=("taskset", "-c", "0"))

    def test_memif(self):
        for engines in (1, 2):
            for v6 in (False, True):
                with self.subTest(engines=engines, ipv6=v6):
                    self.fresh_site()
                    self.addCleanup(self.site.close)
                    for name, role, number in (("s0", "server", 1), ("w0", "client", 2)):
                        address = f"fd00::{number}/64" if v6 else f"10.78.0.{number}/24"
                        self.site.daemon(name, subprocess.Popen,
                                         f'kind = "ethdev"\ndevice = "memif"\nmemif_socket = "{self.site.path("m.sock")}"\n'
                                         f'memif_role = "{role}"\naddress = ["{address}"]\nengines = {engines}\nmtu = 9000\n')
                    self.run_workers(["w0"], "[fd00::1]:7470" if v6 else "10.78.0.1:7470", 1, workers=1)

    def counters_of(self, name):
        counters, = self.site.counters(name)
        return counters

    def test_idle_daemons_sleep_and_start_at_once(self):
        lab = self.lab(["x", "p"])
        ports = {"af_xdp": (lab["x"].popen, self.ethdev("af_xdp")(lab["x"], False)),
                 "af_packet": (lab["p"].popen, self.ethdev("af_packet")(lab["p"], False))}
        for number, role in enumerate(("server", "client"), 1):
            ports[f"memif-{role}"] = (subprocess.Popen, f'kind = "ethdev"\ndevice = "memif"\nmemif_role = "{role}"\n'
                                      f'memif_socket = "{self.site.path("m.sock")}"\naddress = ["10.78.0.{number}/24"]\n')
        daemons, started_s, before = {}, {}, {}
        for name, (popen, port) in ports.items():  # none has hugepages
            daemons[name] = self.site.daemon(name, popen, port)
            started_s[name] = cpu_s(daemons[name])
        idle = dict(zip(daemons, least_busy(*daemons.values(), seconds=1)))
        for name in daemons:
            before[name] = (time.monotonic(), self.counters_of(name))
        time.sleep(1)
        print()
        for name, daemon in daemons.items():
            self.assertIsNone(daemon.poll(), self.site.log(name))
            now, passed_s = self.counters_of(name), time.monotonic() - before[name][0]
            polls, sleeps = (now[key] - before[name][1][key] for key in ("polls", "sleeps"))
            print(f"{name}: ready after {started_s[name]:.2f} s of CPU time, idle {100 * idle[name]:.1f} % of a core, "
                  f"{polls / passed_s:.0f} polls and {sleeps / passed_s:.0f} sleeps a second", flush=True)
            self.assertLess(started_s[name], 2, name)
            # In counts, which a busy machine does not raise: memif naps for 1 ms. The questions wake it too.
            self.assertLess(polls, 1500 * passed_s, name)
            self.assertGreater(sleeps, 0, name)
            self.assertLess(idle[name], 0.5, name)  # nothing else of the daemon spins

    def test_a_program_that_is_killed_harms_only_its_job(self):
        lab = self.lab(["w0", "w1", "s0"])
        for host in lab.hosts:
            self.site.daemon(host.name, host.popen, self.ethdev("af_packet", extra=PATIENT)(host, False))
        rendezvous = f"{lab['s0'].ip}:7470"
        programs = [self.site.worker(f"w{rank}", rank, rendezvous, 1, iterations=100000) for rank in range(2)]
        while not any(engine["push_chunks"] > 1000 for engine in self.site.counters("s0")):
            for rank, program in enumerate(programs):
                self.assertIsNone(program.poll(), self.site.log(f"worker-{rank}"))
        programs[1].send_signal(signal.SIGKILL)
        self.assertEqual(programs[0].wait(120), 1)  # the daemon told it: no time-out has passed
        self.assertIn("exchange", self.site.log("worker-0"))
        self.run_workers(["w0", "w1"], rendezvous, 1)  # the daemons are as good as before

    def reserve_hugepages(self, megabytes):
        """As many free 2 MB pages; afterwards the machine has as many as it had."""
        def number():
            with open(NR_HUGEPAGES) as file:
                return int(file.read())

        def reserve(pages):
            with contextlib.suppress(OSError), open(NR_HUGEPAGES, "w") as file:
                file.write(str(pages))
        before, wanted = number(), megabytes // 2
        self.addCleanup(reserve, before)
        reserve(before + wanted)
        if hugepages_free() < wanted or number() < before + wanted:
            self.skipTest(f"no {wanted} hugepages of 2 MB here")

    def test_hugepages_of_a_killed_daemon_are_free_again(self):
        host, = self.lab(["w0"]).hosts
        self.reserve_hugepages(256)
        before = hugepages_free()
        port = self.ethdev("af_packet", extra='memory = "256MB"\n')(host, False)
        for _ in range(3):  # each starts over what the last one left
            daemon = self.site.daemon("w0", host.popen, port, hugepages="on")
            self.assertLess(hugepages_free(), before)
            daemon.kill()
            daemon.wait()
            deadline = time.monotonic() + 60
            while hugepages_free() != before and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(hugepages_free(), before)

    def test_the_daemon_is_lost(self):
        lab = self.lab(["w0", "s0"])
        daemons = {host.name: self.site.daemon(host.name, host.popen, self.ethdev("af_packet", extra=PATIENT)(host, False))
                   for host in lab.hosts}
        program = self.site.worker("w0", 0, f"{lab['s0'].ip}:7470", 1, iterations=100000, workers=1)
        while not any(engine["push_chunks"] > 1000 for engine in self.site.counters("s0")):
            self.assertIsNone(program.poll(), self.site.log("worker-0"))
        daemons["w0"].send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(120), 1)
        self.assertIn("mercury-stackd has gone", self.site.log("worker-0"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
