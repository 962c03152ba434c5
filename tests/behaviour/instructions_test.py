#!/usr/bin/env python3
"""Counts the instructions of chunks, frames, contributions, decisions and passes with callgrind, and holds them to instructions.json.

usage: instructions_test.py CHUNK_COST FRAME_COST COLD_COST [--rewrite]

They neither grow nor shrink by more than bounds.TOLERANCE unless the file says so, and each has its reason there, which
--rewrite keeps. Kernels (CRC-32C, copy, sums) are left out, as the CPU decides which of them run; benchmarks/wire and
benchmarks/aggregator have those. Status 77, skipped: the file's figures are another compiler's.
"""
import os
import re
import subprocess
import shutil
import sys
import tempfile

import bounds

# What: the program, its arguments, and what it counts there. Of whole engines with their programs: Ethernet's usual frames,
# jumbo frames, sums of several workers, and chunks so small that frames are all there is to pay. And each part by itself.
RUNS = {
    "MTU 1500, workers 1": ("chunk_cost", "1500 1", "workers server"),
    "MTU 9000, workers 1": ("chunk_cost", "9000 1", "workers server"),
    "MTU 9000, workers 4": ("chunk_cost", "9000 4", "workers server"),
    "chunks of 64 bytes, workers 1": ("chunk_cost", "1500 1 64", "workers server"),
    "frames of 64 bytes": ("frame_cost", "frames 64", "send receive"),
    "frames of 1424 bytes": ("frame_cost", "frames 1424", "send receive"),
    "contributions of 1424 bytes": ("frame_cost", "contributions 1424", "aggregate"),
    "passes with much that is cold": ("cold_cost", "", "all_at_once operations_end many_tensors"),
    "decisions": ("frame_cost", "decisions", "schedule take_turns requeue"),
}
LIMIT_S = 300


def spent_in(part, folder):
    """Instructions of mercury::counted_PART and what it called."""
    done = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--auto=no", "--threshold=100", f"{folder}/profile"],
                          capture_output=True, text=True, check=True)
    found = re.search(rf"^ *([\d,]+) \([^)]*\) +\S*mercury::counted_{part}\(", done.stdout, re.M)
    if not found:
        sys.exit(f"callgrind_annotate names no mercury::counted_{part}:\n{done.stdout[:2000]}")
    return int(found.group(1).replace(",", ""))


def costs_of(program, arguments, parts):
    """{part: instructions of one of what the program counts}, and what compiled it."""
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/profile",
                   *(f"--toggle-collect=mercury::counted_{part}(*" for part in parts), program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        count, compiler = re.fullmatch(r"(\d+) \w+, compiled with (.*)\n", done.stdout).groups()
        return {"compiler": compiler, **{part: round(spent_in(part, folder) / int(count), 1) for part in parts}}


def main():
    rewrites = sys.argv[-1] == "--rewrite"
    programs = {os.path.basename(path): path for path in sys.argv[1:] if path != "--rewrite"}
    path = os.path.join(os.path.dirname(__file__), "instructions.json")
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed to count instructions: apt-get install valgrind")
    held = bounds.held_in(path)
    found = {}
    for what, (program, arguments, parts) in RUNS.items():
        costs = found[what] = costs_of(programs[program], arguments.split(), parts.split())
        print(f"{what}: instructions: {', '.join(f'{part} {costs[part]}' for part in parts.split())}")
        compiler = held.get(what, costs)["compiler"]
        if not rewrites and compiler != costs["compiler"]:
            print(f"skipped: compiled with {costs['compiler']}, what is committed with {compiler}")
            return 77
    return bounds.hold(path, found)


if __name__ == "__main__":
    sys.exit(main())
