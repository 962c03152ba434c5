#!/usr/bin/python3
"""What ScheduledOptimizer costs the training's thread: microseconds of its processor time for each gradient, beside the
optimizer alone. Layers of one small tensor each, so that nothing else takes time; one worker and one server, here."""
import argparse
import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "python")]
os.environ.setdefault("MERCURY_LIBRARY", os.path.join(ROOT, "build/shim/client/libmercurystack.so"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from cluster import Cluster  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

WARM_UP = 5


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, values):
        return values * self.weight


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cluster = Cluster(1)
    try:
        for place, (name, make) in enumerate({
                "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-9, momentum=0.9),
                "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-9)}.items()):
            alone = microseconds(arguments.tensors, arguments.iterations, make, lambda optimizer, _: optimizer)
            wrapped = microseconds(arguments.tensors, arguments.iterations, make, lambda optimizer, model: ScheduledOptimizer(
                optimizer, model, cluster.contexts[1], cluster.workers[0], first_number=place * arguments.tensors))
            print(f"{name}: {alone:.1f} us a tensor alone, {wrapped:.1f} us with ScheduledOptimizer: {wrapped - alone:.1f} us more")
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
