#!/usr/bin/env python3
"""mercury-sim prints the digits that are committed in digits.json, each of them, to the last.

usage: digits_test.py SIM [--rewrite]

Between them the runs take every policy and every option that decides what is simulated.
"""
import concurrent.futures
import json
import os
import subprocess
import sys

import committed

LIMIT_S = 120
RUNS = {
    "mercury": "--trace vgg16 --policy mercury",
    "mercury, 4+2": "--trace alexnet --policy mercury --workers 4",
    "the paper's mercury, 4+2":
        "--trace alexnet --policy mercury:answers=fifo,grants=even,unit=30KB --workers 4",
    "mercury-fifo, 4+2": "--trace alexnet --policy mercury-fifo --workers 4",
    "wfbp": "--trace alexnet --policy wfbp",
    "wfbp, placed by key, 2+3": "--trace alexnet --policy wfbp:place=key --servers 3",
    "p3": "--trace alexnet --policy p3",
    "byteps, 4+2": "--trace alexnet --policy byteps --workers 4",
    "bytescheduler": "--trace alexnet --policy bytescheduler:partition=2MB,credit=6MB,startup=100us",
    "loss, 4+2": "--trace mobilenet --policy mercury --workers 4 --queue 60KB --iterations 6",
    "marks, 4+2": "--trace alexnet --policy mercury --workers 4 --ecn 97500B",
    "links that change": "--trace mobilenet --policy mercury --iterations 12 --seed 7 "
                         "--link servers=random:1Gbps-10Gbps/20ms --link worker0.up=10Gbps,100ms:3Gbps",
    "links that differ": "--trace mobilenet --policy p3 --bandwidth 5Gbps --worker-up 4Gbps --worker-down 6Gbps "
                         "--server-up 7Gbps --server-down 3Gbps",
    "workers that differ": "--trace mobilenet --policy mercury --slow 1=1.5 --jitter 0.2 --bucket 125KB "
                           "--delay 20us --incast-queue 64KiB --window 64KiB --iterations 6",
    "two jobs": "--trace alexnet --policy mercury --also mobilenet@p3",
    "two jobs, no turns": "--trace alexnet --policy mercury --also mobilenet --turns urgency",
    "engines that cost time": "--trace mobilenet --policy mercury --bandwidth 100Gbps --frame-cost 250ns",
    "frames of 1500": "--trace mobilenet --policy mercury --mtu 1500",
    "IPv6": "--trace mobilenet --policy mercury --mtu 1280 --ipv6 --bandwidth 1Gbps",
    "payload": "--trace mobilenet --policy mercury --payload",
    "equations": "model --trace vgg16 --policy mercury --workers 4",
    "equation 7": "model --trace vgg16 --policy wfbp-eq7",
    "equations, tuned": "model --trace alexnet --policy bytescheduler --tune",
    "equations, what it takes": "model --trace alexnet --policy mercury --reach 0.9",
}
# What names a row, and what the trace says of it.
NO_FIGURES = ("name", "role", "rank", "bytes", "priority")


def name_of(row, number):
    if isinstance(row, dict) and "role" in row:
        return f"{row['role']}{row['rank']}"
    return row["name"] if isinstance(row, dict) and "name" in row else str(number)


def figures(value, path=""):
    """(where, figure) of all in a JSON value."""
    if isinstance(value, list):
        value = {name_of(row, number): row for number, row in enumerate(value)}
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        if key not in NO_FIGURES:
            yield from figures(inner, f"{path}.{key}" if path else key)


def digits(sim, options):
    words = options.split()
    at = 1 if words[0] == "model" else 0
    run = [] if at else ["--quiet"]
    command = [sim, *words[:at], *run, *words[at:], "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return dict(figures(json.loads(done.stdout)))


def main():
    sim = sys.argv[1]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        found = dict(zip(RUNS, pool.map(lambda options: digits(sim, options), RUNS.values())))
    return committed.hold(os.path.join(os.path.dirname(__file__), "digits.json"), found)


if __name__ == "__main__":
    sys.exit(main())
