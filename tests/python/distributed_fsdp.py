"""What distributed_program.py checks of PyTorch 2's fully_shard: the weights are those of one process that averages the gradients, and
rank 0's checkpoint goes to all."""
import torch
import torch.distributed as dist
from torch import nn

ITERATIONS = 5


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 5))  # of sizes that ranks cannot share evenly


def loss(model, worker, iteration):
    random = torch.Generator().manual_seed(1000 * worker + iteration)
    return model(torch.randn(16, 8, generator=random)).square().mean()


def sharded(rank, size, fully_shard):
    model = net()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss(model, rank, iteration).backward()
        optimizer.step()
    return [parameter.full_tensor() for parameter in model.parameters()]


def loaded(rank, size, fully_shard):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    model = net()
    state = {name: torch.full_like(value, 3.) for name, value in model.state_dict().items()} if rank == 0 else {}
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return [parameter.full_tensor() for parameter in model.parameters()]


def alone(size):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        (sum(loss(model, worker, iteration) for worker in range(size)) / size).backward()
        optimizer.step()
    return list(model.parameters())


def check_fully_shard(rank, size):
    dist.barrier()  # rank 0, whose store the others begin with, is not to end before they have begun
    if int(torch.__version__.split(".")[0]) < 2:
        return
    from torch.distributed.fsdp import fully_shard
    for one, other in zip(sharded(rank, size, fully_shard), alone(size), strict=True):
        assert torch.allclose(one, other, atol=1e-5), (one, other)
    for value in loaded(rank, size, fully_shard):
        assert (value == 3).all(), value


CHECKS = (check_fully_shard,)
