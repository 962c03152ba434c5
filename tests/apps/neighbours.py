"""What a hostile neighbour costs an innocent job: the rounds that the job does beside it, as a part of those beside a harmless
one."""
import argparse
import contextlib
import os
import random
import statistics
import time


def arguments():
    """(options, those of unittest): of a test of hostile ones, which with --measure measures instead."""
    parser = argparse.ArgumentParser()
    for name in ("stackd", "ctl", "library"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--measure", type=float, default=0)
    parser.add_argument("--row", help="with --measure: only rows with this in their name")
    return parser.parse_known_args()


def make_idle(process):
    """It has only the time that nobody else wants."""
    for task in os.listdir(f"/proc/{process.pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))


def rate(go, seconds):
    """Rounds a second, by a function that does so many."""
    rounds, start = 0, time.monotonic()
    while time.monotonic() < start + seconds:
        go(20)
        rounds += 20
    return rounds / (time.monotonic() - start)


def measured(rows, options, go, pairs, settle_s=0.0):
    """Prints a row for each (name, harmless, hostile), functions that give contexts, and returns the least median. Each time
    beside the hostile one is between two beside the harmless one, so that what else the machine does meanwhile falls out."""
    least = float("inf")
    for name, harmless, hostile in rows:
        if options.row and options.row not in name:
            continue
        ratios = []
        for _ in range(pairs):
            rates = []
            for neighbour in (harmless(), hostile(), harmless()):
                with neighbour:
                    time.sleep(settle_s)
                    rates.append(rate(go, options.measure))
            ratios.append(2 * rates[1] / (rates[0] + rates[2]))
        least = min(least, statistics.median(ratios))
        print(f"{name:17} median {statistics.median(ratios):.3f}  of {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}", flush=True)
    return least
