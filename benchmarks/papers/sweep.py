#!/usr/bin/python3
"""Policies, models and bandwidths against each other, in mercury-sim.

    benchmarks/papers/sweep.py --traces vgg16 my.csv --policies mercury wfbp p3 --bandwidths 1Gbps 10Gbps 40Gbps
    benchmarks/papers/sweep.py --traces bert-base --workers 4 --servers 2 --csv - -- --ecn 97500B --jitter 0.1

A row for each: the iteration, the least possible, the speed of a lone worker that is reached. What follows
"--" are mercury-sim's own options. Simulations run on Dask, on the local cores or on a cluster
(--scheduler); every answer is kept in out/papers/answers, so that a run that was interrupted goes on where
it was. Leaves SWEEP.csv and SWEEP.svg in out/papers, the speed over the bandwidth, a panel for each model.
Status: 0; 1 when a simulation fails; 2 for a wrong command line.
"""
import argparse
import csv
import os
import pathlib
import sys

from lab import ROOT, Lab, status_of, steady
from report import Figure, draw

COLUMNS = ("model", "policy", "bandwidth", "iteration_s", "optimum_s", "oracle_s", "speed")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", required=True, metavar="TRACE", help="shipped models' names, or files")
    parser.add_argument("--policies", nargs="+", metavar="POLICY", help="as mercury-sim's --policy [%(default)s]",
                        default=["mercury", "mercury-fifo", "bytescheduler", "byteps", "p3", "wfbp"])
    parser.add_argument("--bandwidths", nargs="+", metavar="RATE", help="as mercury-sim's --bandwidth [%(default)s]",
                        default=["1Gbps", "5Gbps", "10Gbps", "25Gbps", "40Gbps", "100Gbps"])
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="[%(default)s]")
    parser.add_argument("--servers", type=int, metavar="N", help="[as workers]")
    parser.add_argument("--mtu", type=int, default=9000, metavar="BYTES", help="[%(default)s]")
    parser.add_argument("--csv", metavar="FILE", help="- for standard output [SWEEP.csv in --out]")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--sim", default=ROOT / "build" / "apps" / "sim" / "mercury-sim", help="[%(default)s]")
    parser.add_argument("--out", default=ROOT / "out" / "papers", type=pathlib.Path, help="[%(default)s]")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster [the local cores]")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="without --scheduler [%(default)s]")
    parser.add_argument("more", nargs="*", metavar="-- OPTION ...", help="of mercury-sim")
    arguments = parser.parse_args()
    if arguments.cores < 1:
        parser.error("--cores: at least 1")
    return arguments


def questions(arguments):
    """{(model, policy, bandwidth): what mercury-sim is asked}"""
    cluster = ("--workers", str(arguments.workers), "--servers", str(arguments.servers or arguments.workers),
               "--mtu", str(arguments.mtu))
    even = arguments.servers in (None, arguments.workers)
    asked = {}
    for trace in arguments.traces:
        path = pathlib.Path(trace)
        known = str(path.resolve()) if path.is_file() else trace
        for policy in arguments.policies:
            for bandwidth in arguments.bandwidths:
                asked[path.stem, policy, bandwidth] = ("--quiet", "--trace", known, "--policy", policy, "--bandwidth",
                                                       bandwidth, *cluster, *arguments.more,
                                                       *steady(policy, even, arguments.more))
    return asked


def write(path, rows):
    file = sys.stdout if path == "-" else open(path, "w", newline="", encoding="utf-8")
    try:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
    finally:
        if file is not sys.stdout:
            file.close()


def plot(rows, path):
    figure = Figure()
    for model in dict.fromkeys(row["model"] for row in rows):
        panel = figure.panel(model, "bandwidth", "speed of a lone worker", kind="lines")
        for policy in dict.fromkeys(row["policy"] for row in rows):
            mine = [row for row in rows if (row["model"], row["policy"]) == (model, policy)]
            panel[policy] = {"x": [row["bandwidth"] for row in mine], "y": [row["speed"] for row in mine]}
    if not draw(figure.panels, "Speed reached, of a lone worker's", path):
        print("no plot: apt-get install python3-matplotlib", file=sys.stderr)


def main():
    arguments = parse()
    with Lab(arguments.sim, arguments.out, scheduler=arguments.scheduler, cores=arguments.cores) as lab:
        answers = lab.ask_all(questions(arguments))
    rows = [{"model": model, "policy": policy, "bandwidth": bandwidth,
             **{key: answer[key] for key in COLUMNS[3:]}}
            for (model, policy, bandwidth), answer in answers.items()]
    write(arguments.csv or arguments.out / "SWEEP.csv", rows)
    if arguments.csv is None:
        for row in rows:
            print(f"  {row['model']:<16} {row['policy']:<16} {row['bandwidth']:>8}  {1e3 * row['iteration_s']:10.3f} ms  "
                  f"speed {row['speed']:.4f}")
    if not arguments.no_plot:
        plot(rows, arguments.out / "SWEEP.svg")
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
