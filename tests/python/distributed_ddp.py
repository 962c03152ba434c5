"""What distributed_program.py checks of DistributedDataParallel: the weights are those that it has over Gloo."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

ITERATIONS = 6


class Net(nn.Module):
    """With a branch that some iterations leave out, on some ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.normal = nn.BatchNorm1d(64)

    def forward(self, inputs, branch):
        hidden = self.normal(torch.tanh(self.first(inputs)))
        return self.last(torch.tanh(self.other(hidden)) if branch else hidden)


def trained(group, rank, hook=None, branch=lambda rank, iteration: True, accumulate=False, **options):
    torch.manual_seed(1)
    # Small buckets: several at once. But PowerSGD's callbacks begin collectives, of which several buckets' would come in
    # another order on each rank, over Gloo too.
    nested = hook is HOOKS["powerSGD"]
    model = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=25 if nested else 0.005, **options)
    if hook is not None:
        model.register_comm_hook(*hook(group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for iteration in range(ITERATIONS):
        random = torch.Generator().manual_seed(100 * iteration + rank)

        def backward():
            model(torch.randn(16, 20, generator=random), branch(rank, iteration)).square().mean().backward()
        if accumulate:
            with model.no_sync():
                backward()
        backward()
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
MODES = {
    "no_sync": {"accumulate": True},
    "find_unused_parameters": {"find_unused_parameters": True, "branch": lambda rank, iteration: (rank + iteration) % 2 == 0},
    "static_graph": {"static_graph": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
}


def check_ddp_as_over_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    for name, hook in HOOKS.items():
        compare(name, trained(None, rank, hook), trained(gloo, rank, hook), size)
    for name, options in MODES.items():
        compare(name, trained(None, rank, **options), trained(gloo, rank, **options), size)


def compare(name, ours, its, size):
    tolerance = 0 if size == 2 else 1e-5  # the sum of two is the same in each order
    for key, value in ours.items():
        assert torch.allclose(value.double(), its[key].double(), rtol=0, atol=tolerance), (name, key, (value - its[key]).abs().max())


CHECKS = (check_ddp_as_over_gloo,)
