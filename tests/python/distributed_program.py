"""One rank of distributed_test.py: checks, each of which all ranks make.

usage: distributed_program.py PACKAGE_FOLDER WHAT
       distributed_program.py PACKAGE_FOLDER copies NUMBER   begins copies of itself (forking.py)
"""
import datetime
import faulthandler
import os
import socket
import sys
import unittest.mock

sys.path.insert(0, sys.argv[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import distributed_ddp  # noqa: E402
import distributed_failures  # noqa: E402
import distributed_fsdp  # noqa: E402
import distributed_gpu  # noqa: E402
import distributed_messages  # noqa: E402
import forking  # noqa: E402
import mercurystack.distributed  # noqa: E402, F401
from mercurystack import _exchange, _pieces  # noqa: E402
from mercurystack._calls import LINE_BYTES  # noqa: E402


def check_reductions(rank, size):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8):
        tensor = torch.arange(10).to(dtype) + rank
        dist.all_reduce(tensor)
        assert torch.equal(tensor, (size * torch.arange(10) + size * (size - 1) // 2).to(dtype)), (dtype, tensor)
    for op, expected in ((dist.ReduceOp.MIN, 0), (dist.ReduceOp.MAX, size - 1), (dist.ReduceOp.AVG, (size - 1) / 2)):
        tensor = torch.full((3, 5), float(rank))
        dist.all_reduce(tensor, op)
        assert (tensor == expected).all(), (op, tensor)
    tensor = torch.ones(4, 6).t() * rank  # not contiguous
    dist.all_reduce(tensor)
    assert (tensor == size * (size - 1) / 2).all()
    dist.all_reduce(torch.ones(0))


def check_the_others(rank, size):
    tensor = torch.full((3, 3), float(rank))
    dist.broadcast(tensor, 1)
    assert (tensor == 1).all()
    wide = torch.full((1, 8), float(rank))
    tensor = wide[:, 0]  # one element, with a stride
    dist.broadcast(tensor, 1)
    assert wide[0, 0] == 1 and wide[0, 1] == rank, wide
    outputs = [torch.empty(1) for _ in range(size)]
    dist.all_gather(outputs, wide[:, 1])
    assert outputs == [place for place in range(size)], outputs
    outputs = [torch.empty(5, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(outputs, torch.full((5,), rank))
    assert all((output == place).all() for place, output in enumerate(outputs))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": place, "text": "x" * place} for place in range(size)], objects
    output = torch.zeros(2)
    dist.reduce_scatter(output, [torch.full((2,), float(place)) for place in range(size)])
    assert (output == size * rank).all(), output
    dist.barrier()


def check_scattered_sums(rank, size):
    """Twice as a whole, first in pieces and then in memory of its own; each rank receives its part alone."""
    group = dist.new_group()
    job = group._collectives._job
    for numel, dtype in ((1, torch.float32), (1000, torch.bfloat16), (70_000, torch.int64), (70_000, torch.int64), (70_000, torch.int64)):
        whole = (torch.arange(size * numel) % 50).to(dtype)
        before = job.stats().bytes_pulled
        output = torch.empty(numel, dtype=dtype)
        dist.reduce_scatter_tensor(output, whole, group=group)
        assert torch.equal(output, whole[rank * numel:][:numel] * size), (numel, dtype)
        pulled = job.stats().bytes_pulled - before
        assert pulled <= 2 * numel * whole.element_size() + LINE_BYTES * size, (numel, dtype, pulled)
        dist.reduce_scatter(output, [torch.full((numel,), place, dtype=dtype) for place in range(size)], group=group)
        assert (output == size * rank).all(), (numel, dtype)
    output = torch.empty(2, 3)
    dist.reduce_scatter_tensor(output, torch.arange(6. * size).view(3, 2 * size).t(), dist.ReduceOp.AVG, group=group)  # not contiguous
    assert torch.equal(output.view(-1), torch.arange(6. * size).view(3, 2 * size).t().reshape(size, -1)[rank])
    output = torch.empty(3)
    dist.reduce_scatter_tensor(output, torch.full((3 * size,), 2.), dist.ReduceOp.PRODUCT, group=group)
    assert (output == 2 ** size).all()
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0), group=group)
    try:
        dist.reduce_scatter_tensor(torch.empty(3), torch.empty(3 * size + 1), group=group)
    except (ValueError, RuntimeError) as error:
        assert "elements" in str(error) or "size" in str(error), error
    else:
        raise AssertionError("of sizes that do not fit")
    dist.destroy_process_group(group)


def check_many_at_once(rank, size):
    tensors = [torch.full((100_000,), float(place + rank)) for place in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for place, (tensor, work) in enumerate(zip(tensors, works)):
        work.wait()
        assert (tensor == size * place + size * (size - 1) / 2).all(), place


def kept_by(group):
    """Bytes of Mercury's memory that its collectives have declared."""
    return sum(tensor.array.nbytes for tensor in group._collectives._job._tensors.values())


def check_many_sizes(rank, size):
    """Each comes once, and leaves no memory of its own behind. Pieces, those of one collective too, share theirs in turn."""
    group = dist.new_group()
    with unittest.mock.patch.object(_pieces, "_PIECE_BYTES", 1 << 19), unittest.mock.patch.object(_exchange, "_PIECES_IN_FLIGHT", 5):
        for numel in range(1_000_000, 2_000_000, 50_003):  # 120 MB, three times
            tensor = torch.arange(numel, dtype=torch.float32) % 1000 + rank
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, size * (torch.arange(numel) % 1000) + size * (size - 1) / 2), numel
            tensor = torch.arange(numel) % 1000 if rank == size - 1 else torch.zeros(numel, dtype=torch.int64)
            dist.broadcast(tensor, size - 1, group=group)
            assert torch.equal(tensor, torch.arange(numel) % 1000), numel
            outputs = [torch.empty(numel, dtype=torch.int16) for _ in range(size)]
            dist.all_gather(outputs, (torch.arange(numel) % 1000 + rank).to(torch.int16), group=group)
            assert all(torch.equal(output, (torch.arange(numel) % 1000 + place).to(torch.int16)) for place, output in enumerate(outputs))
        assert kept_by(group) < 20 << 20, kept_by(group)
        dist.destroy_process_group(group)


def check_sizes_that_come_again(rank, size):
    """They have memory of their own, of which there is so much; the others go on in pieces."""
    group = dist.new_group()
    with unittest.mock.patch.object(_pieces, "_PIECE_BYTES", 1 << 19), unittest.mock.patch.object(_exchange, "_PIECES_IN_FLIGHT", 5):
        group._collectives._owners = _pieces.Owners(1 << 23)
        for numel in [70_000 + 10_000 * place for place in range(40)] * 3:  # 42 MB
            tensors = [torch.full((numel,), float(rank + place)) for place in range(2)]
            for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
                work.wait()
            assert all((tensor == size * place + size * (size - 1) / 2).all() for place, tensor in enumerate(tensors)), numel
        own = sum(key.numel for key in group._collectives._own)
        assert 4 * own <= 1 << 23 < kept_by(group) < 16 << 20, (own, kept_by(group))
        dist.destroy_process_group(group)


def check_the_daemon(rank, size):
    """That one serves, and no server of this process."""
    group = dist.distributed_c10d._get_default_group()
    assert group._context.mode == "daemon"
    assert group._collectives._job._server is None


def check_a_subgroup(rank, size):
    group = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        tensor = torch.ones(4)
        dist.all_reduce(tensor, group=group)
        assert (tensor == 2).all()


def check_leaving_groups_in_different_orders(rank, size):
    """Nobody waits in one for a rank that waits in another. Messages that were sent before arrive."""
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        dist.all_reduce(torch.ones(2), group=group)
    large = torch.full((3_000_000,), float(rank))
    work = dist.isend(large, (rank + 1) % size, group=groups[0])
    into = torch.empty(3_000_000)
    for place in range(3):
        group = groups[(place + rank) % 3]
        if group is groups[0]:
            dist.recv(into, (rank - 1) % size, group=group)
            work.wait()
        dist.destroy_process_group(group)
        del group
        groups[(place + rank) % 3] = None
    assert (into == (rank - 1) % size).all()
    dist.barrier()


def check_ddp(rank, size):
    """Its weights are those of one process that averages the gradients itself."""
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss(model, worker, iteration):
        random = torch.Generator().manual_seed(1000 * worker + iteration)
        return model(torch.randn(16, 8, generator=random)).square().mean()
    model = nn.parallel.DistributedDataParallel(net(rank))  # which begins with rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = net(0)
    its_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for iteration in range(10):
        optimizer.zero_grad()
        loss(model, rank, iteration).backward()
        optimizer.step()
        its_optimizer.zero_grad()
        (sum(loss(alone, worker, iteration) for worker in range(size)) / size).backward()
        its_optimizer.step()
    for one, other in zip(model.module.parameters(), alone.parameters()):
        assert torch.allclose(one, other, atol=1e-6), (one, other)


def check_inference_mode(rank, size):
    """As metrics are summed up: of tensors that were made in it or not, whoever waits where."""
    for numel in (3, 100_000):  # the first time, and when the size has memory of its own
        for turn in range(3):
            with torch.inference_mode(rank == 0 or turn > 0):
                data = torch.full((numel,), rank + 1.)
                work = dist.all_reduce(data, async_op=True)
            work.wait()
            assert data.tolist() == [size * (size + 1) / 2] * numel, (numel, turn)
            with torch.inference_mode():
                rows = [torch.empty(numel) for _ in range(size)]
                dist.all_gather(rows, torch.full((numel,), float(rank)))
            assert all((row == peer).all() for peer, row in enumerate(rows)), (numel, turn)
    for mode in (True, False):  # sizes that nobody has had before, more often than are in flight
        for _ in range(6):
            with torch.inference_mode(mode):
                data = torch.ones(70_000)
                small = torch.ones(33_000)
                dist.all_reduce(data)
                dist.all_reduce(small)
            assert data.tolist() == [size] * 70_000 and small.tolist() == [size] * 33_000, mode


def check_functional_collectives(rank, size):
    """Of PyTorch 2, which its compiler understands."""
    dist.barrier()  # rank 0, whose store the others begin with, is not to end before they have begun
    try:
        import torch.distributed._functional_collectives as functional
    except ImportError:
        return
    group = dist.group.WORLD
    assert (functional.all_reduce(torch.full((4,), rank + 1.), "sum", group) == size * (size + 1) / 2).all()
    gathered = functional.all_gather_tensor(torch.full((2, 3), float(rank)), 0, group)
    assert all((gathered[2 * peer:2 * peer + 2] == peer).all() for peer in range(size)), gathered
    scattered = functional.reduce_scatter_tensor(torch.arange(2. * size), "sum", 0, group)
    assert torch.equal(scattered + 0, size * torch.tensor([2. * rank, 2 * rank + 1])), scattered


def check_refusals(rank, size):
    for call, name in ((lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "BAND of integers"),
                       (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG), "not of torch.int32"),
                       (lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX), "sparse"),
                       (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0), "sparse")):
        try:
            call()
        except NotImplementedError as refused:
            assert name in str(refused), refused
        else:
            raise AssertionError(name)


def check_small_ones_overtake(rank, size):
    """What a program computes on with, as SyncBatchNorm's sums, does not wait behind gradients."""
    def all_at_once():
        return [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(2)], dist.all_reduce(small, async_op=True)

    for numel in (3, 40_000):
        for _ in range(3):  # in the last one all tensors are declared, those of a size that came again too
            small = torch.ones(numel)
            dist.barrier()
            large, first = all_at_once()
            behind = dist.barrier(async_op=True)
            first.wait()
            came_behind = any(one.is_completed() for one in large)
            behind.wait()
            overtook = not large[0].is_completed()
            for one in large:
                one.wait()
        assert not came_behind, numel
        assert not overtook, "a barrier"
        assert small.tolist() == [size] * numel


def beside_a_job():
    """A group, and a job that the same processes serve, as ScheduledOptimizer's; both are in use at once."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def init():
        dist.init_process_group("mercury", rank=rank, world_size=size)
    if os.environ["FIRST"] == "group":
        init()
    with mercurystack.Context() as context, context.open_job("beside", serve=True) as job:
        if os.environ["FIRST"] == "job":
            init()
        tensor = job.declare(1, context.zeros(3))
        tensor.array[:] = rank + 1
        operation, data = tensor.push_pull(), torch.ones(3)
        dist.all_reduce(data)
        operation.wait()
        assert data.tolist() == [size] * 3 and tensor.array.tolist() == [size * (size + 1) / 2] * 3
        dist.destroy_process_group()
    print("good", flush=True)
    sys.exit(0)


CHECKS = {"collectives": (check_reductions, check_the_others, check_scattered_sums, check_many_at_once, check_many_sizes, check_sizes_that_come_again,
                          check_a_subgroup, check_leaving_groups_in_different_orders, check_ddp, check_inference_mode, check_refusals),
          "messages": distributed_messages.CHECKS, "ddp": distributed_ddp.CHECKS, "gpu": distributed_gpu.CHECKS,
          "functional": (check_functional_collectives,), "overtaking": (check_small_ones_overtake,), "fully_shard": distributed_fsdp.CHECKS,
          "daemons": (check_the_daemon, check_reductions, check_the_others, check_scattered_sums, check_a_subgroup, check_ddp)}
CHECKS.update({check.__name__: (check,) for checks in list(CHECKS.values()) for check in checks})

if sys.argv[2] == "copies":
    forking.serve(socket.socket(fileno=int(sys.argv[3])))
faulthandler.dump_traceback_later(150)  # where it hangs
torch.set_num_threads(1)
what = sys.argv[2]
if what == "beside a job":
    beside_a_job()
brief = {"timeout": datetime.timedelta(seconds=8)} if what in ("missing", "daemons missing") else {}
dist.init_process_group("cpu:mercury,cuda:mercury" if what == "gpu" else "mercury", init_method=os.environ.get("INIT_METHOD"), rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]), **brief)
rank, size = dist.get_rank(), dist.get_world_size()
if what == "just exits":
    dist.all_reduce(torch.ones(3))
    print("good", flush=True)
    sys.exit(0)
if what in distributed_failures.MODES:
    distributed_failures.run(what, rank, size)
else:
    for check in CHECKS[what]:
        check(rank, size)
    print("good", flush=True)
dist.destroy_process_group()
