#!/usr/bin/python3
"""What ScheduledOptimizer costs the training's thread: microseconds of its processor time for each gradient, beside the
optimizer alone, and beside a call by ctypes that does nothing. Layers of one small tensor each, so that nothing else takes time;
one worker and one server, here. Sums are back when the forward pass begins, which takes one step for all tensors then; and once
as where each module waits for its own, which takes a step for each: beside the optimizer alone that takes a step for each."""
import argparse
import os
import pathlib
import statistics
import sys
import time
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, *folder) for folder in (("python",), ("tests", "python"), ("tools",))]
os.environ.setdefault("MERCURY_LIBRARY", os.path.join(ROOT, "build/shim/client/libmercurystack.so"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import recording  # noqa: E402
from cluster import Cluster  # noqa: E402
from mercurystack import _native  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

WARM_UP = 5
EMPTY_CALLS = 100_000
OPTIMIZERS = {"SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-9, momentum=0.9),
              "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-9)}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, values):
        return values * self.weight


class TensorByTensor:
    """A step of the optimizer for each of its tensors."""

    def __init__(self, optimizer):
        self.optimizer, self.groups = optimizer, optimizer.param_groups

    def zero_grad(self):
        self.optimizer.param_groups = self.groups
        self.optimizer.zero_grad(set_to_none=False)

    def step(self):
        for group in self.groups:
            for parameter in group["params"]:
                self.optimizer.param_groups = [{**group, "params": [parameter]}]
                self.optimizer.step()


def microseconds(count, iterations, make, wrap):
    """Of each gradient, the median over iterations."""
    model = nn.Sequential(*(Layer() for _ in range(count)))
    optimizer = wrap(make(model.parameters()), model)
    times, values = [], torch.ones(8)
    for _ in range(WARM_UP + iterations):
        begin = time.thread_time()
        optimizer.zero_grad()
        model(values).sum().backward()
        optimizer.step()
        times.append(time.thread_time() - begin)
    return 1e6 * statistics.median(times[WARM_UP:]) / count


def empty_call_us():
    """Of ctypes: the library's function returns a constant."""
    call = _native.library.mercury_version_number
    begin = time.thread_time()
    for _ in range(EMPTY_CALLS):
        call()
    return 1e6 * (time.thread_time() - begin) / EMPTY_CALLS


class Overhead:
    """Of one optimizer after the other, in turns."""

    def __init__(self, cluster, arguments):
        self.cluster, self.arguments, self.first_number = cluster, arguments, 0

    def wrap(self, optimizer, model):
        wrapped = ScheduledOptimizer(optimizer, model, self.cluster.contexts[1], self.cluster.workers[0], first_number=self.first_number)
        self.first_number += self.arguments.tensors
        return wrapped

    def once(self, make, apart):
        """(alone, more with ScheduledOptimizer, an empty call): microseconds"""
        each = self.arguments.tensors, self.arguments.iterations
        alone = microseconds(*each, make, lambda optimizer, _: TensorByTensor(optimizer) if apart else optimizer)
        if not apart:
            return alone, microseconds(*each, make, self.wrap) - alone, empty_call_us()
        with unittest.mock.patch.object(ScheduledOptimizer, "_update_arrived", lambda _: None):
            return alone, microseconds(*each, make, self.wrap) - alone, empty_call_us()

    def rows(self):
        kinds = {name + (", a step for each tensor" if apart else ""): (make, apart) for apart in (False, True) for name, make in OPTIMIZERS.items()}
        times = {kind: [] for kind in kinds}
        for _ in range(self.arguments.repeat):
            for kind, how in kinds.items():
                times[kind].append(self.once(*how))
        for name, runs in times.items():
            alone, more, empty = zip(*runs)
            yield {"optimizer": name, "tensors": self.arguments.tensors, "alone_us": round(statistics.median(alone), 2),
                   "more_us": round(statistics.median(more), 2), "more_least_us": round(min(more), 2),
                   "more_most_us": round(max(more), 2), "empty_call_us": round(statistics.median(empty), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured, in turns")
    parser.add_argument("--record", type=pathlib.Path, help="a file of docs/records to add rows to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cluster = Cluster(1)
    try:
        rows = list(Overhead(cluster, arguments).rows())
    finally:
        cluster.close()
    for row in rows:
        print("{optimizer}: {alone_us} us a tensor alone, with ScheduledOptimizer {more_us} [{more_least_us}, {more_most_us}] us more; "
              "an empty call by ctypes {empty_call_us} us".format(**row))
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
