"""What distributed_program.py checks of tensors on a GPU, which all ranks share."""
import torch
import torch.distributed as dist
from torch import nn

DEVICE = "cuda:0"


def check_collectives(rank, size):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16):
        for numel in (10, 100_000):
            tensor = torch.full((numel,), rank + 1, dtype=dtype, device=DEVICE)
            dist.all_reduce(tensor)
            assert (tensor == size * (size + 1) // 2).all(), (dtype, numel, tensor)
    tensor = torch.full((3, 3), float(rank), device=DEVICE)
    dist.broadcast(tensor, 1)
    assert (tensor == 1).all()
    into = torch.empty(3, size * 2, device=DEVICE).t()  # not contiguous
    dist.all_gather_into_tensor(into, torch.full((2, 3), float(rank), device=DEVICE))
    assert all((into[2 * peer:2 * peer + 2] == peer).all() for peer in range(size)), into
    output = torch.empty(2, device=DEVICE)
    dist.reduce_scatter_tensor(output, torch.arange(2. * size, device=DEVICE))
    assert output.tolist() == [size * 2. * rank, size * (2. * rank + 1)], output
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))
    dist.barrier()


def check_what_is_under_way(rank, size):
    """Tensors that the GPU computes still, in turns with collectives, whose results it goes on with."""
    values = torch.eye(1024, device=DEVICE) * (rank + 1)
    for _ in range(10):
        for _ in range(20):
            values = values @ torch.eye(1024, device=DEVICE)
        work = dist.all_reduce(values, async_op=True)
        doubled = work.get_future().then(lambda ended: ended.value()[0] * 2)
        assert torch.equal(doubled.wait(), 2 * values)
        work.wait()
        values = values / size
    assert torch.equal(values, torch.eye(1024, device=DEVICE) * ((size + 1) / 2))


def check_messages(rank, size):
    comes = torch.empty(5, device=DEVICE)
    work = dist.isend(torch.full((5,), float(rank), device=DEVICE), (rank + 1) % size)
    dist.recv(comes, (rank - 1) % size)
    work.wait()
    assert (comes == (rank - 1) % size).all()
    into = torch.empty(size, device=DEVICE)
    dist.all_to_all_single(into, torch.full((size,), float(rank), device=DEVICE))
    assert into.tolist() == [float(peer) for peer in range(size)], into


def check_ddp(rank, size):
    def net():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).to(DEVICE)

    def loss(model, worker, iteration):
        random = torch.Generator().manual_seed(1000 * worker + iteration)
        return model(torch.randn(16, 8, generator=random).to(DEVICE)).square().mean()
    model, alone = nn.parallel.DistributedDataParallel(net(), device_ids=[0]), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, alone)]
    for iteration in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(model, rank, iteration).backward()
        (sum(loss(alone, worker, iteration) for worker in range(size)) / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(model.module.parameters(), alone.parameters()):
        assert torch.allclose(one, other, atol=1e-6), (one, other)


CHECKS = (check_collectives, check_what_is_under_way, check_messages, check_ddp)
