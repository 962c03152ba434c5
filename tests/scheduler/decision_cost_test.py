#!/usr/bin/env python3
"""Counts the instructions of schedule decisions and admissions, exactly, with callgrind.

A decision must cost the same at 1 and at 65,536 priorities, and an admission the same for 4 KB and
for 400 MB. Usage: decision_cost_test.py PATH_OF_decision_cost
"""
import re
import shutil
import subprocess
import sys

TOLERANCE = 1.20
PRIORITIES = (1, 64, 4096, 65536)


def instructions(program, function, what, number):
    """Instructions inside `function` and what it calls, over the whole run."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
               f"--toggle-collect=mercury::Scheduler::{function}(*", program, what, str(number)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}")
    return int(found.group(1))


def check(title, costs):
    """Prints a line per number and says whether the largest cost is close to the smallest."""
    for number, cost in costs.items():
        print(f"{title:32} {number:>8}: {cost:8.1f} instructions")
    low, high = min(costs.values()), max(costs.values())
    if low <= 0 or high > low * TOLERANCE:
        print(f"FAILED: {title}: from {low:.1f} to {high:.1f}, more than {TOLERANCE} times")
        return False
    return True


def main():
    program = sys.argv[1]
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed to count instructions: apt-get install valgrind")
    ok = True
    ok &= check("next, long ranges, priorities",
                {n: instructions(program, "next", "cut", n) / 4096 for n in PRIORITIES})
    ok &= check("next, sessions take turns",
                {n: instructions(program, "next", "turns", n) / 4096 for n in PRIORITIES})
    # Not from 1: a session that holds one chunk is not put back into its job, which costs less.
    ok &= check("next, empties a priority",
                {n: instructions(program, "next", "empty", n) / 65536 for n in PRIORITIES[1:]})
    ok &= check("admit, chunks of a range",
                {n: instructions(program, "admit", "admit", n) / 4096 for n in (3, 300_000)})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
