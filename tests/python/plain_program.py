"""One worker of lossy_test.py whose exchange overlaps its passes: trains, and prints what the weights became.

usage: plain_program.py PACKAGE_FOLDER RANK WORKERS RENDEZVOUS ITERATIONS
MERCURY_TEST_WIDTH: of the hidden layers
"""
import hashlib
import os
import sys

PACKAGE, RANK, WORKERS, RENDEZVOUS, ITERATIONS = sys.argv[1:]
RANK, WORKERS, ITERATIONS = int(RANK), int(WORKERS), int(ITERATIONS)
WIDTH = int(os.environ.pop("MERCURY_TEST_WIDTH"))
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mercurystack  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402


def train(model, optimizer):
    for iteration in range(ITERATIONS):
        random = torch.Generator().manual_seed(1000 * iteration + RANK)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 20, generator=random)), torch.arange(16) % 10).backward()
        optimizer.step()
    optimizer.flush()
    return hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()


torch.set_num_threads(1)
torch.manual_seed(RANK)
terms = {"role": "worker", "rank": RANK, "workers": WORKERS, "servers": 1, "rendezvous": RENDEZVOUS, "timeout_ms": 100_000}
with mercurystack.Context("daemon") as context, context.open_job("plain", deterministic=True, **terms) as job:
    net = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))
    with ScheduledOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), net, context, job) as scheduled:
        print(train(net, scheduled), flush=True)
