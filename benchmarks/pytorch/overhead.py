#!/usr/bin/python3
"""What ScheduledOptimizer costs the training's thread: microseconds of its processor time for each gradient, beside the
optimizer alone, and beside a call by ctypes that does nothing; one worker and one server, here. Layers of one small tensor each, so that
nothing else takes time: least favourable, as what comes with a layer is that tensor's alone.

Sums are back when the forward pass begins, which takes one step for all tensors then; and once as where each layer waits for its own,
which takes a step for each layer: beside the optimizer alone that takes a step for each, by the function
that PyTorch has wrapped in a record for its profiler; what calls of the wrapped one take more, which nobody has to do, is said beside.
What of it are PyTorch's hooks is measured with the optimizer alone, too: with as many hooks of the same kinds, which do nothing but take
each step in the forward pass."""
import argparse
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
import unittest.mock
from concurrent.futures import ProcessPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, *folder) for folder in (("python",), ("tests", "python"), ("tools",))]
os.environ.setdefault("MERCURY_LIBRARY", os.path.join(ROOT, "build/shim/client/libmercurystack.so"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import recording  # noqa: E402
from cluster import Cluster  # noqa: E402
from mercurystack import _native  # noqa: E402
from mercurystack._stepping import without_record  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

WARM_UP, ITERATIONS = 2, 10  # of one training, before another has its turn
EMPTY_CALLS = 100_000
OPTIMIZERS = {"SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-9, momentum=0.9),
              "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-9)}


class Layer(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.tensors = [nn.Parameter(torch.ones(8)) for _ in range(count)]
        for place, one in enumerate(self.tensors):
            self.register_parameter(f"tensor{place}", one)

    def forward(self, values):
        for one in self.tensors:
            values = values * one
        return values


class LayerByLayer:
    """A step of the optimizer for each layer."""

    def __init__(self, optimizer, model, recorded=False):
        (group,) = self.groups = optimizer.param_groups
        self.optimizer, step = optimizer, type(optimizer).step
        self.groups_of = {layer: [{**group, "params": layer.tensors}] for layer in model}
        self.step_of_all = step if recorded else without_record(step)

    def zero_grad(self):
        self.optimizer.param_groups = self.groups
        self.optimizer.zero_grad(set_to_none=False)

    def step(self):
        for layer in self.groups_of:
            self.step_for(layer)

    def step_for(self, layer):
        self.optimizer.param_groups = self.groups_of[layer]
        self.step_of_all(self.optimizer)


class Hooked:
    """Around the optimizer alone: hooks of the kinds that ScheduledOptimizer has, and as many."""

    def __init__(self, optimizer, model, apart):
        self.optimizer, self.apart, self.is_due, self.nodes = optimizer, LayerByLayer(optimizer, model) if apart else None, False, []
        model.register_forward_hook(lambda *_: None)
        model.register_forward_pre_hook(lambda *_: None)
        for layer in model:
            layer.register_forward_pre_hook(self.before if apart else lambda *_: None)
            for one in layer.tensors:
                node = one.expand_as(one).grad_fn.next_functions[0][0]
                self.nodes.append(node)
                node.register_prehook(lambda _: None)
                getattr(one, "register_post_accumulate_grad_hook", node.register_hook)(lambda *_: None)

    def before(self, layer, _):
        if self.is_due:
            self.apart.step_for(layer)
            for one in layer.tensors:
                one.grad.zero_()

    def zero_grad(self):
        if not self.apart:
            self.optimizer.zero_grad(set_to_none=False)

    def step(self):
        self.is_due = True
        if not self.apart:
            self.optimizer.step()


class Training:
    def __init__(self, layers, per_layer, make, wrap):
        self.count, self.values = layers * per_layer, torch.ones(8)
        self.model = nn.Sequential(*(Layer(per_layer) for _ in range(layers)))
        self.optimizer = wrap(make(self.model.parameters()), self.model)

    def microseconds(self):
        """Of each gradient, the median over iterations."""
        times = []
        for _ in range(WARM_UP + ITERATIONS):
            begin = time.thread_time()
            self.optimizer.zero_grad()
            self.model(self.values).sum().backward()
            self.optimizer.step()
            times.append(time.thread_time() - begin)
        return 1e6 * statistics.median(times[WARM_UP:]) / self.count


def empty_call_us():
    """Of ctypes: the library's function returns a constant."""
    call = _native.library.mercury_version_number
    begin = time.thread_time()
    for _ in range(EMPTY_CALLS):
        call()
    return 1e6 * (time.thread_time() - begin) / EMPTY_CALLS


def measure(name, apart, arguments):
    """Microseconds, by what they are of: medians of turns, whose differences are of the same turn, as a machine is quicker at one time
    than at another."""
    torch.set_num_threads(1)
    cluster = Cluster(1)
    ways = {"alone": lambda optimizer, model: LayerByLayer(optimizer, model) if apart else optimizer,
            "hooks": lambda optimizer, model: Hooked(optimizer, model, apart),
            "more": lambda optimizer, model: ScheduledOptimizer(optimizer, model, cluster.contexts[1], cluster.workers[0])}
    if apart:
        ways["record"] = lambda optimizer, model: LayerByLayer(optimizer, model, recorded=True)
    try:
        trainings = {what: Training(arguments.layers, arguments.per_layer, OPTIMIZERS[name], wrap) for what, wrap in ways.items()}
        each_alone = unittest.mock.patch.object(ScheduledOptimizer, "_update_arrived", lambda _: None)
        with each_alone if apart else contextlib.nullcontext():
            turns = [{what: training.microseconds() for what, training in trainings.items()} for _ in range(arguments.turns)]
    finally:
        cluster.close()

    def of(what, but):
        return statistics.median(turn.get(what, 0.0) - turn.get(but, 0.0) for turn in turns)
    return {"alone": of("alone", ""), "record": of("record", "alone") if apart else 0.0, "hooks": of("hooks", "alone"),
            "more": of("more", "alone"), "own": of("more", "hooks"), "empty_call": empty_call_us()}


def rows_of(arguments):
    kinds = [(name, apart) for apart in (False, True) for name in OPTIMIZERS]
    times = {kind: [] for kind in kinds}
    for _ in range(arguments.repeat):
        for kind in kinds:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:  # its own, as a training has
                times[kind].append(process.submit(measure, *kind, arguments).result())
    for (name, apart), runs in times.items():
        of = {what: [run[what] for run in runs] for what in runs[0]}
        row = {f"{what}_us": round(statistics.median(of[what]), 3 if what == "empty_call" else 2) for what in of}
        for what in ("more", "own"):
            row.update({f"{what}_least_us": round(min(of[what]), 2), f"{what}_most_us": round(max(of[what]), 2)})
        yield {"optimizer": name + (", a step for each layer" if apart else ""), "tensors": arguments.layers * arguments.per_layer,
               "per_layer": arguments.per_layer, **row}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--per-layer", type=int, default=1, help="tensors of each: most of PyTorch's have 2, a weight and a bias")
    parser.add_argument("--turns", type=int, default=9, help="of each way to train, beside the others")
    parser.add_argument("--repeat", type=int, default=3, help="how often all is measured, one optimizer after the other")
    parser.add_argument("--record", type=pathlib.Path, help="a file of docs/records to add rows to")
    arguments = parser.parse_args()
    rows = list(rows_of(arguments))
    for row in rows:
        print("{optimizer}: {alone_us} us a tensor alone, with ScheduledOptimizer {more_us} [{more_least_us}, {more_most_us}] us more: {hooks_us} us "
              "of PyTorch's hooks, {own_us} [{own_least_us}, {own_most_us}] us of its own; an empty call by ctypes {empty_call_us} us; "
              "PyTorch's record of each step {record_us} us".format(**row))
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
