"""What a hostile neighbour costs an innocent job: the rounds that the job does beside it, as a part of those beside a harmless
one."""
import argparse
import contextlib
import os
import random
import pathlib
import statistics
import sys
import time

from program import Program

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import recording  # noqa: E402

FIELDS = ["way", "pairs", "median", "least", "most"]


def arguments():
    """(options, those of unittest): of a test of hostile ones, which with --measure measures instead."""
    parser = argparse.ArgumentParser()
    for name in ("stackd", "ctl", "library"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--measure", type=float, default=0)
    parser.add_argument("--row", help="with --measure: only rows with this in their name")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="with --measure: append each row to this CSV file, in docs/records")
    options, rest = parser.parse_known_args()
    if options.record:
        recording.check(options.record, FIELDS)
    return options, rest


class InnocentJob:
    """Two workers, attached to the daemons at `sockets`, and their tensor."""
    NUMEL = 40000

    def __init__(self, options, sockets, rendezvous, secret=""):
        self.seed = options.seed
        self.programs = []
        for path in sockets:
            self.programs.append(Program(options.library, path))
        for rank, program in enumerate(self.programs):
            program.begin("open", name="innocent", rank=rank, workers=2, servers=1, rendezvous=rendezvous, timeout_ms=60000,
                          **({"secret": secret} if secret else {}))
        self.everyone()
        for program in self.programs:
            program.begin("declare", tensors=[[0, self.NUMEL, "f32", "sum"]])
        self.everyone()

    def everyone(self):
        for program in self.programs:
            reply = program.result()
            if reply.code != 0 or reply.text:
                raise AssertionError(f"seed {self.seed}: the innocent job: {reply}")

    def go(self, rounds):
        """Every sum is checked."""
        for program in self.programs:
            program.begin("exchange", tensor=0, rounds=rounds)
        self.everyone()

    def kill(self):
        for program in self.programs:
            program.kill()


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
        median = statistics.median(ratios)
        least = min(least, median)
        print(f"{name:17} median {median:.3f}  of {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}", flush=True)
        if options.record:
            figures = (f"{ratio:.3f}" for ratio in (median, min(ratios), max(ratios)))
            recording.append(options.record, [dict(zip(FIELDS, (name, pairs, *figures)))])
    return least
