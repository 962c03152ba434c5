#!/usr/bin/env python3
"""What a change to Mercury does to programs that were never changed: builds of it, and the kernel, in turns.

    sudo benchmarks/sockets/builds.py BEFORE AFTER             Meson's build folders; 5 runs of each, about three minutes
    sudo benchmarks/sockets/builds.py BEFORE AFTER --one-core  hosts, daemons and programs on one processor

The programs, links and figures are those of sockets.py, between two hosts. Each build has two hosts of its own, of which those
that are not measured sleep. Every second round goes the other way around, so that whatever else this machine does
meets all alike. Needs root.

Median, and in brackets least and largest; the last build beside the first one, and in brackets the least and largest of their
ratios in a round; the last build beside the kernel.
"""
import argparse
import pathlib
import statistics
import sys

import lab  # beside this program
import recording
from sockets import Bench

KERNEL = "kernel"


class Turns:
    def __init__(self, builds, settings, prefix):
        self.benches = {}  # build: its hosts, and what was measured between them
        self.ways = [KERNEL, *builds]
        for build in builds:
            program = pathlib.Path(build).resolve() / "benchmarks/sockets/zeromq_bench"
            lab.use_build(pathlib.Path(build).resolve(), program)
            self.benches[build] = Bench(lab.two_hosts(settings=settings, prefix=prefix), program, 1, "between")

    def close(self):
        for bench in self.benches.values():
            bench.hosts.close()

    def run(self, measure, way):
        build = self.ways[1] if way == KERNEL else way
        lab.use_build(pathlib.Path(build).resolve())
        bench, before = self.benches[build], self.benches[build].is_over_mercury()
        getattr(bench, measure)(way != KERNEL)
        if (bench.is_over_mercury() > before) != (way != KERNEL):
            raise SystemExit(f"builds.py: {measure} by {way}: not the way that it was to go")
        bench.hosts.end_programs()

    def round(self, number, measures):
        for measure in measures:
            for way in self.ways[::-1] if number % 2 else self.ways:
                self.run(measure, way)

    def figures(self):
        """(what, unit): {way: [figure of each run]}."""
        first = self.benches[self.ways[1]]
        for (what, unit, better), of in first.rows.items():
            yield (what, unit), {KERNEL: of[False], **{way: bench.rows[what, unit, better][True] for way, bench in self.benches.items()}}

    def print(self):
        cell = lambda figures: f"{statistics.median(figures):.4g} ({min(figures):.4g} to {max(figures):.4g})"
        print("| | | " + " | ".join([*self.ways, "last / first", "last / kernel"]) + " |\n|---|---|" + "---|" * (len(self.ways) + 2))
        for (what, unit), of in self.figures():
            first, last = of[self.ways[1]], of[self.ways[-1]]
            beside = [b / a for a, b in zip(first, last)]
            print(f"| {what} | {unit} | " + " | ".join(cell(of[way]) for way in self.ways) +
                  f" | {statistics.median(last) / statistics.median(first):.2f} ({min(beside):.2f} to {max(beside):.2f})"
                  f" | {statistics.median(last) / statistics.median(of[KERNEL]):.2f} |")

    def records(self):
        for (what, unit), of in self.figures():
            kernel = statistics.median(of[KERNEL])
            for way in self.ways:
                median = statistics.median(of[way])
                yield {"what": what.replace(",", ""), "unit": unit, "way": way, "median": f"{median:.4g}",
                       "least": f"{min(of[way]):.4g}", "most": f"{max(of[way]):.4g}", "ratio": f"{median / kernel:.2f}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", help="Meson's build folders, the oldest first")
    lab.add_settings(parser)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--measure", nargs="+", choices=lab.PROGRAMS, default=["zeromq", "iperf3"])
    parser.add_argument("--one-core", action="store_true", help="all of it on processor 0")
    parser.add_argument("--record", type=pathlib.Path, help="append to this CSV file, such as docs/records/sockets_builds.csv")
    arguments = parser.parse_args()
    names, reasons = lab.measurable(arguments.measure)
    turns = Turns(arguments.builds, arguments.settings, ["taskset", "-c", "0"] * arguments.one_core)
    try:
        for number in range(arguments.repeat):
            turns.round(number, names)
    finally:
        turns.close()
    turns.print()
    if arguments.record:
        recording.append(arguments.record, list(turns.records()))
    print(*reasons, sep="\n", file=sys.stderr)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
