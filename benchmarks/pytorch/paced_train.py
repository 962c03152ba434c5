#!/usr/bin/env python3
"""One worker of compare.py: trains a model whose layers take the time that they are given, as on an accelerator, and
prints the seconds of each iteration. Or one of its servers, if the job's environment says so."""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

class Computing(torch.autograd.Function):
    """Takes time on another processor than this one."""

    @staticmethod
    def forward(ctx, values, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, numel, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.full((numel,), 1 / numel))
        self.seconds = seconds

    def forward(self, values):
        # A third of the time forward, two backward, as is usual; then its gradient is there.
        return Computing.apply(values + self.weight.sum(), self.seconds / 3, 2 * self.seconds / 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=("mercury", "gloo", "backend", "alone"))
    parser.add_argument("--layers", required=True, help="NUMEL:SECONDS,...")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--serve", action="store_true", help="a server runs in this worker's process, too")
    parser.add_argument("--trace", help="a file for what ScheduledOptimizer recorded, as mercury-sim reads it")
    parser.add_argument("--timeline", help="a file for the same, as ui.perfetto.dev reads it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    layers = [part.split(":") for part in arguments.layers.split(",")]
    model = nn.Sequential(*(Layer(int(numel), float(seconds)) for numel, seconds in layers)).to(arguments.device)

    def train(model, optimizer):
        values, times, begin = torch.ones(8, device=arguments.device), [], time.perf_counter()
        for _ in range(arguments.iterations):
            optimizer.zero_grad()
            model(values).sum().backward()
            optimizer.step()
            if arguments.device != "cpu":
                torch.cuda.synchronize()
            end = time.perf_counter()
            times.append(end - begin)
            begin = end
        print(json.dumps(times), flush=True)

    if arguments.system == "alone":
        train(model, torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9))
    elif arguments.system in ("gloo", "backend"):
        if arguments.system == "backend":
            import mercurystack.distributed  # noqa: F401
        dist.init_process_group("gloo" if arguments.system == "gloo" else "mercury")
        wrapped = nn.parallel.DistributedDataParallel(model)
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=1e-9, momentum=0.9))
    else:
        import mercurystack
        from mercurystack.torch import ScheduledOptimizer
        with mercurystack.Context("embedded") as context, context.open_job("paced", serve=arguments.serve) as job:
            if job.role == "server":
                job.wait_end()
                return
            sgd = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
            with ScheduledOptimizer(sgd, model, context, job, timeline=100_000) as optimizer:
                train(model, optimizer)
                for path, write in ((arguments.trace, optimizer.write_trace), (arguments.timeline, optimizer.write_timeline)):
                    if path:
                        write(path)


if __name__ == "__main__":
    main()
