"""One worker of quorum_test.py: trains in a job with a quorum, and prints who was in each step, then what the weights became.

usage: quorum_program.py PACKAGE_FOLDER RANK WORKERS QUORUM PATIENCE_MS RENDEZVOUS WHAT
WHAT: goes-on; waits: before its fourth iteration, for a line of standard input; dies: in it
"""
import hashlib
import os
import signal
import sys

PACKAGE, RANK, WORKERS, QUORUM, PATIENCE_MS, RENDEZVOUS, WHAT = sys.argv[1:]
RANK, WORKERS, QUORUM, PATIENCE_MS = int(RANK), int(WORKERS), int(QUORUM), int(PATIENCE_MS)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mercurystack  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

ITERATIONS, AT = 8, 3


def train(model, optimizer):
    for iteration in range(ITERATIONS):
        if iteration == AT and WHAT == "waits":
            sys.stdin.readline()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(16, 20)), torch.randint(10, (16,)))
        if iteration == AT and WHAT == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.flush()
        step = optimizer.last_step()
        assert step is not None and step.iteration == iteration and step.attempts == 1, step
        print(iteration, sorted(step.workers), sorted(step.partly), flush=True)
    values = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    print(hashlib.sha256(values).hexdigest(), flush=True)


torch.set_num_threads(1)
torch.manual_seed(RANK)
terms = {"role": "worker", "rank": RANK, "workers": WORKERS, "servers": 1, "rendezvous": RENDEZVOUS, "timeout_ms": 100_000}
with mercurystack.Context("daemon") as context, context.open_job("quorum", quorum=QUORUM, patience_ms=PATIENCE_MS, **terms) as job:
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with ScheduledOptimizer(inner, net, context, job, quorum=QUORUM) as scheduled:
        train(net, scheduled)
