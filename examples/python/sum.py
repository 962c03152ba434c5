#!/usr/bin/env python3
"""Each worker fills an array and finds in it the sum over all workers. docs/python.md says how to run it."""
import mercurystack

NUMEL = 100_000
ROUNDS = 3


def work(context, job):
    gradient = context.zeros(NUMEL)
    tensor = job.declare(7, gradient, priority=0)
    for number in range(1, ROUNDS + 1):
        gradient[:] = number * (job.rank + 1)
        operation = tensor.push_pull()
        # Compute something else here: until the wait returns, the array is Mercury's.
        operation.wait()
        print(f"worker {job.rank} round {number}: {gradient[-1]:.0f}", flush=True)


with mercurystack.Context() as context, context.open_job("sum") as job:
    if job.role == "worker":
        work(context, job)
    else:
        job.wait_end()
