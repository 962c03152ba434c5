#!/usr/bin/env python3
"""Programs that were never changed, over the kernel's TCP and over Mercury in turns, on the same links.

    sudo benchmarks/sockets/sockets.py               5 runs of each, about three minutes
    sudo benchmarks/sockets/sockets.py --quick       one short run of each: a smoke test

Two virtual hosts around a switch, MTU 9000, nothing shaped, a mercury-stackd of port kind uring on each.
Both ends share this machine's processors, and no frame leaves the kernel: that is the kernel's best case,
in which it passes on buffers of 64 KB, and Mercury's worst, which sends them through it as datagrams.
TCP keeps its segmentation offload. Needs root, and Debian's iperf3, redis-server, redis-tools; ZeroMQ's
ends are benchmarks/sockets/zeromq_bench.

Median, and in brackets (largest - smallest) / median. CPU: user and system time of both programs and of
both daemons, for each byte of payload; what the kernel does in interrupts is where it happens to fall.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "programs")]
import built  # noqa: E402
import netlab  # noqa: E402
from two_hosts import SKIPPED, Built, TwoHosts, wait_until  # noqa: E402

# Bytes of a message: how many are asked one after the other, how many are sent at once.
SIZES = {1: (3000, 300_000), 1_000: (3000, 150_000), 64_000: (1000, 5000), 1_000_000: (150, 300), 16_000_000: (12, 20)}
IPERF3_BYTES = 500_000_000
REDIS_REQUESTS = 60_000


def named(size):
    return f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size // 1000} KB" if size >= 1000 else f"{size} B"


def cpu_s(process):
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, hosts, program, scale):
        self.hosts, self.program, self.scale = hosts, program, scale
        self.last_port = 7000
        self.rows = {}  # (what, unit, smaller is better): {mercury: [figure of each run]}

    def add(self, what, unit, better, mercury, figure):
        self.rows.setdefault((what, unit, better), {False: [], True: []})[mercury].append(figure)

    def port(self):
        self.last_port += 1
        return self.last_port

    def serve(self, command, port, mercury):
        before = self.hosts.sockets("b")["listeners"]
        server = self.hosts.popen("b", command, mercury)
        self.hosts.listens("b", port, server)
        if not wait_until(lambda: not mercury or self.hosts.sockets("b")["listeners"] > before):
            raise SystemExit("sockets.py: the daemon was not told of a listener")
        return server

    def daemons_cpu_s(self):
        return sum(map(cpu_s, self.hosts.daemons.values()))

    def ends(self, one, other, count, size, mercury):
        """What both ends print, and the CPU time that all took."""
        port = self.port()
        endpoint, before = f"tcp://{self.hosts.endpoint('b', port)}", self.daemons_cpu_s()
        server = self.serve([self.program, one, endpoint, count, size], port, mercury)
        client = json.loads(self.hosts.run("a", [self.program, other, endpoint, count, size], mercury))
        server = json.loads(self.hosts.output(server))
        return server, client, server["cpu_s"] + client["cpu_s"] + (self.daemons_cpu_s() - before if mercury else 0)

    def zeromq(self, mercury):
        for size, (asked, sent) in SIZES.items():
            asked, sent = (max(10, int(count * self.scale)) for count in (asked, sent))
            _, client, _ = self.ends("reply", "request", asked, size, mercury)
            self.add(f"ZeroMQ request and reply, {named(size)}, p50", "us", "less", mercury, client["p50_us"])
            self.add(f"ZeroMQ request and reply, {named(size)}, p99", "us", "less", mercury, client["p99_us"])
            server, _, cpu = self.ends("pull", "push", sent, size, mercury)
            if size < 1000:
                self.add(f"ZeroMQ push, {named(size)}", "1000/s", "more", mercury, (sent - 1) / server["seconds"] / 1000)
            else:
                self.add(f"ZeroMQ push, {named(size)}", "MB/s", "more", mercury, (sent - 1) * size / server["seconds"] / 1e6)
                self.add(f"ZeroMQ push, {named(size)}, CPU", "ns/byte", "less", mercury, cpu / (sent * size) * 1e9)

    def iperf3(self, mercury):
        for streams in (1, 8):
            port, before = self.port(), self.daemons_cpu_s()
            self.serve(["iperf3", "-s", "-1", "-p", port], port, mercury)
            end = json.loads(self.hosts.run("a", ["iperf3", "-J", "-c", self.hosts.address("b"), "-p", port, "-P", streams,
                                                  "-n", int(IPERF3_BYTES * self.scale)], mercury))["end"]
            received, busy = end["sum_received"], end["cpu_utilization_percent"]
            cpu = (busy["host_total"] + busy["remote_total"]) / 100 * received["seconds"]
            cpu += self.daemons_cpu_s() - before if mercury else 0
            name = f"iperf3, {streams} stream{'s' * (streams > 1)}"
            self.add(name, "Gbit/s", "more", mercury, received["bits_per_second"] / 1e9)
            self.add(f"{name}, CPU", "ns/byte", "less", mercury, cpu / received["bytes"] * 1e9)

    def redis(self, mercury):
        port = self.port()
        server = self.serve(["redis-server", "--port", port, "--bind", "*", "--protected-mode", "no", "--save", ""], port, mercury)
        for pipeline in (1, 16):
            said = self.hosts.run("a", ["redis-benchmark", "-h", self.hosts.address("b"), "-p", port, "-t", "set,get", "-d", "100",
                                        "-n", int(REDIS_REQUESTS * self.scale), "-P", pipeline, "--csv"], mercury)
            for line in said.splitlines()[1:]:
                fields = [field.strip('"') for field in line.split(",")]
                self.add(f"redis {fields[0]}, 50 clients, {pipeline} at a time", "1000/s", "more", mercury, float(fields[1]) / 1000)
                if pipeline == 1:
                    self.add(f"redis {fields[0]}, 50 clients, {pipeline} at a time, p99", "ms", "less", mercury, float(fields[6]))
        server.terminate()
        server.wait()

    def run(self, repeat):
        for _ in range(repeat):
            for measure in (self.zeromq, self.iperf3, self.redis):
                for mercury in (False, True):
                    before = self.hosts.bytes_carried()["a"][0]
                    measure(mercury)
                    carried = self.hosts.bytes_carried()["a"][0] - before
                    if (carried > 100_000) != mercury:
                        raise SystemExit(f"sockets.py: {measure.__name__}: Mercury carried {carried} bytes")
            self.hosts.end_programs()

    def print(self):
        cell = lambda figures: f"{statistics.median(figures):.4g} ({(max(figures) - min(figures)) / statistics.median(figures):.0%})"
        print("| | | kernel | Mercury | Mercury / kernel |\n|---|---|---|---|---|")
        for (what, unit, better), figures in self.rows.items():
            ratio = statistics.median(figures[True]) / statistics.median(figures[False])
            wins = (ratio < 1) == (better == "less")
            print(f"| {what} | {unit}, {better} is better | {cell(figures[False])} | {cell(figures[True])} | "
                  f"{'**' * wins}{ratio:.2f}{'**' * wins} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path, help="Meson's build folder (default: build)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    arguments = parser.parse_args()
    Built.stackd, Built.ctl, Built.run = (str(arguments.build / path) for path in (
        "apps/stackd/mercury-stackd", "apps/ctl/mercuryctl", "apps/run/mercury-run"))
    program = arguments.build / "benchmarks/sockets/zeromq_bench"
    built.need(Built.stackd, Built.ctl, Built.run, program)
    for name in ("iperf3", "redis-server", "redis-benchmark"):
        if shutil.which(name) is None:
            print(f"skipped: {name} is missing")
            sys.exit(SKIPPED)
    try:
        hosts = TwoHosts()
    except netlab.LabError as error:
        print(f"skipped: {error}")
        sys.exit(SKIPPED)
    try:
        for host in hosts.lab.hosts:
            netlab.sh("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on", ns=host.ns)
            netlab.sh("ethtool", "-K", host.port, "tx", "on", "tso", "on", "gso", "on", ns=hosts.lab.switch)
        bench = Bench(hosts, program, 0.02 if arguments.quick else 1)
        bench.run(1 if arguments.quick else arguments.repeat)
        bench.print()
    finally:
        hosts.close()


if __name__ == "__main__":
    main()
