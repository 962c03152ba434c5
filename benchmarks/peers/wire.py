"""Bytes and messages between two hosts, with one connection: mercury-perf over Mercury's sockets, and what peers make of the
kernel's TCP on the same links. Hosts and links are those of benchmarks/sockets."""
import json
import os
import pathlib
import re
import shutil
import sys

from pairs import MERCURY, Measure, NotMeasured

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "sockets"))
import lab  # noqa: E402
from sockets import Bench, named  # noqa: E402
from two_hosts import CLEAN, wait_until  # noqa: E402
from usage import cpu_s  # noqa: E402

BLOCK_BYTES = 128 * 1024
# Bytes of a message: how many are asked one after the other.
MESSAGES = {64: 20_000, 4_096: 20_000, 65_536: 4_000, 1_048_576: 400}
STREAM_BYTES = 4_000_000_000
LEAST_BYTES, LEAST_TIMES = 100_000_000, 300  # below, what starting takes would be most of it
PERF_PORT = 7480
GBIT = Measure("a stream, blocks of 128 KiB", "Gbit/s", "more")
CPU = Measure("a stream, blocks of 128 KiB, CPU", "ns/byte", "less")


def round_trip(size, percentile):
    return Measure(f"request and reply, {named(size)}, {percentile}", "us", "less")


class Ends(Bench):
    """Programs on both hosts."""

    def __init__(self, hosts, build, scale):
        super().__init__(hosts, build / "benchmarks/sockets/zeromq_bench", scale, "between")
        self.build, self.perf = build, build / "apps/perf/mercury-perf"
        self.server = None

    def blocks(self):
        return max(LEAST_BYTES, int(STREAM_BYTES * self.scale)) // BLOCK_BYTES

    def times(self, size):
        return max(LEAST_TIMES, int(MESSAGES[size] * self.scale))

    def finished(self, process):
        """What it says, and the CPU time that it took: of its threads that have ended, too."""
        ended = lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        if not wait_until(ended):
            raise AssertionError(f"{process.how}: not done: {self.hosts.words(process)}")
        used = cpu_s(process)
        return self.hosts.output(process), used

    def both(self, listener, caller, port):
        """Over the kernel: what the two say, and the CPU time that they took."""
        server = self.serve(listener, port, mercury=False)
        said, used = self.finished(self.hosts.popen("a", caller, mercury=False))
        heard, used_there = self.finished(server)
        return heard, said, used + used_there


class Mercury:
    """mercury-perf on both hosts: the library's own calls, and the daemons."""

    def __init__(self, ends):
        self.ends = ends
        self.server = ends.serve(self.command("b", "serve", "--port", PERF_PORT), PERF_PORT, mercury=False)
        # Listens at both; the kernel's end is there first.
        if not wait_until(lambda: ends.hosts.sockets("b")["listeners"] > 0):
            raise NotMeasured("mercury-perf serve does not listen over Mercury")

    def command(self, host, *words):
        return ["env", f"MERCURY_PRELOAD_SOCKET={self.ends.hosts.path(host)}.sock.tcp", self.ends.perf, *words]

    def ask(self, what, size, *words):
        """The row of that size, and the CPU time that both programs and both daemons took for it."""
        before = cpu_s(self.server) + self.ends.daemons_cpu_s()
        client = self.ends.hosts.popen("a", self.command("a", what, self.ends.address, "--port", PERF_PORT, "--sizes", f"{size}B",
                                                         "--repeats", 1, "--json", "-", *words), mercury=False)
        said, used = self.ends.finished(client)
        (row,) = json.loads(said)["rows"]
        if "not_measured" in row:
            raise NotMeasured(row["not_measured"])
        return row, used + cpu_s(self.server) + self.ends.daemons_cpu_s() - before

    def stream(self):
        carried = lambda: self.ends.hosts.bytes_carried()["b"][1]
        before = carried()
        seconds = max(0.2, 2 * self.ends.scale)
        row, used = self.ask("stream", BLOCK_BYTES, "--time", f"{seconds}s")
        return row["gbit_per_s"]["median"], used / (carried() - before) * 1e9

    def messages(self, size):
        row, _ = self.ask("messages", size, "--time", f"{max(0.3, self.ends.scale)}s")
        times = [row["latency_us"][name] for name in ("p50", "p99")]
        if None in times:
            raise NotMeasured("too few messages for a p99")
        return times


class Plain:
    """A program of one thread over the kernel's TCP."""

    def __init__(self, ends, way):
        self.ends, self.way, self.program = ends, way, ends.build / "benchmarks/peers/socket_bench"

    def needs(self):
        yield self.program.is_file(), f"no {self.program}: tools/build makes it"

    def ask(self, listener, caller, times, size):
        port = self.ends.port()
        words = [self.ends.address, port, times, size]
        heard, said, used = self.ends.both([self.program, self.way, listener, *words], [self.program, self.way, caller, *words], port)
        return json.loads(heard), json.loads(said), used

    def stream(self):
        blocks = self.ends.blocks()
        heard, _, used = self.ask("pull", "push", blocks, BLOCK_BYTES)
        return heard["bytes"] * 8 / heard["seconds"] / 1e9, used / (blocks * BLOCK_BYTES) * 1e9

    def messages(self, size):
        _, said, _ = self.ask("reply", "request", self.ends.times(size), size)
        return said["p50_us"], said["p99_us"]


class ZeroMq:
    def __init__(self, ends):
        self.ends = ends

    def needs(self):
        yield self.ends.program.is_file(), f"no {self.ends.program}: apt-get install cppzmq-dev, and tools/build makes it"

    def stream(self):
        blocks = self.ends.blocks()
        heard, _, used = self.ends.ends("pull", "push", blocks, BLOCK_BYTES, mercury=False)
        return (blocks - 1) * BLOCK_BYTES * 8 / heard["seconds"] / 1e9, used / (blocks * BLOCK_BYTES) * 1e9

    def messages(self, size):
        _, said, _ = self.ends.ends("reply", "request", self.ends.times(size), size, mercury=False)
        return said["p50_us"], said["p99_us"]


class Iperf3:
    def __init__(self, ends):
        self.ends = ends

    def needs(self):
        yield shutil.which("iperf3", path=CLEAN["PATH"]), "no iperf3: apt-get install iperf3"

    def stream(self):
        return self.ends.iperf3_once(1, mercury=False)


class Ucx:
    """ucx_perftest: messages by tag. It polls, and so takes a core at each end while it waits."""
    WARM_UP = 100

    def __init__(self, ends):
        self.ends = ends

    def needs(self):
        yield shutil.which("ucx_perftest", path=CLEAN["PATH"]), "no ucx_perftest: apt-get install ucx-utils"

    def ask(self, test, times, size, *words):
        """What final_of() gives, and the CPU time of both ends."""
        port = self.ends.port()
        command = ["env", "UCX_TLS=tcp", "UCX_NET_DEVICES=eth0", "ucx_perftest", "-p", port]
        _, said, used = self.ends.both(command, [*command, self.ends.address, "-t", test, "-s", size, "-n", times, "-w", self.WARM_UP,
                                                 "-f", *words], port)
        return final_of(said), used

    def stream(self):
        blocks = self.ends.blocks()
        final, used = self.ask("tag_bw", blocks, BLOCK_BYTES)
        return final["overall_mib_per_s"] * 2**20 * 8 / 1e9, used / ((blocks + self.WARM_UP) * BLOCK_BYTES) * 1e9

    def messages(self, size):
        """It calls half a round trip a latency, and says one percentile in a run."""
        return [2 * self.ask("tag_lat", self.ends.times(size), size, "-R", percentile)[0]["percentile_us"] for percentile in (50, 99)]


def final_of(said):
    """Of the last line of ucx_perftest -f: iterations; a time's percentile, average, overall; average and overall of MiB/s and of
    messages a second."""
    numbers = said.strip().rpartition("\n")[2].split()
    if len(numbers) != 8 or not re.fullmatch(r"[\d. ]+", " ".join(numbers)):
        raise NotMeasured(f"ucx_perftest says nothing that is known: {said.strip()[-200:]}")
    return {"percentile_us": float(numbers[1]), "overall_mib_per_s": float(numbers[5])}


class Sockets:
    """The group: each peer, and Mercury, once in a run; every second run the other way around."""
    NAME = "sockets"
    PEERS = {"epoll": "one thread with epoll, kernel TCP", "io_uring": "one thread with io_uring, kernel TCP",
             "iperf3": "iperf3, kernel TCP", "zeromq": "ZeroMQ, kernel TCP", "ucx": "UCX, kernel TCP"}

    def __init__(self, options):
        self.options, self.hosts = options, None

    def open(self):
        build = self.options.build
        lab.use_build(build, build / "apps/perf/mercury-perf")
        self.hosts = lab.two_hosts(settings=self.options.settings)
        ends = Ends(self.hosts, build, self.options.scale)
        made = {"epoll": Plain(ends, "epoll"), "io_uring": Plain(ends, "io_uring"), "iperf3": Iperf3(ends), "zeromq": ZeroMq(ends),
                "ucx": Ucx(ends)}
        self.ways = {MERCURY: Mercury(ends), **{self.PEERS[name]: made[name] for name in self.PEERS if name in self.options.peers}}

    def close(self):
        if self.hosts:
            self.hosts.close()
        self.hosts = None

    def check(self, pairs):
        """Who cannot run here, before anything is measured."""
        for peer, way in self.ways.items():
            for there, why in way.needs() if peer != MERCURY else ():
                if not there:
                    pairs.miss(self.NAME, peer, why)

    def turn(self, run, pairs):
        self.compare(run, pairs, (GBIT, CPU), "stream")
        for size in self.options.message_sizes:
            self.compare(run, pairs, (round_trip(size, "p50"), round_trip(size, "p99")), "messages", size)

    def compare(self, run, pairs, measures, what, *size):
        figures = {}
        for peer in [*self.ways][::-1 if run % 2 else 1]:
            way = self.ways[peer]
            if pairs.misses(self.NAME, peer) or not hasattr(way, what):
                continue
            try:
                figures[peer] = getattr(way, what)(*size)
            except (AssertionError, NotMeasured, ValueError, KeyError) as why:  # TwoHosts says so that a program has failed
                pairs.miss(self.NAME, peer, f"{what}: {why}")
        mercurys = figures.pop(MERCURY, ())
        for peer, of in figures.items():
            for measure, figure, mercury in zip(measures, of, mercurys):
                pairs.add(self.NAME, peer, measure, figure, mercury)
