#!/usr/bin/env python3
"""What a byte costs in processor time where the wire is the limit: Mercury, polling without a pause or adaptively, and kernel TCP.

    sudo benchmarks/goodput/wire_cost.py                   io_uring and af_packet, MTU 1500 and 9000, 5 runs, ten minutes
    sudo benchmarks/goodput/wire_cost.py --quick           one short run of each: a smoke test

Two virtual hosts, each with a link of --mbit both ways to one switch, and bulk both ways that fills them:

    busy       tensors that a worker's host pushes and the other's daemon gives back as sums; engine.polling = "busy"
    adaptive   the same with engine.polling = "adaptive", the default
    tcp        two connections of the kernel's TCP, one each way: socket_bench, one thread with epoll at each end

Bytes are payload that arrived, both ways together. Each way is measured for --seconds once it flows. Nanoseconds a byte are of

    processes   all threads of both daemons and of the programs; for TCP, of all four programs. What the kernel does in interrupts is
                in whose time it happens to fall
    at work     the same, but of the daemons only their engines' passes that found work, by the clock: where others take an engine's
                core, that is in it. A busy engine takes a whole core however little there is to do, so for it this is what the bytes
                cost, and "processes" what the host pays
    machine     all that this machine's processors did: interrupts too, and whatever else ran. Only a quiet machine's figure counts

and "by TCP" is "processes" and "at work" by TCP's "processes" of the same run. Where less than --saturated of the link is filled, the
processors were the limit and not the wire: then there is no ratio, and the status is 1. Engines and programs all run at nice 0
(engine.scheduling = "normal"). With as many busy engines as cores the programs wait for them; a link that is slower takes that off.

Medians of the runs, with the least and the most. Needs root: 77 without.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "sockets"))
import lab  # noqa: E402
import netlab  # noqa: E402
import recording  # noqa: E402
from two_hosts import TwoHosts, wait_until  # noqa: E402
from usage import run_s  # noqa: E402

WAYS = ["tcp", "adaptive", "busy"]  # the first is what the others are divided by
FIGURES = ["gbit_per_s", "of_link", "processes_ns", "at_work_ns", "machine_ns", "by_tcp", "at_work_by_tcp"]
FIELDS = ["port", "way", "link", "mtu", "tcp", "runs", *FIGURES]
BLOCK_BYTES, ENDLESS = 128 * 1024, 10**9
WORKING_SET_BYTES = 16_000_000
MEET_S = 20


def machine_s():
    """Time that processors were not idle."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Tcp:
    """Bulk each way, with a connection for each."""

    def __init__(self, options, hosts):
        self.hosts, self.programs = hosts, []
        bench = options.build / "benchmarks/peers/socket_bench"
        for port, (listener, pusher) in enumerate(("ba", "ab"), 7001):
            words = [hosts.address(listener), port, ENDLESS, BLOCK_BYTES]
            self.programs.append(hosts.popen(listener, [bench, "epoll", "pull", *words], mercury=False))
            hosts.listens(listener, port, self.programs[-1])
            self.programs.append(hosts.popen(pusher, [bench, "epoll", "push", *words], mercury=False))

    def carried(self):
        """Bytes that have arrived."""
        said = "".join(netlab.sh("ss", "-tinH", "state", "established", ns=host.ns) for host in self.hosts.lab.hosts)
        return sum(map(int, re.findall(r"bytes_received:(\d+)", said)))

    def spent_s(self):
        """Of all processes, and of these at work."""
        spent = sum(map(run_s, self.programs))
        return spent, spent

    def end(self):
        for process in self.programs:
            if process.poll() is not None:
                raise AssertionError(f"{process.how} has ended: {self.hosts.words(process)}")


class Mercury:
    """goodput_client on host "a"; the sums are made on "b"."""

    def __init__(self, options, hosts):
        self.hosts, self.begun = hosts, 0
        self.client = hosts.popen("a", ["env", f"MERCURY_SOCKET={hosts.path('a')}.sock", options.build / "benchmarks/goodput/goodput_client",
                                        "--server", f"{hosts.address('b')}:7470", "--working-set", WORKING_SET_BYTES, "--seconds", 3600,
                                        "--progress"], mercury=False, stdin=subprocess.PIPE)

    def engines(self):
        return [engine for name in "ab" for engine in self.hosts.ask(name, "stats")["engines"]]

    def carried(self):
        """About: frames' headers are in it. What was measured is told at the end, exactly."""
        return sum(engine["counters"]["rx_bytes"] for engine in self.engines())

    def spent_s(self):
        program, daemons = run_s(self.client), sum(map(run_s, self.hosts.daemons.values()))
        return program + daemons, program + sum(engine["passes"]["total_ns"] for engine in self.engines()) / 1e9

    def end(self):
        """[when, how many bytes had come back], of all its time."""
        self.client.stdin.close()
        return json.loads(self.hosts.output(self.client))["progress"]


def between(progress, begin, end):
    """Bytes from `begin` to `end`, where the way between two points is straight."""
    def at(when):
        for (early, low), (late, high) in zip(progress, progress[1:]):
            if early <= when <= late:
                return low + (high - low) * (when - early) / (late - early)
        raise AssertionError("what was measured is not in what the program says")
    return at(end) - at(begin)


def reading(way):
    processes_s, at_work_s = way.spent_s()
    return {"when": time.monotonic(), "carried": way.carried(), "processes": processes_s, "at_work": at_work_s, "machine": machine_s()}


def measure(options, hosts, way):
    """One run's figures."""
    started = (Tcp if way == "tcp" else Mercury)(options, hosts)
    try:
        enough = options.mbit * 1e6 / 8 / 2  # half a second of one direction, until windows have grown
        if not wait_until(lambda: started.carried() > enough, MEET_S):
            raise AssertionError("the bulk does not flow")
        before = reading(started)
        time.sleep(options.seconds)
        after = reading(started)
        progress = started.end()
    finally:
        hosts.end_programs()
    spent = {name: after[name] - before[name] for name in before}
    # A sum came back, and went there as what was pushed.
    carried = 2 * between(progress, before["when"], after["when"]) if progress else spent["carried"]
    rate = carried / 2 * 8 / spent["when"]
    return {"gbit_per_s": rate / 1e9, "of_link": rate / 1e6 / options.mbit,
            **{f"{name}_ns": 1e9 * spent[name] / carried for name in ("processes", "at_work", "machine")}}


def with_ratios(options, found):
    """`found`: {way: one run's figures}. By TCP's of that run, where both have filled the wire."""
    base = found.get("tcp")
    full = lambda run: run["of_link"] >= options.saturated
    for way, run in found.items():
        has = way != "tcp" and base and full(base) and full(run)
        yield way, run | {"by_tcp": run["processes_ns"] / base["processes_ns"] if has else None,
                          "at_work_by_tcp": run["at_work_ns"] / base["processes_ns"] if has else None}


def rows_of(options, runs):
    """`runs`: {(port, mtu, way): [figures of a run]}."""
    for (port, mtu, way), found in runs.items():
        if found:
            yield {"port": port, "way": way, "link": f"{options.mbit}Mbps", "mtu": mtu, "tcp": options.tcp, "runs": len(found),
                   **{name: [run[name] for run in found] for name in FIGURES}}


def middle_of(values, form=".3g", spread=True):
    if None in values:
        return "-"
    return f"{statistics.median(values):{form}}" + f" [{min(values):{form}}, {max(values):{form}}]" * spread


def table_of(options, rows, missing):
    lines = [f"links of {options.mbit} Mbit/s both ways; TCP: {options.tcp}; {os.cpu_count()} cores", "",
             "| port | MTU | | Gbit/s each way | of the link | processes ns/byte | at work ns/byte | machine ns/byte | by TCP | at work by TCP |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    lines += [f"| {row['port']} | {row['mtu']} | {row['way']} | {' | '.join(middle_of(row[name]) for name in FIGURES)} |" for row in rows]
    return "\n".join(lines + [""] * bool(missing) + [f"not measured: {what}: {why}" for what, why in missing.items()])


def record_of(row):
    return {name: row[name] if name not in FIGURES else middle_of(row[name], ".4g", False).removeprefix("-") for name in FIELDS}


def one_round(options, port, mtu, runs, missing):
    """Each way once, and its ratio to TCP's."""
    found = {}
    for way in options.ways:
        what = f"{port}, MTU {mtu}, {way}"
        settings = ["engine.scheduling=normal", f"port.rate={options.mbit}Mbit", *options.settings]
        settings += ["engine.polling=busy"] if way == "busy" else []
        try:
            hosts = lab.two_hosts(rate_mbit=options.mbit, mtu=mtu, settings=settings, port=TwoHosts.af_packet if port == "af_packet" else None)
            try:
                options.tcp = lab.tcp_of(hosts, options.tcp)
                found[way] = measure(options, hosts, way)
            finally:
                hosts.close()
            if found[way]["of_link"] < options.saturated:
                missing.setdefault(what, f"filled {found[way]['of_link']:.2f} of the link: the processors are the limit")
        except (AssertionError, netlab.LabError, ValueError, KeyError) as why:
            missing.setdefault(what, " ".join(str(why).split()))
    for way, run in with_ratios(options, found):
        runs[port, mtu, way].append(run)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    lab.add_settings(parser)
    parser.add_argument("--ports", nargs="+", choices=["uring", "af_packet"], default=["uring", "af_packet"], help="Mercury's [both]")
    parser.add_argument("--mtus", nargs="+", type=int, default=[1500, 9000], help="[1500 9000]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--mbit", type=int, default=500, help="of a link [%(default)s]")
    parser.add_argument("--saturated", type=float, default=0.85, help="part of the link that payload must fill [%(default)s]")
    parser.add_argument("--tcp", help="the kernel's congestion control, one of those that it allows [as it is]")
    parser.add_argument("--seconds", type=float, default=3, help="of a run [%(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="one short run of each; other options say otherwise")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="the rows, each run's figures, and what was not measured")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="append to this CSV file, such as docs/records/wire_cost.csv")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(runs=1, seconds=0.5, mtus=[9000])
    options = parser.parse_args()
    if min(options.mbit, options.runs) < 1 or options.seconds < 0.1 or not 0 <= options.saturated <= 1:
        parser.error("--mbit, --runs: 1 or more; --seconds: 0.1 or more; --saturated: 0 to 1")
    if min(options.mtus) < 1280 or max(options.mtus) > 9000:
        parser.error("--mtus: 1280 to 9000")
    options.build = options.build.resolve()
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("skipped: virtual hosts need root")
        return lab.SKIPPED
    if options.record:
        recording.check(options.record, FIELDS)
    lab.use_build(options.build, options.build / "benchmarks/peers/socket_bench", options.build / "benchmarks/goodput/goodput_client")
    settings = [(port, mtu) for port in options.ports for mtu in options.mtus]
    runs, missing = {(*setting, way): [] for setting in settings for way in options.ways}, {}
    for run in range(options.runs):
        for setting in settings:
            one_round(options, *setting, runs, missing)
        print(f"run {run + 1} of {options.runs} is done", file=sys.stderr, flush=True)
    rows = [*rows_of(options, runs)]
    print(table_of(options, rows, missing))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "not_measured": missing}, indent=1) + "\n", encoding="utf-8")
    if options.record and rows:
        recording.append(options.record, [record_of(row) for row in rows])
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
