"""What distributed_program.py does that has to fail, one each: `python distributed_program.py PACKAGE NAME`. A rank prints what
it was told, and ends in order."""
import datetime
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOST = 1  # the rank that something happens to


def told(call):
    """Prints what the call raises; nothing of its kind may be raised by accident."""
    try:
        call()
    except (RuntimeError, ValueError, OSError, KeyboardInterrupt) as error:
        print(f"told {type(error).__name__}: {error}", flush=True)
    else:
        print("told nothing", flush=True)
    os._exit(0)  # the group is of no more use, and its end would wait for the others


def leave():
    os.kill(os.getpid(), signal.SIGKILL)


def lost_in_a_collective(rank, size):
    dist.all_reduce(torch.ones(3))
    if rank == LOST:
        leave()
    told(lambda: dist.all_reduce(torch.ones(3)))


def ended_by_an_exception(rank, size):
    """Its process ends in order, but it will never do what the others wait for."""
    dist.all_reduce(torch.ones(3))
    if rank == LOST:
        raise ValueError("of the program's own")
    told(lambda: dist.all_reduce(torch.ones(3)))


def lost_in_a_recv(rank, size):
    dist.all_reduce(torch.ones(3))
    if rank == LOST:
        leave()
    told(lambda: dist.recv(torch.empty(3), LOST))


def lost_in_a_future(rank, size):
    dist.all_reduce(torch.ones(3))
    if rank == LOST:
        leave()
    told(lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda ended: ended.value()).wait())


def lost_in_ddp(rank, size):
    model = nn.parallel.DistributedDataParallel(nn.Linear(30, 30))
    model(torch.ones(2, 30)).sum().backward()
    if rank == LOST:
        leave()
    told(lambda: model(torch.ones(2, 30)).sum().backward())


def interrupted(rank, size):
    """Ctrl-C in one rank, while it waits."""
    dist.all_reduce(torch.ones(3))
    if rank == LOST:
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        told(lambda: dist.recv(torch.empty(3), 0))
    told(lambda: dist.all_reduce(torch.ones(3)))


def stalled(rank, size):
    """One rank computes for longer than the group's time-out."""
    brief = dist.new_group(timeout=datetime.timedelta(seconds=3))
    if rank == LOST:
        dist.recv(torch.empty(1), 0)  # which rank 0 sends once it was told
        os._exit(0)

    def fails():
        try:
            dist.all_reduce(torch.ones(3), group=brief)
        finally:
            if rank == 0:
                dist.send(torch.ones(1), LOST)
    told(fails)


def other_parameters(rank, size):
    told(lambda: nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(3, 3) for _ in range(1 + (rank == LOST))])))


def other_shapes(rank, size):
    told(lambda: nn.parallel.DistributedDataParallel(nn.Linear(3, 4 if rank == LOST else 5)))


def told_of_both(rank, size, call):
    """And that the group is of no use any more. No rank ends before all are told: its process serves, and one of them has the store."""
    try:
        call()
    except OSError as error:
        if isinstance(error, RuntimeError):
            raise AssertionError("expected that what ranks have called is told") from error
        print(f"told {type(error).__name__}: {error}", flush=True)
        try:
            dist.barrier()
        except OSError as later:
            assert str(later) == str(error), later
    else:
        print("told nothing", flush=True)
    store = dist.distributed_c10d._get_default_store()
    for what in ("told", "ends"):
        store.set(f"{what} {rank}", "")
        if what == "told" or rank == 0:
            store.wait([f"{what} {peer}" for peer in range(size)])
    os._exit(0)


def other_sizes(rank, size):
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(70_000 + (rank == LOST))))


def other_sizes_in_memory_of_their_own(rank, size):
    for numel in (70_000, 70_001):
        for _ in range(3):
            dist.all_reduce(torch.ones(numel))
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(70_000 + (rank == LOST))))


def other_types(rank, size):
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(100, dtype=torch.float64 if rank == LOST else torch.float32)))


def other_small_sizes(rank, size):
    """Which share memory, where a call before has left something."""
    for _ in range(5):
        dist.all_reduce(torch.full((8,), 100.))
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(7 if rank == LOST else 5)))


def other_sizes_to_gather(rank, size):
    mine = torch.ones(5 if rank == LOST else 6)
    told_of_both(rank, size, lambda: dist.all_gather([torch.zeros_like(mine) for _ in range(size)], mine))


def none_to_gather(rank, size):
    mine = torch.ones(0 if rank == LOST else 6)
    told_of_both(rank, size, lambda: dist.all_gather([torch.zeros_like(mine) for _ in range(size)], mine))


def other_types_of_as_many_bytes(rank, size):
    told_of_both(rank, size, lambda: dist.broadcast(torch.ones(3, dtype=torch.int64) if rank == LOST else torch.ones(6), 0))


def other_roots(rank, size):
    told_of_both(rank, size, lambda: dist.broadcast(torch.ones(4), int(rank == LOST)))


def other_reductions(rank, size):
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == LOST else dist.ReduceOp.SUM))


def another_order(rank, size):
    def both():
        for call in (dist.barrier, lambda: dist.all_reduce(torch.ones(1, dtype=torch.int32)))[::-1 if rank == LOST else 1]:
            call()
    told_of_both(rank, size, both)


def other_collectives_by_messages(rank, size):
    mine = torch.full((3,), float(rank))
    if rank == LOST:
        told_of_both(rank, size, lambda: dist.scatter(mine, None, 0))
    told_of_both(rank, size, lambda: dist.gather(mine, [torch.zeros(3) for _ in range(size)] if rank == 0 else None, 0))


def a_gather_in_an_all_to_all(rank, size):
    if rank == LOST:
        told_of_both(rank, size, lambda: dist.gather(torch.ones(1), None, 0))
    told_of_both(rank, size, lambda: dist.all_to_all_single(torch.zeros(size), torch.ones(size)))


def other_roots_to_gather_at(rank, size):
    root = LOST if rank == LOST else 0
    told_of_both(rank, size, lambda: dist.gather(torch.ones(3), [torch.zeros(3) for _ in range(size)] if rank == root else None, root))


def other_sizes_to_scatter(rank, size):
    mine = torch.zeros(5 if rank == LOST else 6)
    told_of_both(rank, size, lambda: dist.scatter(mine, [torch.ones(6) for _ in range(size)] if rank == 0 else None, 0))


def another_order_by_messages(rank, size):
    def gather():
        dist.gather(torch.ones(2), [torch.zeros(2) for _ in range(size)] if rank == 0 else None, 0)

    def scatter():
        dist.scatter(torch.zeros(2), [torch.ones(2) for _ in range(size)] if rank == 0 else None, 0)

    def both():
        for call in (gather, scatter)[::-1 if rank == LOST else 1]:
            call()
    told_of_both(rank, size, both)


def a_gather_instead_of_a_sum(rank, size):
    if rank == LOST:
        told_of_both(rank, size, lambda: dist.gather(torch.ones(3), None, 0))
    told_of_both(rank, size, lambda: dist.all_reduce(torch.ones(3)))


def other_dtypes_in_ddp(rank, size):
    told_of_both(rank, size, lambda: nn.parallel.DistributedDataParallel(nn.Linear(3, 4).to(torch.float64 if rank == LOST else torch.float32)))


def forked(rank, size):
    """DataLoader's workers are forked from a rank: training goes on, and a collective in a child is refused."""
    data = TensorDataset(torch.arange(8.).view(8, 1) + rank)
    total = torch.zeros(1)
    for (batch,) in DataLoader(data, batch_size=2, num_workers=2):
        part = batch.sum()
        dist.all_reduce(part)
        total += part
    assert total == sum(sum(range(8)) + 8 * peer for peer in range(size)), total
    child = os.fork()
    if child == 0:
        told(lambda: dist.all_reduce(torch.ones(1)))
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()


def not_numbers(rank, size):
    """They arrive at all, as over Gloo, and hurt nothing beside them."""
    tensor = torch.tensor([float("nan") if rank == LOST else 1., 1., float("inf")])
    dist.all_reduce(tensor)
    print(f"told {tensor.tolist()}", flush=True)


MODES = {name: function for name, function in list(globals().items())
         if callable(function) and getattr(function, "__module__", "") == __name__ and name not in ("told", "told_of_both", "leave")}


def run(name, rank, size):
    dist.barrier()  # the store, which a rank that begins later asks, is rank 0's
    MODES[name](rank, size)
    sys.stdout.flush()
