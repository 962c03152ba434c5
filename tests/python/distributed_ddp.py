"""What distributed_program.py checks of DistributedDataParallel: the weights are those that it has over Gloo."""
import ctypes

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

ITERATIONS = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.normal = nn.BatchNorm1d(64)

    def forward(self, inputs):
        hidden = self.normal(torch.tanh(self.first(inputs)))
        return self.last(torch.tanh(self.other(hidden)))


def trained(group, rank, hook):
    torch.manual_seed(1)
    # Small buckets: several at once. But PowerSGD's callbacks begin collectives, of which several buckets' would come in
    # another order on each rank, over Gloo too.
    nested = hook is HOOKS["powerSGD"]
    model = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=25 if nested else 0.005)
    if hook is not None:
        model.register_comm_hook(*hook(group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for iteration in range(ITERATIONS):
        random = torch.Generator().manual_seed(100 * iteration + rank)
        model(torch.randn(16, 20, generator=random)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


# Without bf16_compress_hook and post_localSGD_hook, which PyTorch refuses without CUDA.
HOOKS = {
    "none": None,
    "allreduce": lambda group: (group, default_hooks.allreduce_hook),
    "fp16_compress": lambda group: (group, default_hooks.fp16_compress_hook),
    "fp16_compress around allreduce": lambda group: (group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "powerSGD": lambda group: (powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook.powerSGD_hook),
}


def hooks():
    """Where there is a GPU PyTorch 2.11's PowerSGD waits for the device of its tensors as for one, and fails for those on the CPU."""
    return {name: hook for name, hook in HOOKS.items() if name != "powerSGD" or not torch.cuda.is_available()}


def check_ddp_as_over_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    # Never destroyed: a hook's callback may still be on a thread of Gloo's when all is done, and a group whose last owner is
    # that callback ends the process, as that thread then waits for itself.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))
    for name, hook in hooks().items():
        compare(name, trained(None, rank, hook), trained(gloo, rank, hook), size)


def compare(name, ours, its, size):
    tolerance = 0 if size == 2 else 1e-5  # the sum of two is the same in each order
    for key, value in ours.items():
        assert torch.allclose(value.double(), its[key].double(), rtol=0, atol=tolerance), (name, key, (value - its[key]).abs().max())


def joined(group, rank, finds_unused):
    """Of a rank that has more iterations than another, and of a layer that is not used."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.ModuleList([nn.Linear(20, 8), nn.Linear(8, 4), nn.Linear(8, 4)]), process_group=group,
                                    find_unused_parameters=finds_unused)
    inner = model.module
    model.module.forward = lambda inputs: inner[1](torch.tanh(inner[0](inputs))) + (0 if finds_unused else 0 * inner[2](inner[0](inputs)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for iteration in range(2 + rank):
            random = torch.Generator().manual_seed(100 * iteration + rank)
            model(torch.randn(16, 20, generator=random)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def check_join_as_over_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))  # as above
    for finds_unused in False, True:
        compare(f"join, {finds_unused}", joined(None, rank, finds_unused), joined(gloo, rank, finds_unused), size)


CHECKS = (check_ddp_as_over_gloo, check_join_as_over_gloo)
