#!/usr/bin/env python3
"""Disaster seeds replay to what is committed of them in seeds.json.

usage: seeds_test.py DISASTER [--rewrite]

Of each seed the harness prints `trace`, a hash of every frame's arrival or loss in virtual time and
of what every program did, and `contents`, a hash of every frame's bytes (tests/disaster/world.h).
Where the trace holds and the contents do not, frames say something else at the same times.

Each seed runs twice, in processes of their own: with this CPU's kernels for CRC-32C and sums, and
with the portable ones. Neither they nor where memory lies may decide anything.
"""
import os
import re
import subprocess
import sys

import committed

# Taken together they have every kind of disaster, and jobs with quorums, patience and averages.
SEEDS = range(1, 25)
LIMIT_S = 300
SAID = re.compile(r"seed \d+: (?P<verdict>.*); trace (?P<trace>\w+), contents (?P<contents>\w+), "
                  r"(?P<virtual_seconds>[\d.]+) virtual seconds, (?P<frames>\d+) frames, (?P<sums>\d+) sums checked, "
                  r"(?P<programs>\d+ of \d+) programs came through\n")


def replay(disaster, seed, *options):
    command = [disaster, "--seed", str(seed), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = SAID.fullmatch(done.stdout)
    if done.returncode != 0 or not said:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return said.groupdict() | {count: int(said[count]) for count in ("frames", "sums")}


def main():
    disaster = sys.argv[1]
    found = {f"seed {seed}": replay(disaster, seed) for seed in SEEDS}
    portable = {f"seed {seed}": replay(disaster, seed, "--portable") for seed in SEEDS}
    lines = committed.differences(found, portable)
    for line in lines:
        print(f"with portable kernels {line}".replace("committed is", "this CPU's give"))
    if lines:
        return 1
    return committed.hold(os.path.join(os.path.dirname(__file__), "seeds.json"), found)


if __name__ == "__main__":
    sys.exit(main())
