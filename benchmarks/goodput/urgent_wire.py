#!/usr/bin/env python3
"""How long what is most urgent takes to the other host and back, beside bulk on the same link: on a wire with real ports.

    sudo benchmarks/goodput/urgent_wire.py                            5 runs of each, about ten minutes
    sudo benchmarks/goodput/urgent_wire.py --mtu 9000 --port af_packet
    sudo benchmarks/goodput/urgent_wire.py --quick                    one short run of each: a smoke test

Two virtual hosts, each with a link of --mbit both ways to one switch. Bulk goes both ways, so much of what a link carries as
--loads say; 1 is as much as goes. Beside it --bytes are asked, one message under way at a time, and as many answered, by:

    chunk        Mercury: a tensor of priority 0, one frame, and its sum; the bulk is tensors of the same job at priority 1000
    sockets      Mercury: socket_bench, unchanged, over mercury-run; what is urgent has IP_TOS 0xf0, the bulk none
    tcp          socket_bench over the kernel's TCP, a connection for each
    tcp-prio     the same with IP_TOS 0xf0, and the host's own queue before the link: pfifo_fast, as a NIC has it, at 98 % of the link
    zeromq       ZeroMQ over the kernel's TCP, a socket for each
    zeromq-prio  the same with ZMQ_TOS 0xf0 and that queue

Printed are medians of the runs' percentiles, with the least and the most of these, in microseconds; and what the median is more
than the same way's at the first of --loads, which should be 0, in frames of the link, both directions together. Mercury may be
2 x (2 frames + port.tx_bound) more, and what the link carries in a pass of its engines (mercuryctl stats). Beside that the message
itself takes its time on each of the four links that it crosses there and back, which an idle link's token bucket spares it. The sum
stands below. What virtual hosts' processors are busy with is in all figures: two cores are too few for links as fast as they are.

TCP's congestion control is the kernel's default, or --tcp; it stands above. The link's queue, which is the switch's, holds 1 MiB; nothing in it knows priorities.
A way that cannot be measured is named with the reason, and the status is 1; 77 without root.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "sockets"))
import lab  # noqa: E402
import netlab  # noqa: E402
import recording  # noqa: E402
from two_hosts import TwoHosts, wait_until  # noqa: E402

WAYS = ["chunk", "sockets", "tcp", "tcp-prio", "zeromq", "zeromq-prio"]
PERCENTILES = ["p50_us", "p99_us", "most_us"]
FIELDS = ["load", "way", "port", "link", "mtu", "tcp", "bytes", "runs", *PERCENTILES, "more_frames", "p99_more_frames", "allowed_frames"]
URGENT_TOS = 0xf0  # class 7 of Mercury's; its low bits make the kernel's SO_PRIORITY 6, which pfifo_fast sends first
BLOCK_BYTES, SATURATED_BLOCK_BYTES = 64 * 1024, 1024 * 1024
HOST_PART = 0.98  # of the link's rate, so that frames wait at the host
ENDLESS = 10**9  # blocks: until it is ended
HEADER_BYTES = 28 + 48  # of a chunk's frame: IPv4 and UDP, and Mercury's
LINK_OVERHEAD_BYTES = 14 + 4 + 8 + 12  # of a frame: Ethernet, its checksum, preamble and gap


def frame_us(options):
    return (options.mtu + LINK_OVERHEAD_BYTES) * 8 / options.mbit


def allowed_frames(options):
    """More than without bulk, both directions together: two links each."""
    whole = options.mtu + LINK_OVERHEAD_BYTES
    return 2 * (2 + options.bound * 1024 / whole) + 4 * (options.bytes + HEADER_BYTES + LINK_OVERHEAD_BYTES) / whole


def asked_mbit(options):
    """So that messages meet blocks of bulk at half load in ever other places: by the golden ratio."""
    block_s = BLOCK_BYTES * 8 / (options.mbit * 1e6 / 2)
    return f"{options.bytes * 8 / (0.618 * block_s) / 1e6:.6f}"


class Wire:
    def __init__(self, options, hosts):
        self.options, self.hosts, self.last_port = options, hosts, 7000
        build = options.build
        self.socket_bench, self.zeromq_bench = build / "benchmarks/peers/socket_bench", build / "benchmarks/sockets/zeromq_bench"
        self.client = build / "benchmarks/goodput/urgent_client"

    def needs(self, way):
        """What it lacks here, or nothing."""
        if way.startswith("zeromq") and not self.zeromq_bench.is_file():
            return f"no {self.zeromq_bench}: apt-get install cppzmq-dev, and tools/build makes it"
        return None

    def measure(self, way, load):
        """Percentiles of a run."""
        if way == "chunk":
            return self.chunk(load)
        prio = way.endswith("-prio")
        try:
            if prio:
                self.queue_at_hosts()
            return self.messages(way, load, URGENT_TOS if prio or way == "sockets" else 0)
        finally:
            self.hosts.end_programs()
            if prio:
                for host in self.hosts.lab.hosts:
                    netlab.sh("tc", "qdisc", "del", "dev", "eth0", "root", ns=host.ns, check=False)

    def queue_at_hosts(self):
        for host in self.hosts.lab.hosts:
            netlab.sh("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", f"{HOST_PART * self.options.mbit:.3f}mbit",
                      "burst", str(self.hosts.lab.bucket_bytes), "limit", str(self.hosts.lab.queue_bytes), ns=host.ns)
            netlab.sh("tc", "qdisc", "add", "dev", "eth0", "parent", "1:1", "pfifo_fast", ns=host.ns)

    def chunk(self, load):
        options = self.options
        bulk = "none" if load == 0 else "saturated" if load == 1 else f"{load * options.mbit:g}"
        said = self.hosts.run("a", ["env", f"MERCURY_SOCKET={self.hosts.path('a')}.sock", self.client, "--server", f"{self.hosts.address('b')}:7470",
                                    "--bulk", bulk, "--block", SATURATED_BLOCK_BYTES if load == 1 else BLOCK_BYTES, "--bytes", options.bytes,
                                    "--times", options.times, "--asked", asked_mbit(options)], mercury=False)
        return json.loads(said)

    def messages(self, way, load, tos):
        """The same with messages of programs, and bulk that they push."""
        mercury = way == "sockets"
        for listener, pusher in ("ba", "ab") if load else ():
            self.pair(way, listener, pusher, ("pull", "push"), ENDLESS, BLOCK_BYTES, 0, *((load * self.options.mbit,) if load < 1 else ()),
                      mercury=mercury)
        if load:
            self.wait_for_bulk(load)
        _, client = self.pair(way, "b", "a", ("reply", "request"), self.options.times, self.options.bytes, tos, asked_mbit(self.options),
                              mercury=mercury)
        return json.loads(self.hosts.output(client))

    def pair(self, way, listener, caller, sides, *words, mercury):
        """Two programs that have met, or will."""
        self.last_port += 1
        port, address = self.last_port, self.hosts.address(listener)
        program = [self.zeromq_bench] if way.startswith("zeromq") else [self.socket_bench, "epoll"]
        where = [f"tcp://{address}:{port}"] if way.startswith("zeromq") else [address, port]
        before = self.hosts.sockets(listener)["listeners"]
        server = self.hosts.popen(listener, [*program, sides[0], *where, *words], mercury)
        self.hosts.listens(listener, port, server)
        if mercury and not wait_until(lambda: self.hosts.sockets(listener)["listeners"] > before):
            raise AssertionError("the daemon was not told of a listener")
        return server, self.hosts.popen(caller, [*program, sides[1], *where, *words], mercury)

    def wait_for_bulk(self, load):
        """Until each link has carried twice what its queue holds, which takes a window to fill."""
        carried = lambda: [max(self.hosts.lab.link_bytes(host)) for host in self.hosts.lab.hosts]
        before, wanted = carried(), 2 * load * self.hosts.lab.queue_bytes
        if not wait_until(lambda: all(now - then > wanted for now, then in zip(carried(), before))):
            raise AssertionError("the bulk does not flow")


def rows_of(options, runs):
    """`runs`: {(load, way): [percentiles of a run]}."""
    rest = {way: statistics.median(run["p50_us"] for run in found) for (load, way), found in runs.items() if load == options.loads[0] and found}
    for (load, way), found in runs.items():
        if not found or way not in rest:
            continue
        row = {"load": load, "way": way, "port": options.port, "link": f"{options.mbit}Mbps", "mtu": options.mtu, "tcp": options.tcp,
               "bytes": options.bytes, "runs": len(found)}
        row |= {name: [run[name] for run in found] for name in PERCENTILES}
        for name, of in (("more_frames", "p50_us"), ("p99_more_frames", "p99_us")):
            row[name] = (statistics.median(row[of]) - rest[way]) / frame_us(options)
        row["allowed_frames"] = allowed_frames(options) if way in ("chunk", "sockets") else None
        yield row


def table_of(options, rows, missing):
    cell = lambda values: f"{statistics.median(values):.0f} [{min(values):.0f}, {max(values):.0f}]"
    lines = [f"links of {options.mbit} Mbit/s, MTU {options.mtu}, a frame takes {frame_us(options):.1f} us; Mercury's port: {options.port}; "
             f"TCP: {options.tcp}; {options.bytes} bytes there and back", "",
             "| load | | p50 us | p99 us | most us | p50 more, frames | p99 more, frames |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {row['load']:g} | {row['way']} | {' | '.join(cell(row[name]) for name in PERCENTILES)} | {row['more_frames']:.1f} | "
              f"{row['p99_more_frames']:.1f} |" for row in rows]
    lines += ["", f"allowed more, for Mercury: {allowed_frames(options):.1f} frames: twice two and port.tx_bound ({options.bound} KiB), and its own on four links"]
    return "\n".join(lines + [f"not measured: {way}: {why}" for way, why in missing.items()])


def record_of(row):
    middle = {name: f"{statistics.median(row[name]):.4g}" for name in PERCENTILES}
    rounded = {name: "" if row[name] is None else f"{row[name]:.1f}" for name in ("more_frames", "p99_more_frames", "allowed_frames")}
    return {name: (row | middle | rounded)[name] for name in FIELDS}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    lab.add_settings(parser)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--loads", nargs="+", type=float, default=[0, 0.5, 1], help="parts of the link's rate [0 0.5 1]")
    parser.add_argument("--mbit", type=int, default=200, help="of a link [%(default)s]")
    parser.add_argument("--mtu", type=int, default=1500, help="[%(default)s]")
    parser.add_argument("--port", choices=["uring", "af_packet"], default="uring", help="Mercury's [%(default)s]")
    parser.add_argument("--bound", type=int, default=64, help="port.tx_bound in KiB [%(default)s, which is the daemon's default]")
    parser.add_argument("--tcp", help="the kernel's congestion control, one of those that it allows [as it is]")
    parser.add_argument("--bytes", type=int, default=1024, help="that are asked and answered [%(default)s]")
    parser.add_argument("--times", type=int, default=1000, help="in a run [%(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="one short run of each; other options say otherwise")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="the rows, each run's figures, and what was not measured")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="append to this CSV file, such as docs/records/urgent_wire.csv")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(runs=1, times=20)
    options = parser.parse_args()
    if min(options.mbit, options.runs, options.bound) < 1 or options.times < 10 or not 1280 <= options.mtu <= 9000:
        parser.error("--mbit, --runs, --bound: 1 or more; --times: 10 or more; --mtu: 1280 to 9000")
    if min(options.loads) < 0 or max(options.loads) > 1 or not 4 <= options.bytes <= 1024 or options.bytes % 4:
        parser.error("--loads: 0 to 1; --bytes: 4 to 1024, whole floats")
    options.build = options.build.resolve()
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("skipped: virtual hosts need root")
        return lab.SKIPPED
    if options.record:
        recording.check(options.record, FIELDS)
    lab.use_build(options.build, options.build / "benchmarks/peers/socket_bench", options.build / "benchmarks/goodput/urgent_client")
    settings = [f"port.rate={options.mbit}Mbit", f"port.tx_bound={options.bound}KiB", *options.settings]
    hosts = lab.two_hosts(rate_mbit=options.mbit, mtu=options.mtu, settings=settings, port=TwoHosts.af_packet if options.port == "af_packet" else None)
    runs, missing = {(load, way): [] for load in options.loads for way in options.ways}, {}
    try:
        options.tcp = lab.tcp_of(hosts, options.tcp)
        wire = Wire(options, hosts)
        missing = {way: why for way in options.ways if (why := wire.needs(way))}
        for run in range(options.runs):
            for load, way in runs:
                if way in missing:
                    continue
                try:
                    runs[load, way].append(wire.measure(way, load))
                except (AssertionError, ValueError, netlab.LabError) as why:
                    missing[way] = f"at load {load:g}: {' '.join(str(why).split())}"
            print(f"run {run + 1} of {options.runs} is done", file=sys.stderr, flush=True)
    finally:
        hosts.close()
    rows = [row for row in rows_of(options, runs) if row["way"] not in missing]
    print(table_of(options, rows, missing))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "frame_us": frame_us(options), "not_measured": missing}, indent=1) + "\n", encoding="utf-8")
    if options.record and rows:
        recording.append(options.record, [record_of(row) for row in rows])
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
