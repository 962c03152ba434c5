#!/usr/bin/env python3
"""What it costs a program to be started with its sockets over Mercury: /bin/true, and Python that does nothing.

    benchmarks/sockets/startup.py                200 starts of each, about a minute

Each program starts by itself, by mercury-run, and with what mercury-run sets in its environment, as the
children of its program do; in turns. Median, and in brackets the quartiles. Beside it the instructions
that the program takes, without those of mercury-run, which it replaces; the machine's load does not change
them, and callgrind counts them where valgrind is there. No daemon is asked: a program does that when it
connects or listens.
"""
import argparse
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import lab  # beside this program
import recording
from two_hosts import CLEAN, DEBIAN_PYTHON, Built

PROGRAMS = {"/bin/true": ["/bin/true"], "python3": [DEBIAN_PYTHON, "-S", "-c", "pass"]}
LOADED = "with libmercury_preload.so"
MOST_INSTRUCTIONS = 1_000_000  # less than a millisecond


def ways(preload):
    """How a program is started: its name, what stands before it, and its environment."""
    return {"by itself": ([], CLEAN), "by mercury-run": ([Built.run], CLEAN), LOADED: ([], {**CLEAN, "LD_PRELOAD": preload})}


def start_ms(command, environment):
    began = time.perf_counter()
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True)
    return 1000 * (time.perf_counter() - began)


def instructions(command, environment):
    """Of the last program that it becomes by exec."""
    done = subprocess.run(["valgrind", "--tool=callgrind", "--trace-children=yes", "--callgrind-out-file=/dev/null", *command],
                          env=environment, capture_output=True, text=True, check=True)
    return int(re.findall(r"Collected : (\d+)", done.stderr)[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    parser.add_argument("--starts", type=int, default=200, help="of each (default 200)")
    parser.add_argument("--record", type=pathlib.Path, help="append to this CSV file, such as docs/records/startup.csv")
    arguments = parser.parse_args()
    lab.use_build(arguments.build)
    preload = str(arguments.build.resolve() / "shim/preload/libmercury_preload.so")
    counts = shutil.which("valgrind") is not None
    rows = []
    print("| program | | ms | instructions | of them more than by itself |\n|---|---|---|---|---|")
    for name, command in PROGRAMS.items():
        took = {way: [] for way in ways(preload)}
        for _ in range(arguments.starts):
            for way, (before, environment) in ways(preload).items():
                took[way].append(start_ms([*before, *command], environment))
        spent = {way: instructions([*before, *command], environment) if counts else None
                 for way, (before, environment) in ways(preload).items()}
        for way, each in took.items():
            quarter, median, three_quarters = statistics.quantiles(each, n=4)
            more = spent[way] - spent["by itself"] if counts else ""
            print(f"| {name} | {way} | {median:.2f} ({quarter:.2f}, {three_quarters:.2f}) | {spent[way] or ''} | {more} |", flush=True)
            rows.append({"program": name, "started": way, "ms": f"{median:.3f}", "quarter_ms": f"{quarter:.3f}", "three_quarters_ms": f"{three_quarters:.3f}",
                         "more_ms": f"{median - statistics.median(took['by itself']):.3f}",
                         "instructions": spent[way] or "", "more_instructions": more})
    if counts and max(row["more_instructions"] for row in rows if row["started"] == LOADED) > MOST_INSTRUCTIONS:
        sys.exit(f"startup.py: the library takes more than {MOST_INSTRUCTIONS} instructions of a program's start")
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
