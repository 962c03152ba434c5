"""One worker of torch_programs_test.py: trains with what its first argument says. torch_program.py PACKAGE_FOLDER WHAT"""
import hashlib
import sys
import threading

sys.path.insert(0, sys.argv[1])

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mercurystack  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402


class Images(torch.utils.data.Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, place):
        return torch.full((8,), (place + self.rank) / 64), place % 4


def step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return float(loss)


def load(rank, model, optimizer):
    """Loaders' processes are forked while the engine runs, for every epoch anew, and end before it."""
    losses = []
    for _ in range(3):
        loader = torch.utils.data.DataLoader(Images(rank), batch_size=8, num_workers=2)
        losses += [step(model, optimizer, images, labels) for images, labels in loader]
    assert losses[-1] < losses[0], losses
    values = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print(hashlib.sha256(values).hexdigest(), flush=True)


def interrupt(rank, model, optimizer):
    """Worker 1 takes no part in the second step. Worker 0 waits for it, until it is interrupted."""
    images, labels = torch.ones(4, 8), torch.arange(4)
    step(model, optimizer, images, labels)
    optimizer.flush()
    print("ready", flush=True)
    if rank == 1:
        sys.stdin.readline()  # until the test knows that worker 0 has ended
    step(model, optimizer, images, labels)
    optimizer.flush()


torch.set_num_threads(1)
torch.manual_seed(1)
with mercurystack.Context("embedded") as context, context.open_job("program", serve=True, deterministic=True) as job:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with ScheduledOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net, context, job) as scheduled:
        {"load": load, "interrupt": interrupt}[sys.argv[2]](job.rank, net, scheduled)
assert threading.active_count() == 1, threading.enumerate()
