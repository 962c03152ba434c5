#!/usr/bin/env python3
"""Counts the engines' instructions per chunk with callgrind, and holds them to instructions.json.

usage: instructions_test.py CHUNK_COST [--rewrite]

They neither grow nor shrink by more than TOLERANCE unless the file says so. Kernels (CRC-32C, copy,
sums) are left out, as the CPU decides which of them run; benchmarks/wire and benchmarks/aggregator
have those. Status 77, skipped: the file's figures are another compiler's.
"""
import os
import re
import subprocess
import shutil
import sys
import tempfile

import committed

TOLERANCE = 0.01
# MTU and workers: Ethernet's usual frames, jumbo frames, and sums of several.
RUNS = ((1500, 1), (9000, 1), (9000, 4))
PARTS = ("workers", "server")
LIMIT_S = 300


def spent_in(part, folder):
    """Instructions of mercury::counted_PART and what it called."""
    done = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--auto=no", "--threshold=100", f"{folder}/profile"],
                          capture_output=True, text=True, check=True)
    found = re.search(rf"^ *([\d,]+) \([^)]*\) +\S*mercury::counted_{part}\(", done.stdout, re.M)
    if not found:
        sys.exit(f"callgrind_annotate names no mercury::counted_{part}:\n{done.stdout[:2000]}")
    return int(found.group(1).replace(",", ""))


def per_chunk(program, mtu, workers):
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/profile",
                   *(f"--toggle-collect=mercury::counted_{part}(*" for part in PARTS), program, str(mtu), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        chunks, compiler = re.fullmatch(r"(\d+) chunks, compiled with (.*)\n", done.stdout).groups()
        costs = {part: round(spent_in(part, folder) / int(chunks), 1) for part in PARTS}
        return {"compiler": compiler, **costs}


def differ(was, now):
    if was == now or abs(now - was) <= TOLERANCE * was:
        return None
    change = f"{now} instructions a chunk, committed is {was}"
    return f"grew: {change}" if now > was else f"shrank, commit the new figure: {change}"


def main():
    program = sys.argv[1]
    path = os.path.join(os.path.dirname(__file__), "instructions.json")
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed to count instructions: apt-get install valgrind")
    held = None if sys.argv[-1] == "--rewrite" else committed.load(path)
    found = {}
    for mtu, workers in RUNS:
        what = f"MTU {mtu}, workers {workers}"
        costs = found[what] = per_chunk(program, mtu, workers)
        print(f"{what}: instructions a chunk: workers {costs['workers']}, server {costs['server']}")
        compiler = held and held.get(what, costs)["compiler"]
        if compiler and compiler != costs["compiler"]:
            print(f"skipped: compiled with {costs['compiler']}, what is committed with {compiler}")
            return 77
    return committed.hold(path, found, differ)


if __name__ == "__main__":
    sys.exit(main())
