#!/usr/bin/python3
"""What exchanging costs in processor time: Fig. 16 as cycles per byte.

    sudo benchmarks/emulation/cpu_cost.py                     ResNet-50: Mercury, WFBP, Gloo; minutes
    sudo benchmarks/emulation/cpu_cost.py --others gloo pslite

The hosts, links, traces and programs of emulate.py. Counted is the user and system time of all
processes of the workers' and of the servers' hosts, and divided by the bytes of gradient that the
workers exchange. Each runs twice, with few and with more iterations, and the difference is taken:
starting, handshakes and the checking at the end are not in it. The program's part is stated apart:
Mercury's writes new gradients, the others' have their library in it and send the same bytes again.

What it does not say: Mercury's engines poll. What they take while nothing arrives is in the figures
too, and with links this slow that is much of it (`busy`: the engines' processor time over the time
that passed). The network itself (virtual Ethernet, shaping) runs in the kernel on behalf of whoever
sends, and all pay for it alike. Cycles are nanoseconds at the clock that the kernel reports.

Needs root, and the build that emulate.py needs. Leaves cpu-cost.json and cpu-cost.svg in --out.
No range is held to: the paper's utilisation says nothing of engines that poll.
Status: 0; 1 when something cannot be run; 2 for a wrong command line; 77 without root.
"""
import argparse
import contextlib
import csv
import json
import os
import pathlib
import re
import signal
import sys
import tempfile

from emulate import BUCKET_FRAMES, GBPS, POLICIES, RIVALS, ROOT, SERVERS, WORKERS, Hosts, LabError, save, scaled, write_json
from stretch import stretched_policy, stretched_trace

import report  # noqa: E402, where emulate.py looks for it

SHORT = 1  # iterations


def clock_mhz():
    found = re.findall(r"^cpu MHz\s*: ([\d.]+)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"),
                       re.M)
    return float(found[0]) if found else None


def gradient_bytes(trace):
    lines = trace.read_text(encoding="utf-8").splitlines()
    return sum(4 * int(row["numel"]) for row in csv.DictReader(lines))


def run(hosts, way, trace, iterations):
    """One run, all of it: processor seconds by kind of host and of what, {("workers", "engines"): s}."""
    hosts.options.iterations = iterations
    hosts.cpu_s.clear()
    factor = GBPS[hosts.options.model] * 1000 / hosts.options.mbit
    if way in RIVALS:
        hosts.rival(way, trace, factor)
    else:
        hosts.mercury(trace, stretched_policy(way, factor))
    sums = {}
    for (name, what), seconds in hosts.cpu_s.items():
        key = ("workers" if name.startswith("w") else "servers", what)
        sums[key] = sums.get(key, 0) + seconds
    return sums


def measure(hosts, way, trace, exchanged, mhz):
    few, more = run(hosts, way, trace, SHORT), run(hosts, way, trace, SHORT + hosts.options.more)
    row = {"name": RIVALS.get(way, f"Mercury's engine, {way}")}
    cost = {key: value - few.get(key, 0) for key, value in more.items()}
    for kind in ("workers", "servers"):
        seconds = sum(value for (which, _), value in cost.items() if which == kind)
        if kind == "workers" and seconds <= 0:  # noise: clocks tick in hundredths of a second
            raise LabError(f"{row['name']}: {SHORT + hosts.options.more} iterations took the workers no more processor time "
                           f"than {SHORT}; take more --iterations")
        row[kind] = {"ns_per_byte": 1e9 * seconds / exchanged, "cycles_per_byte": 1e6 * mhz * seconds / exchanged if mhz else None}
    row["program_ns_per_byte"] = 1e9 * cost.get(("workers", "program"), 0) / exchanged
    engines_s = sum(value for (_, what), value in more.items() if what == "engines")
    row["busy"] = engines_s / hosts.run_s / len(hosts.names) if engines_s else None
    return row


def show(model, rows, mhz):
    print(f"\n{model}: processor time per byte of gradient, ns (cycles at {mhz or 0:.0f} MHz)\n"
          f"{'':32}{'workers':>18}{'of it program':>15}{'servers':>18}{'busy':>8}")
    for row in rows:
        cells = "".join(f"{row[kind]['ns_per_byte']:9.2f} ({row[kind]['cycles_per_byte'] or 0:6.2f}){middle}"
                        for kind, middle in (("workers", f"{row['program_ns_per_byte']:15.2f}"), ("servers", "")))
        print(f"{row['name']:32}{cells}{f'''{row['busy']:8.0%}''' if row['busy'] is not None else ''}", flush=True)


def plot(options, rows, mhz):
    chart = report.Figure()
    series = chart.panel("", "cycles per byte of gradient" if mhz else "ns per byte of gradient", "", kind="rows")
    for kind in ("workers", "servers"):
        series[kind] = {"x": [row["name"] for row in rows],
                        "y": [row[kind]["cycles_per_byte" if mhz else "ns_per_byte"] for row in rows]}
    save(chart, f"{options.model}, {WORKERS} + {SERVERS}, {scaled(options.mbit, GBPS[options.model])}", options.out / "cpu-cost.svg")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", choices=GBPS)
    parser.add_argument("--policies", nargs="+", default=["mercury", "wfbp"], choices=POLICIES)
    parser.add_argument("--others", nargs="*", default=["gloo"], choices=["gloo", "pslite"])
    parser.add_argument("--mbit", type=int, default=500, help="of every link [%(default)s]")
    parser.add_argument("--mtu", type=int, default=9000, help="[%(default)s]")
    parser.add_argument("--device", default="af_packet", choices=["af_packet", "af_xdp"])
    parser.add_argument("--iterations", type=int, default=4, help="beyond the first [%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "emulation", help="[%(default)s]")
    options = parser.parse_args()
    if min(options.mbit, options.iterations) < 1:
        parser.error("--mbit and --iterations: above 0")
    options.build = options.build.resolve()
    for program in ("apps/stackd/mercury-stackd", "apps/replay/mercury-replay", "benchmarks/emulation/rival_replay"):
        if not (options.build / program).is_file():
            parser.error(f"no {options.build / program}: tools/build {program} makes it")
    vars(options).update(queue=1 << 20, bucket=BUCKET_FRAMES * (options.mtu + 14), scheduling="urgent",
                         others_scheduling="same", verify=False)
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("cpu_cost.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    options.more, mhz, rows = options.iterations, clock_mhz(), []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        hosts = Hosts(options, folder, stack)
        trace = stretched_trace(options.model, GBPS[options.model] * 1000 / options.mbit, folder)
        exchanged = WORKERS * options.more * gradient_bytes(trace)
        for way in [*options.policies, *options.others]:
            rows.append(measure(hosts, way, trace, exchanged, mhz))
            show(options.model, rows[-1:], mhz)
            write_json(options.out / "cpu-cost.json", {"model": options.model, "mbit": options.mbit, "mhz": mhz, "rows": rows})
    show(options.model, rows, mhz)
    plot(options, rows, mhz)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as why:
        sys.exit(f"cpu_cost.py: {why}")
    except KeyboardInterrupt:
        sys.exit("cpu_cost.py: interrupted; cpu-cost.json has the rows that are done")
