"""What distributed_program.py checks of messages, and of the collectives that are made of them; each against Gloo
where it has the same."""
import datetime
import os
import unittest.mock

import torch
import torch.distributed as dist

from mercurystack._place import own_host

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool,
         torch.complex64)


def raised(kind, text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised where {text!r} was expected")


def check_the_own_address(rank, size):
    """It is where the others are reached from."""
    for variables, expected in (({}, "127.0.0.1"), ({"MASTER_ADDR": "::1", "MERCURY_RENDEZVOUS": "127.0.0.1"}, "::1"),
                                ({"MERCURY_RENDEZVOUS": "[::1]:7470,127.0.0.1:7470"}, "::1"), ({"MERCURY_RENDEZVOUS": "::1"}, "::1"),
                                ({"MERCURY_RENDEZVOUS": "127.0.0.1:7470,[::1]:7470"}, "127.0.0.1")):
        with unittest.mock.patch.dict(os.environ, variables):
            for name in {"MASTER_ADDR", "MERCURY_RENDEZVOUS"} - set(variables):
                os.environ.pop(name, None)
            assert own_host() == expected, (variables, own_host())


def check_messages_of_all_types_and_sizes(rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    for dtype in TYPES:
        for numel in (0, 1, 1000):
            leaves = (torch.arange(numel) + rank).to(dtype)
            comes = torch.empty(numel, dtype=dtype)
            work = dist.isend(leaves, right)
            dist.recv(comes, left)
            work.wait()
            assert torch.equal(comes, (torch.arange(numel) + left).to(dtype)), dtype
    wide = torch.full((2, 1, 8), float(rank))
    work = dist.isend(wide[0, :, 0], right)  # one element, with a stride
    dist.recv(wide[1, :, 0], left)
    work.wait()
    assert wide[1, 0, 0] == left and wide[1, 0, 1] == rank, wide
    large, into = torch.full((3_000_000,), float(rank)), torch.empty(1000, 3000).t()  # which is not contiguous
    work = dist.isend(large.view(1000, 3000).t(), right)
    dist.recv(into, left)
    work.wait()
    assert (into == left).all()


def check_messages_in_order_by_tag_and_from_any(rank, size):
    if rank == 0:
        # The last tag first: what came before it is kept, in order.
        for peer in range(1, size):
            for tag in (2, 1):
                for turn in range(50):
                    into = torch.empty(3)
                    assert dist.recv(into, peer, tag=tag) == peer
                    assert (into == 1000 * peer + 100 * tag + turn).all(), into
        sources = []
        for _ in range(size - 1):
            into = torch.empty(1)
            sources.append(dist.recv(into, tag=9))
            assert into == sources[-1]
        assert sorted(sources) == list(range(1, size))
    else:
        works = [dist.isend(torch.full((3,), 1000. * rank + 100 * tag + turn), 0, tag=tag) for turn in range(50) for tag in (1, 2)]
        works.append(dist.isend(torch.full((1,), float(rank)), 0, tag=9))
        for work in works:
            work.wait()
            assert work.is_completed() and work.is_success()
    dist.barrier()


def check_a_message_of_another_size(rank, size):
    if rank == 0:
        raised(RuntimeError, "rank 1 sent 12 bytes with tag 3, and rank 0 receives 8", dist.recv, torch.empty(2), 1, tag=3)
        into = torch.empty(1)
        dist.recv(into, 1, tag=3)  # the next is not hurt
        assert into == 5
    if rank == 1:
        dist.send(torch.ones(3), 0, tag=3)
        dist.send(torch.full((1,), 5.), 0, tag=3)


def check_time_outs_and_arguments(rank, size):
    work = dist.irecv(torch.empty(1), (rank + 1) % size, tag=4)
    raised(RuntimeError, "has not ended within 0.05 s", work.wait, datetime.timedelta(milliseconds=50))
    assert not work.is_completed()
    dist.barrier()
    dist.send(torch.ones(1), (rank - 1) % size, tag=4)
    assert work.wait(datetime.timedelta(seconds=60))
    brief = dist.new_group(timeout=datetime.timedelta(seconds=2))
    raised(RuntimeError, "no message with tag 5 came from rank", dist.recv, torch.empty(1), (rank + 1) % size, group=brief, tag=5)
    raised(ValueError, "rank", dist.send, torch.ones(1), rank)
    raised(ValueError, "tag: expected", dist.send, torch.ones(1), (rank + 1) % size, tag=-1)
    raised(NotImplementedError, "sparse", dist.send, torch.ones(2).to_sparse(), (rank + 1) % size)


def check_callbacks_that_wait_for_messages(rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    second = torch.empty(1)
    waits = dist.irecv(torch.empty(1), left, tag=6).get_future().then(lambda _: dist.recv(second, left, tag=7))
    # A message that has not come holds up no collective's callback.
    sums = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda ended: ended.value()[0] + 1)
    assert sums.wait() == size + 1
    dist.send(torch.ones(1), right, tag=6)
    dist.send(torch.full((1,), 7.), right, tag=7)
    assert waits.wait() == left and second == 7


def check_a_tensor_that_was_changed_meanwhile(rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    into = torch.empty(3, 2).t()
    work = dist.irecv(into, left, tag=8)
    into.resize_(5)
    dist.barrier()  # else the message comes to one that has not changed its tensor yet
    dist.send(torch.ones(2, 3), right, tag=8)
    raised(RuntimeError, "invalid for input of size 6", work.wait, datetime.timedelta(seconds=60))
    dist.barrier()  # the group goes on


def check_gather_scatter_and_all_to_all(rank, size):
    for root in range(size):
        for dtype in TYPES:
            own = (torch.arange(6).view(2, 3) + rank).to(dtype)
            parts = [torch.empty(2, 3, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(own, parts, dst=root)
            assert rank != root or all(torch.equal(part, (torch.arange(6).view(2, 3) + peer).to(dtype)) for peer, part in enumerate(parts))
            leave = [(torch.arange(4) + peer).to(dtype) for peer in range(size)] if rank == root else None
            into = torch.empty(4, dtype=dtype)
            dist.scatter(into, leave, src=root)
            assert torch.equal(into, (torch.arange(4) + rank).to(dtype))
    leave = [torch.full((peer + 1,), 10. * rank + peer) for peer in range(size)]
    come = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(come, leave)
    assert all((part == 10 * peer + rank).all() for peer, part in enumerate(come))
    # Rank r sends p + 1 rows to rank p.
    rows = torch.cat([torch.full((peer + 1, 2), 10. * rank + peer) for peer in range(size)])
    into = torch.empty(2, size * (rank + 1)).t()
    dist.all_to_all_single(into, rows, [rank + 1] * size, [peer + 1 for peer in range(size)])
    assert torch.equal(into, torch.cat([torch.full((rank + 1, 2), 10. * peer + rank) for peer in range(size)]))
    raised(ValueError, "split sizes", dist.all_to_all_single, torch.empty(4), torch.ones(4), [4] * size, [4] * size)


def check_gathers_into_one_and_reductions_to_one(rank, size):
    for into in (torch.empty(size * 2, 3), torch.empty(3, size * 2).t()):
        dist.all_gather_into_tensor(into, torch.full((2, 3), float(rank)))
        assert all((into[2 * peer:2 * peer + 2] == peer).all() for peer in range(size)), into
    output = torch.empty(2)
    dist.reduce_scatter_tensor(output, torch.arange(2. * size))
    assert torch.equal(output, size * torch.tensor([2. * rank, 2 * rank + 1]))
    outputs = [[torch.empty(2), torch.empty(3, 1)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [torch.full((2,), float(rank)), torch.full((3, 1), rank + .5)])
    assert all((first == peer).all() and (second == peer + .5).all() for peer, (first, second) in enumerate(outputs))
    tensors = [torch.full((2,), float(rank)), torch.ones(3, 3)]
    dist.all_reduce_coalesced(tensors)
    assert (tensors[0] == size * (size - 1) / 2).all() and (tensors[1] == size).all()
    for root in range(size):
        tensor = torch.full((4,), rank + 1.)
        dist.reduce(tensor, root)
        assert (tensor == (size * (size + 1) / 2 if rank == root else rank + 1)).all(), "the others' stay as they are"


def check_a_gather_into_one(rank, size):
    """By the group itself: PyTorch has a function of it from 2.15 on."""
    group = dist.distributed_c10d._get_default_group()
    for root in range(size):
        options = dist.distributed_c10d.GatherOptions()
        options.rootRank = root
        whole = torch.zeros(size * 2, 3) if rank == root else torch.empty(0)
        group.gather_single(whole, torch.full((2, 3), float(rank)), options).wait()
        assert rank != root or all((whole[2 * peer:2 * peer + 2] == peer).all() for peer in range(size)), whole
        if rank == root:
            raised(ValueError, f"expected {size} times the input's 3", group.gather_single, torch.empty(2), torch.empty(3), options)
            raised(ValueError, "not contiguous", group.gather_single, torch.empty(3, size).t(), torch.empty(3), options)


def check_collectives_that_are_collected(rank, size):
    """Of PyTorch 2, which begins them at the end."""
    collected = getattr(dist.distributed_c10d, "_coalescing_manager", None)
    if collected is None or int(torch.__version__.split(".")[0]) < 2:
        return
    wholes, parts = [torch.empty(size * 2), torch.empty(size * 3)], [torch.empty(2), torch.empty(3)]
    with collected():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, torch.full((whole.numel() // size,), float(rank)))
    assert all((whole.view(size, -1)[peer] == peer).all() for whole in wholes for peer in range(size)), wholes
    with collected():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.arange(float(size * part.numel())))
    for part in parts:
        assert torch.equal(part, size * torch.arange(float(size * part.numel())).view(size, -1)[rank]), part


def check_reductions_as_gloo_has_them(rank, size):
    gloo = dist.new_group(backend="gloo")
    values = torch.arange(1, 9) * (rank + 1)
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8):
            if op.startswith("B") and dtype.is_floating_point:
                continue
            ours, its = values.to(dtype), values.to(dtype)
            dist.all_reduce(ours, getattr(dist.ReduceOp, op))
            dist.all_reduce(its, getattr(dist.ReduceOp, op), group=gloo)
            assert torch.equal(ours, its), (op, dtype, ours, its)
    flags = torch.tensor([True, rank == 0, False])
    for op, expected in ((dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.BAND, [True, False, False])):
        ours = flags.clone()
        dist.all_reduce(ours, op)
        assert ours.tolist() == expected, (op, ours)
    short = torch.full((3,), 300 + rank, dtype=torch.int16)
    dist.all_reduce(short)
    assert (short == 300 * size + size * (size - 1) // 2).all()


def check_sums_of_sparse_tensors(rank, size):
    for numel in (0, 1 + rank):
        own = torch.sparse_coo_tensor(torch.arange(numel).view(1, numel), torch.full((numel, 3), rank + 1.), (size + 1, 3))
        dense = own.to_dense()
        dist.all_reduce(own)
        dist.all_reduce(dense)
        assert torch.equal(own.to_dense(), dense), own


def check_futures_and_works(rank, size):
    work = dist.all_reduce(torch.full((5,), float(rank)), async_op=True)
    doubled = work.get_future().then(lambda ended: ended.value()[0] * 2)
    assert (doubled.wait() == size * (size - 1)).all()
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    # A callback's own collective, for which it waits.
    for place in range(8):
        work = dist.all_reduce(torch.full((100 + place,), 1.), async_op=True)
        nested = work.get_future().then(lambda ended: dist.all_reduce(ended.value()[0], async_op=True).get_future().wait()[0])
        assert (nested.wait() == size * size).all()
    assert dist.all_reduce(torch.ones(1), async_op=True).wait(datetime.timedelta(seconds=60))
    for one in (dist.barrier(async_op=True), dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0), async_op=True)):
        assert one.wait()
    for _ in range(200):  # whose end nobody asks for
        dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()


def check_batches(rank, size):
    """Sends and receives to and from everybody, named at once."""
    sent = [torch.full((4, 50_000 * (peer % 2) + 1), 10. * rank + peer) for peer in range(size)]
    come = [torch.empty(4, 50_000 * (rank % 2) + 1) for _ in range(size)]
    others = [peer for peer in range(size) if peer != rank]
    works = dist.batch_isend_irecv([dist.P2POp(call, of[peer], peer) for call, of in ((dist.irecv, come), (dist.isend, sent)) for peer in others])
    for work in works:
        work.wait()
    assert all((come[peer] == 10. * peer + rank).all() for peer in others), come


def check_monitored_barrier(rank, size):
    dist.group.WORLD.monitored_barrier()
    if rank == size - 1:
        dist.barrier()
        return
    if rank == 0:
        raised(RuntimeError, f"Rank {size - 1} failed to pass monitoredBarrier", dist.group.WORLD.monitored_barrier, datetime.timedelta(seconds=1))
    else:
        raised(RuntimeError, "came from rank 0", dist.group.WORLD.monitored_barrier, datetime.timedelta(seconds=3))
    dist.barrier()


def check_all_forms_of_the_bindings(rank, size):
    """What a program, or PyTorch itself, may call of a group: each as Gloo answers it."""
    gloo = dist.new_group(backend="gloo")
    for group in gloo, dist.distributed_c10d._get_default_group():
        def called(name, *arguments, **named):
            getattr(group, name)(*arguments, **named).wait()

        def own(*values):
            return torch.tensor([value + rank for value in values])
        total = sum(range(size))
        for arguments, named, expected in (([own(1.)], {}, size + total), ([own(1.), dist.ReduceOp.MAX], {}, size),
                                           ([], {"tensor": own(1.), "op": dist.ReduceOp.MIN}, 1), ([[own(1.)], dist.ReduceOp.MAX], {}, size),
                                           ([], {"tensors": [own(1.)], "opts": dist.AllreduceOptions()}, size + total)):
            called("allreduce", *arguments, **named)
            data = arguments[0] if arguments else named.get("tensor", named.get("tensors"))
            assert (data[0] if isinstance(data, list) else data) == expected, (arguments, named)
        two = own(1., 2.)
        called("allreduce", two)  # of as many elements as there may be ranks
        assert two.tolist() == [size + total, 2 * size + total]
        for root in (1, {"root": 1}):
            data = own(5., 6., 7.)
            called("broadcast", data, **root) if isinstance(root, dict) else called("broadcast", data, root)
            assert data.tolist() == [6., 7., 8.], data
        data = own(1., 2.)
        called("reduce", data, 1, dist.ReduceOp.MAX)
        assert rank != 1 or data.tolist() == [size, size + 1.], data
        data = own(1.)
        called("reduce", tensor=data, root=0)
        assert rank != 0 or data == size + total, data
        outputs = [torch.zeros(2) for _ in range(size)]
        called("allgather", outputs, own(0., 1.))
        assert [one.tolist() for one in outputs] == [[peer, peer + 1.] for peer in range(size)], outputs
        if group is not gloo:  # which does not have these in PyTorch 1
            for root in -1, size, 2**32:
                raised(ValueError, f"root: expected 0 to {size - 1}, got {root}", group.broadcast, own(1.), root)
                raised(ValueError, f"root: expected 0 to {size - 1}, got {root}", group.gather, [], own(1.), root)
            output = torch.zeros(1)
            called("scatter", output, [own(10. * peer) for peer in range(size)] if rank == 1 else [], 1)
            assert output == 10 * rank + 1, output
            outputs = [torch.zeros(2) for _ in range(size)]
            called("gather", outputs if rank == 1 else [], own(0., 1.), 1)
            assert rank != 1 or [one.tolist() for one in outputs] == [[peer, peer + 1.] for peer in range(size)], outputs
            output = torch.zeros(1)
            called("reduce_scatter", output, [own(10. * peer) for peer in range(size)], dist.ReduceOp.MAX)
            assert output == 10 * rank + size - 1, output
            brief = datetime.timedelta(seconds=60)
            called("allreduce", own(1.), dist.ReduceOp.SUM, brief)
            called("barrier", timeout=brief)
            inputs, outputs = [own(10. * peer) for peer in range(size)], [torch.zeros(1) for _ in range(size)]
            called("alltoall", outputs, inputs, timeout=brief)
            assert outputs == [10 * rank + peer for peer in range(size)], outputs
    dist.destroy_process_group(gloo)


def check_views_that_are_conjugate_or_negative(rank, size):
    """They have the values that their memory has not."""
    def conjugate():
        return torch.conj(torch.tensor([complex(rank, 1), 2]))

    def negative():
        return torch._neg_view(torch.tensor([rank + 1., 2.]))
    group = dist.distributed_c10d._get_default_group()  # torch.distributed's functions refuse conjugates themselves
    for view, values in ((conjugate, lambda peer: torch.tensor([complex(peer, -1), 2])), (negative, lambda peer: -torch.tensor([peer + 1., 2.]))):
        mine = view()
        group.broadcast(mine, 1).wait()
        assert torch.equal(mine.resolve_conj().resolve_neg(), values(1)), mine
        outputs = [torch.zeros_like(values(0)) for _ in range(size)]
        group.allgather(outputs, view()).wait()
        assert all(torch.equal(output, values(peer)) for peer, output in enumerate(outputs)), outputs
        comes = view()
        work = group.send([view()], (rank + 1) % size, 0)
        group.recv([comes], (rank - 1) % size, 0).wait()
        work.wait()
        assert torch.equal(comes.resolve_conj().resolve_neg(), values((rank - 1) % size)), comes
        mine = view()
        group.scatter(mine, [view() for _ in range(size)] if rank == 0 else [], 0).wait()
        assert torch.equal(mine.resolve_conj().resolve_neg(), values(0)), mine
    mine = negative()
    dist.all_reduce(mine)
    assert torch.equal(mine.resolve_neg(), -torch.tensor([sum(range(1, size + 1)), 2. * size])), mine


CHECKS = (check_all_forms_of_the_bindings, check_views_that_are_conjugate_or_negative, check_the_own_address, check_messages_of_all_types_and_sizes, check_messages_in_order_by_tag_and_from_any,
          check_a_message_of_another_size, check_time_outs_and_arguments, check_callbacks_that_wait_for_messages, check_a_tensor_that_was_changed_meanwhile,
          check_gather_scatter_and_all_to_all, check_gathers_into_one_and_reductions_to_one, check_a_gather_into_one,
          check_collectives_that_are_collected, check_reductions_as_gloo_has_them,
          check_sums_of_sparse_tensors, check_futures_and_works, check_batches, check_monitored_barrier)
