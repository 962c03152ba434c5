"""One member of rejoin_test.py: a server, or a worker that trains and may kill itself on the way.

usage: rejoin_program.py PACKAGE_FOLDER ROLE RANK WORKERS RENDEZVOUS FOLDER ITERATIONS [KILL_AT KILL_WHERE]
"""
import os
import signal
import sys

PACKAGE, ROLE, RANK, WORKERS, RENDEZVOUS, FOLDER, ITERATIONS = sys.argv[1:8]
KILL_AT, KILL_WHERE = (int(sys.argv[8]), sys.argv[9]) if len(sys.argv) > 8 else (0, "")
RANK, WORKERS, ITERATIONS = int(RANK), int(WORKERS), int(ITERATIONS)
sys.path.insert(0, PACKAGE)

import numpy  # noqa: E402

import mercurystack  # noqa: E402

ELEMENTS = 20_000


def kill_here(iteration, where):
    if (iteration, where) == (KILL_AT, KILL_WHERE):
        os.kill(os.getpid(), signal.SIGKILL)


def save(weights, iteration):
    """As a whole or not at all: a worker may be killed in it."""
    path = os.path.join(FOLDER, f"{RANK}.npz")
    with open(path + ".new", "wb") as file:
        numpy.savez(file, weights=weights, iteration=iteration)
    os.replace(path + ".new", path)


def state_before(iteration):
    """The weights that iteration begins with, of another worker: all have the same. The others wait in it or before it is
    over, so their last state is that of the iteration before."""
    if iteration == 1:
        return numpy.linspace(-1, 1, ELEMENTS, dtype=numpy.float32)
    for peer in range(WORKERS):
        path = os.path.join(FOLDER, f"{peer}.npz")
        if os.path.exists(path):
            with numpy.load(path) as state:
                if int(state["iteration"]) == iteration - 1:
                    return state["weights"]
    sys.exit(f"no worker has the state before iteration {iteration}")


def train(context, job):
    gradient = context.zeros(ELEMENTS)
    tensor = job.declare(1, gradient, op="average")
    first = tensor.round  # 1, or in a worker that came back the one that the others are in
    weights = state_before(first).copy()
    for iteration in range(first, ITERATIONS + 1):
        kill_here(iteration, "before the push")
        random = numpy.random.default_rng(1000 * iteration + RANK)
        gradient[:] = weights * random.standard_normal(ELEMENTS, dtype=numpy.float32)
        operation = tensor.push_pull()
        kill_here(iteration, "behind the push")
        operation.wait(100)
        kill_here(iteration, "before the state is saved")
        weights -= numpy.float32(0.1) * gradient
        save(weights, iteration)
        kill_here(iteration, "behind the state")
    print(first, weights.tobytes().hex()[:64], numpy.abs(weights).sum(dtype=numpy.float64), flush=True)


with mercurystack.Context("embedded", listen=RENDEZVOUS if ROLE == "server" else "127.0.0.1") as context:
    terms = {"workers": WORKERS, "servers": 1, "rendezvous": RENDEZVOUS, "timeout_ms": 100_000, "rejoin_ms": 100_000, "deterministic": True}
    with context.open_job("rejoin", role=ROLE, rank=RANK, **terms) as job:
        if ROLE == "server":
            job.wait_end(200)
        else:
            train(context, job)
