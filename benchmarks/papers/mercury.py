#!/usr/bin/python3
"""The figures and tables of the Mercury paper (TPDS 2023), computed here.

    benchmarks/papers/mercury.py all                every figure, minutes
    benchmarks/papers/mercury.py --quick fig12      one, in its small form
    benchmarks/papers/mercury.py --record all       the same, and into docs/records/papers.csv
    benchmarks/papers/mercury.py table              docs/papers.md's results from that record
    sudo benchmarks/papers/mercury.py ports         what runs on real ports, three hours
    benchmarks/papers/mercury.py --list

Each figure prints the paper's numbers beside ours, with a verdict and the range that ours has to be in:
"reproduced" is the paper's number with its tolerance, "in kind" who is ahead, "not reproduced" a range of its own
beside the paper's, for a reason that is printed; "own" is held to a value of ours. "OUTSIDE" is a failure, in
either direction. It leaves FIGURE.json and FIGURE.svg in out/papers, and says what is not as recorded, and how often
the engine changed since. Every answer of mercury-sim is kept in out/papers/answers, so that a run that was
interrupted goes on where it was.
Status: 0; 1 when a verdict fails or a figure cannot be computed; 2 for a wrong command line.
"""
import argparse
import os
import pathlib
import subprocess
import sys

import ablation
import dynamic
import partitioned
import records
import shared
import startups
import static
import tables
from lab import ROOT, Lab, LabError, status_of
from report import draw

FIGURES = {name: function for module in (tables, static, dynamic, shared, partitioned, startups, ablation)
           for name, function in module.FIGURES.items()}


# On real ports, which needs root and a machine that does nothing else: programs with files of their own.
ON_PORTS = {"fig16": ("cpu_cost.py", "Processor cycles per byte of gradient"),
            "points": ("figures.py", "Points of Figs. 3, 5, 7, 13 to 15 and 18 to 21 between virtual hosts"),
            "policies": ("emulate.py", "Iterations under every policy beside Gloo, MPI and the simulator")}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     epilog="figures: " + " ".join(FIGURES) +
                                     "; on real ports, as root: " + " ".join(ON_PORTS))
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="or all, or ports, or table")
    parser.add_argument("--list", action="store_true", help="the figures, a line each")
    parser.add_argument("--quick", action="store_true", help="fewer points, for tests")
    parser.add_argument("--record", action="store_true", help="replace the figures' rows in docs/records/papers.csv")
    parser.add_argument("--check", action="store_true", help="table: write nothing, say what differs")
    parser.add_argument("--trace", metavar="FILE.csv",
                        help="speed: of this model, such as mercury-trace writes")
    parser.add_argument("--workers", type=int, metavar="N", help="speed: so many [2]")
    parser.add_argument("--servers", type=int, metavar="N", help="speed: so many [as workers]")
    parser.add_argument("--mtu", type=int, metavar="BYTES", help="speed: of all links [9000]")
    parser.add_argument("--no-plot", action="store_true", help="data and verdicts alone")
    parser.add_argument("--sim", default=ROOT / "build" / "apps" / "sim" / "mercury-sim",
                        help="the simulator [%(default)s]")
    parser.add_argument("--out", default=ROOT / "out" / "papers", help="[%(default)s]")
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="of a Dask cluster, tcp://HOST:PORT; default: the local cores")
    parser.add_argument("--cores", type=int, default=os.cpu_count(),
                        help="simulations at once without --scheduler [%(default)s]")
    arguments = parser.parse_args()
    if arguments.cores < 1:
        parser.error("--cores: at least 1")
    if not arguments.figures and not arguments.list:
        parser.error("which FIGURE? --list names them")
    known = ["all", *FIGURES, "ports", *ON_PORTS, "table"]
    if "table" in arguments.figures and arguments.figures != ["table"]:
        parser.error("table stands alone")
    if arguments.check and arguments.figures != ["table"]:
        parser.error("--check goes with table alone")
    whole = not arguments.quick and not {"ports", "table", *ON_PORTS} & set(arguments.figures)
    if arguments.record and not whole:
        parser.error("--record is for whole figures of the simulator, without --quick")
    unknown = [name for name in arguments.figures if name not in known]
    if unknown:
        parser.error(f"no figure {unknown[0]}: one of {', '.join(known)}")
    for own in ("trace", "workers", "servers", "mtu"):
        if getattr(arguments, own) is not None and (arguments.figures != ["speed"] or arguments.record):
            parser.error(f"--{own} goes with the figure speed alone, and not into the record")
    if arguments.trace and not os.path.isfile(arguments.trace):
        parser.error(f"--trace: no file {arguments.trace}")
    for group, members in (("all", FIGURES), ("ports", ON_PORTS)):
        if group in arguments.figures:
            arguments.figures = [name for name in arguments.figures if name != group and name not in members]
            arguments.figures += members
    check_ports(parser, arguments)
    return arguments


def check_ports(parser, arguments):
    """Before anything runs: what a port needs comes last and would be missed late."""
    chosen = [name for name in arguments.figures if name in ON_PORTS]
    if not chosen:
        return
    for option in ("quick", "no_plot", "out", "sim", "scheduler"):
        if getattr(arguments, option) != parser.get_default(option):
            parser.error(f"--{option.replace('_', '-')} is not for {chosen[0]}: run benchmarks/emulation/"
                         f"{ON_PORTS[chosen[0]][0]} itself, which has options of its own")
    if os.geteuid() != 0:
        parser.error(f"{chosen[0]} needs root: virtual hosts are network namespaces")
    if not (ROOT / "build" / "benchmarks" / "emulation" / "rival_replay").is_file():
        parser.error(f"{chosen[0]} needs all that tools/build makes")


def title_of(name):
    return FIGURES[name].__doc__.split("\n", maxsplit=1)[0].rstrip(".")


def title_here(name, lab):
    """The title with the user's own model and cluster in place of the default ones."""
    title = title_of(name)
    if lab.trace:
        title = title.replace("VGG-16 (or --trace)", pathlib.Path(lab.trace).stem)
    if "mtu" in lab.cluster:
        title += f", MTU {lab.cluster['mtu']}"
    workers = lab.cluster.get("workers", 2)
    servers = lab.cluster.get("servers", workers)
    return title.replace(" (or --trace)", "").replace("2 workers and 2 servers",
                                                      f"{workers} workers and {servers} servers")


def compute(name, lab, plot, record):
    """One figure from its simulations to its files. Whether its verdicts hold."""
    title = title_here(name, lab)
    print(f"{name}: {title}", flush=True)
    figure = FIGURES[name](lab)
    print(figure.table(), flush=True)
    command = f"benchmarks/papers/mercury.py {'--quick ' if lab.quick else ''}{name}"
    if record and figure.failed():
        print(f"  not recorded: {len(figure.failed())} rows are outside of their range")
    elif record:
        records.record(name, command, figure.rows)
    elif not (lab.quick or lab.trace or lab.cluster):
        for line in records.compare(name, figure.rows):
            print(f"  {line}")
    if lab.trace:
        name = f"{name}-{pathlib.Path(lab.trace).stem}"
        command += f" --trace {lab.trace}"
    command += "".join(f" --{key} {value}" for key, value in lab.cluster.items())
    figure.write(lab.out, name, {"title": title, "quick": lab.quick, "command": command})
    if plot and figure.panels and not draw(figure.panels, title, lab.out / f"{name}.svg"):
        print("  no plot: apt-get install python3-matplotlib")
    return not figure.failed()


def run_on_ports(name):
    """Whether the program was content; it prints its own rows and reasons."""
    program, title = ON_PORTS[name]
    print(f"{name}: {title}", flush=True)
    with subprocess.Popen([sys.executable, ROOT / "benchmarks" / "emulation" / program]) as running:
        try:
            return running.wait() == 0
        except KeyboardInterrupt:  # it has it, too, and takes its hosts down
            running.wait()
            raise


def main():
    arguments = parse()
    if arguments.list:
        for name in FIGURES:
            print(f"  {name:<10} {title_of(name)}")
        for name, (program, title) in ON_PORTS.items():
            print(f"  {name:<10} {title} (root; benchmarks/emulation/{program})")
        return 0
    if arguments.figures == ["table"]:
        return 0 if records.write_table(arguments.check) else 1
    cluster = {key: getattr(arguments, key) for key in ("workers", "servers", "mtu")
               if getattr(arguments, key) is not None}
    failed = []
    with Lab(arguments.sim, arguments.out, arguments.quick, arguments.scheduler, arguments.cores, arguments.trace,
             cluster) as lab:
        for name in arguments.figures:
            try:
                if not (run_on_ports(name) if name in ON_PORTS else compute(name, lab, not arguments.no_plot,
                                                                             arguments.record)):
                    failed.append(name)
            except LabError as error:
                print(f"  {error}", file=sys.stderr)
                failed.append(name)
    if not arguments.quick:
        for line in records.changed_since([row for row in records.read() if row["figure"] in arguments.figures]):
            print(line)
    if failed:
        print(f"outside or missing: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(status_of(main))
