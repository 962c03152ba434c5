#!/usr/bin/env python3
"""Programs that were never changed, over the kernel's TCP and over Mercury in turns, on the same links.

    sudo benchmarks/sockets/sockets.py                  5 runs of each, about six minutes
    sudo benchmarks/sockets/sockets.py --where within   two programs of one host alone
    sudo benchmarks/sockets/sockets.py --quick          one short run of each: a smoke test

Two virtual hosts around a switch, MTU 9000, nothing shaped, a mercury-stackd of port kind uring on each.
Both ends share this machine's processors, and no frame leaves the kernel: that is the kernel's best case,
in which it passes on buffers of 64 KB, and Mercury's worst, which sends them through it as datagrams.
TCP keeps its segmentation offload. Two programs of one host meet at 127.0.0.1: over Mercury each has one
end of a Unix pair, and no daemon has to do with their bytes. Needs root, and Debian's iperf3, redis-server,
redis-tools, nginx, wrk, socat: what is missing is named, has no figure, and the status is 1. ZeroMQ's ends are
benchmarks/sockets/zeromq_bench.

Median, and in brackets (largest - smallest) / median. CPU: user and system time of both programs and of
both daemons, for each byte of payload; what the kernel does in interrupts is where it happens to fall.
"""
import argparse
import json
import pathlib
import re
import signal
import statistics
import sys
import time

import lab  # beside this program
import recording
from two_hosts import DEBIAN_PYTHON, wait_until
from usage import cpu_s

# Bytes of a message: how many are asked one after the other, how many are sent at once.
SIZES = {1: (3000, 300_000), 1_000: (3000, 150_000), 64_000: (1000, 5000), 1_000_000: (150, 300), 16_000_000: (12, 20)}
IPERF3_BYTES = 500_000_000
# Its server does not count what it has not read when the client says that it is done: that may be all of what fits into
# the sockets of eight streams, each of which holds 4 MB and more (the kernel's tcp_wmem).
IPERF3_LEAST_BYTES = 100_000_000
REDIS_REQUESTS = 60_000
PAGE_BYTES = 5000
WRK_S = 3
FILE_BYTES, FILE_LEAST_BYTES = 1_000_000_000, 20_000_000
ASYNCIO = pathlib.Path(lab.ROOT, "tests/programs/asyncio_program.py")
ECHO_CLIENTS, ECHO_BYTES = 60, 2_000_000
WHERE = {"between": "a", "within": "b"}  # the host of who connects; who listens is on "b"


def named(size):
    return f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size // 1000} KB" if size >= 1000 else f"{size} B"


class Bench:
    last_port = 7000

    def __init__(self, hosts, program, scale, where):
        self.hosts, self.program, self.scale, self.where = hosts, program, scale, where
        self.address = "127.0.0.1" if where == "within" else hosts.address("b")
        self.rows = {}  # (what, unit, smaller is better): {mercury: [figure of each run]}

    def add(self, what, unit, better, mercury, figure):
        what = f"one host: {what}" if self.where == "within" else what
        self.rows.setdefault((what, unit, better), {False: [], True: []})[mercury].append(figure)

    def port(self):
        Bench.last_port += 1
        return Bench.last_port

    def serve(self, command, port, mercury):
        before = self.hosts.sockets("b")["listeners"]
        server = self.hosts.popen("b", command, mercury)
        self.hosts.listens("b", port, server)
        if not wait_until(lambda: not mercury or self.hosts.sockets("b")["listeners"] > before):
            raise SystemExit("sockets.py: the daemon was not told of a listener")
        return server

    def ask(self, command, mercury):
        """What a client says, that asks a server on "b"."""
        return self.hosts.run(WHERE[self.where], command, mercury)

    def daemons_cpu_s(self):
        return sum(map(cpu_s, self.hosts.daemons.values()))

    def ends(self, one, other, count, size, mercury):
        """What both ends print, and the CPU time that all took."""
        port = self.port()
        endpoint, before = f"tcp://{self.address}:{port}", self.daemons_cpu_s()
        server = self.serve([self.program, one, endpoint, count, size], port, mercury)
        client = json.loads(self.ask([self.program, other, endpoint, count, size], mercury))
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

    def iperf3_once(self, streams, mercury):
        """Gbit/s, and nanoseconds of CPU time of a byte."""
        port, before = self.port(), self.daemons_cpu_s()
        self.serve(["iperf3", "-s", "-1", "-p", port], port, mercury)
        end = json.loads(self.ask(["iperf3", "-J", "-c", self.address, "-p", port, "-P", streams,
                                   "-n", max(IPERF3_LEAST_BYTES, int(IPERF3_BYTES * self.scale))], mercury))["end"]
        received, busy = end["sum_received"], end["cpu_utilization_percent"]
        cpu = (busy["host_total"] + busy["remote_total"]) / 100 * received["seconds"]
        cpu += self.daemons_cpu_s() - before if mercury else 0
        return received["bits_per_second"] / 1e9, cpu / received["bytes"] * 1e9

    def iperf3(self, mercury):
        for streams in (1, 8):
            name = f"iperf3, {streams} stream{'s' * (streams > 1)}"
            rate, cpu = self.iperf3_once(streams, mercury)
            self.add(name, "Gbit/s", "more", mercury, rate)
            self.add(f"{name}, CPU", "ns/byte", "less", mercury, cpu)

    def redis(self, mercury):
        port = self.port()
        server = self.serve(["redis-server", "--port", port, "--bind", "*", "--protected-mode", "no", "--save", ""], port, mercury)
        for pipeline in (1, 16):
            said = self.ask(["redis-benchmark", "-h", self.address, "-p", port, "-t", "set,get", "-d", "100",
                             "-n", int(REDIS_REQUESTS * self.scale), "-P", pipeline, "--csv"], mercury)
            for line in said.splitlines()[1:]:
                fields = [field.strip('"') for field in line.split(",")]
                self.add(f"redis {fields[0]}, 50 clients, {pipeline} at a time", "1000/s", "more", mercury, float(fields[1]) / 1000)
                if pipeline == 1:
                    self.add(f"redis {fields[0]}, 50 clients, {pipeline} at a time, p99", "ms", "less", mercury, float(fields[6]))
        server.terminate()
        server.wait()

    def nginx(self, mercury):
        port, folder = self.port(), pathlib.Path(self.hosts.path(f"nginx-{self.last_port}"))
        folder.mkdir()
        (folder / "page").write_bytes(bytes(PAGE_BYTES))
        kept = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "conf").write_text(
            f"user root; daemon off; worker_processes 2; error_log {folder}/error.log; pid {folder}/pid;\n"
            f"events {{}} http {{ sendfile on; access_log off; keepalive_requests 1000000; {kept}\n"
            f"server {{ listen *:{port} reuseport; root {folder}; location /once {{ alias {folder}/; keepalive_timeout 0; }} }} }}\n")
        server = self.serve(["nginx", "-c", folder / "conf", "-p", folder, "-e", folder / "error.log"], port, mercury)
        for path, how in (("page", "50 clients"), ("once/page", "50 clients, a connection each")):
            said = self.ask(["wrk", "-t", 2, "-c", 50, "-d", f"{max(1, round(WRK_S * self.scale))}s", "--latency",
                             f"http://{self.address}:{port}/{path}"], mercury)
            wrong = re.search("Socket errors.*|Non-2xx.*", said)
            if wrong:
                raise SystemExit(f"sockets.py: wrk: {wrong.group()}")
            self.add(f"nginx, {how}", "1000/s", "more", mercury, float(re.search(r"Requests/sec: +([\d.]+)", said).group(1)) / 1000)
            number, unit = re.search(r"99% +([\d.]+)(us|ms|s)\n", said).groups()
            self.add(f"nginx, {how}, p99", "ms", "less", mercury, float(number) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit])
        server.send_signal(signal.SIGQUIT)
        server.wait()

    def socat(self, mercury):
        port, sent, size = self.port(), pathlib.Path(self.hosts.path("file")), max(FILE_LEAST_BYTES, int(FILE_BYTES * self.scale))
        if not sent.exists():
            sent.write_bytes(bytes(size))
        server = self.serve(["socat", "-u", f"TCP4-LISTEN:{port}", "OPEN:/dev/null"], port, mercury)
        began = time.monotonic()
        self.ask(["socat", "-u", f"FILE:{sent}", f"TCP4:{self.address}:{port}"], mercury)
        self.hosts.output(server)
        self.add("socat, a file", "MB/s", "more", mercury, size / (time.monotonic() - began) / 1e6)

    def asyncio(self, mercury):
        port, size = self.port(), int(ECHO_BYTES * self.scale)
        server = self.serve([DEBIAN_PYTHON, ASYNCIO, "serve", self.address, port], port, mercury)
        began = time.monotonic()
        self.ask([DEBIAN_PYTHON, ASYNCIO, "ask", self.address, port, ECHO_CLIENTS, size], mercury)
        self.add(f"asyncio, {ECHO_CLIENTS} clients' echoes", "MB/s", "more", mercury, 2 * ECHO_CLIENTS * size / (time.monotonic() - began) / 1e6)
        server.terminate()
        server.wait()

    def is_over_mercury(self):
        """What daemons have carried so far, or connections within the host that one has made."""
        if self.where == "within":
            return self.hosts.sockets("b")["local_connections"]
        return self.hosts.bytes_carried()["a"][0] // 100_000

    def run(self, names):
        for measure in (getattr(self, name) for name in names):
            for mercury in (False, True):
                before = self.is_over_mercury()
                measure(mercury)
                if (self.is_over_mercury() > before) != mercury:
                    raise SystemExit(f"sockets.py: {measure.__name__}: {'not ' * mercury}over Mercury")
        self.hosts.end_programs()

    def print(self):
        cell = lambda figures: f"{statistics.median(figures):.4g} ({(max(figures) - min(figures)) / statistics.median(figures):.0%})"
        print("| | | kernel | Mercury | Mercury / kernel |\n|---|---|---|---|---|")
        for (what, unit, better), figures in self.rows.items():
            ratio = statistics.median(figures[True]) / statistics.median(figures[False])
            wins = (ratio < 1) == (better == "less")
            print(f"| {what} | {unit}, {better} is better | {cell(figures[False])} | {cell(figures[True])} | "
                  f"{'**' * wins}{ratio:.2f}{'**' * wins} |")

    def records(self):
        """As docs/records/sockets.csv has them."""
        for (what, unit, _), figures in self.rows.items():
            kernel, mercury = statistics.median(figures[False]), statistics.median(figures[True])
            yield {"what": what.replace(",", ""), "unit": unit, "kernel": f"{kernel:.4g}", "mercury": f"{mercury:.4g}",
                   "ratio": f"{mercury / kernel:.2f}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    lab.add_settings(parser)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--where", nargs="+", choices=WHERE, default=list(WHERE), help="two hosts, one host (default: both)")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--record", type=pathlib.Path, help="append to this CSV file, such as docs/records/sockets.csv")
    arguments = parser.parse_args()
    program = arguments.build / "benchmarks/sockets/zeromq_bench"
    lab.use_build(arguments.build, program)
    names, reasons = lab.measurable(lab.PROGRAMS)
    hosts = lab.two_hosts(settings=arguments.settings)
    try:
        benches = [Bench(hosts, program, 0.02 if arguments.quick else 1, where) for where in arguments.where]
        for _ in range(1 if arguments.quick else arguments.repeat):
            for bench in benches:
                bench.run(names)
    finally:
        hosts.close()
    for bench in benches:
        bench.print()
    if arguments.record:
        recording.append(arguments.record, [row for bench in benches for row in bench.records()])
    print(*reasons, sep="\n", file=sys.stderr)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
