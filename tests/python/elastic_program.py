"""One worker of elastic_test.py and lossy_test.py: trains, may kill itself on the way, and prints what the weights became.

usage: elastic_program.py PACKAGE_FOLDER RANK WORKERS RENDEZVOUS ITERATIONS [KILL...]
MERCURY_TEST_PACE_S: how long an iteration takes at least (default 0): as if a processor of its own computed
MERCURY_TEST_WIDTH: of the hidden layer (default 64): 132 bytes of gradients for each of its units
KILL: [later-]gradient|votes|state:N:before|behind, at the N-th push of that kind; later-: since training began
"""
import functools
import hashlib
import os
import signal
import sys
import time
import warnings

PACKAGE, RANK, WORKERS, RENDEZVOUS, ITERATIONS, *KILLS = sys.argv[1:]
RANK, WORKERS, ITERATIONS = int(RANK), int(WORKERS), int(ITERATIONS)
PACE_S = float(os.environ.pop("MERCURY_TEST_PACE_S", "0"))
WIDTH = int(os.environ.pop("MERCURY_TEST_WIDTH", "64"))
sys.path.insert(0, PACKAGE)
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mercurystack  # noqa: E402
from mercurystack import _job, _meeting, _native  # noqa: E402
from mercurystack.torch import Elastic, ScheduledOptimizer  # noqa: E402

pushes, training = {}, []  # training: not empty once it has begun


def names_of(kind):
    return (kind, f"later-{kind}") if training else (kind,)


def pushed(tensor, where):
    kind = {_meeting.VOTES: "votes", _meeting.STATE: "state"}.get(tensor.id, "gradient")
    if where == "before":
        for name in names_of(kind):
            pushes[name] = pushes.get(name, 0) + 1
    if any(f"{name}:{pushes[name]}:{where}" in KILLS for name in names_of(kind)):
        os.kill(os.getpid(), signal.SIGKILL)


def submit(job, tensor, kind, *arguments, original=_job.Job._submit):
    if kind != _native.PUSH_PULL:
        return original(job, tensor, kind, *arguments)
    pushed(tensor, "before")
    operation = original(job, tensor, kind, *arguments)
    pushed(tensor, "behind")
    return operation


def train(model, optimizer, rates):
    training.append(True)
    attempts, begun = 0, time.monotonic()
    for iteration in optimizer.iterations(ITERATIONS):
        time.sleep(max(0, begun + PACE_S - time.monotonic()))
        begun = time.monotonic()
        torch.manual_seed(1000 * iteration + RANK)  # of the batch, and of what is dropped
        optimizer.zero_grad()
        if iteration % 3 == 1:
            with optimizer.no_sync():
                model(torch.randn(16, 20)).square().mean().backward()
        nn.functional.cross_entropy(model(torch.randn(16, 20)), torch.randint(10, (16,))).backward()
        if iteration % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        rates.step()
        step = optimizer.last_step()
        if step is not None and step.iteration == iteration:
            assert step.workers == set(range(WORKERS)) and not step.partly, step
            attempts += step.attempts
    return attempts


def digest_of(model, optimizer):
    """Weights, the optimizer's state and its rate. Buffers are each worker's own."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
        for value in optimizer.state[parameter].values():
            digest.update(torch.as_tensor(value).numpy().tobytes())
    return digest.hexdigest() + f" {optimizer.param_groups[0]['lr']:.9g} {int(model[1].num_batches_tracked)}"


_job.Job._submit = submit
_meeting.StateTensor = functools.partial(_meeting.StateTensor, most=10_000)  # so that a state has several pieces
torch.set_num_threads(1)
torch.manual_seed(RANK)
terms = {"role": "worker", "rank": RANK, "workers": WORKERS, "servers": 1, "rendezvous": RENDEZVOUS, "timeout_ms": 100_000, "rejoin_ms": 100_000}
with mercurystack.Context("daemon") as context, context.open_job("elastic", deterministic=True, **terms) as job:
    net = nn.Sequential(nn.Linear(20, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 10))
    inner = torch.optim.Adam(net.parameters(), lr=0.01)
    rate = torch.optim.lr_scheduler.StepLR(inner, 2, 0.7)
    with ScheduledOptimizer(inner, net, context, job, elastic=Elastic(carried=(rate,))) as scheduled:
        taken = train(net, scheduled, rate)
        print(digest_of(net, inner), taken, flush=True)
