"""A process group without its calls (distributed.py has those): its job, its messages, what calls of both kinds share, and
checks of their arguments."""

from __future__ import annotations

import datetime
import errno
import functools
import os
import secrets
import sys
import weakref
import zlib
from typing import Any, Callable, Mapping, Optional, Sequence, TypeVar, Union, cast

import torch
import torch.distributed as dist

from mercurystack import _native
from mercurystack._calls import Call
from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._exchange import ALL, GATHER, SCATTER, SUM, Exchange, part
from mercurystack._job import Job
from mercurystack._leaving import groups
from mercurystack._messages import Messages
from mercurystack._operation import How
from mercurystack._pieces import Key
from mercurystack._place import SERVERS, daemons_of_groups, own_host, own_place, told, warn_of_nobody
from mercurystack._reductions import name_of, operation_of, reduce_locally
from mercurystack._staging import DEVICES
from mercurystack._tensors import NAMES, bytes_of, is_in_place
from mercurystack._work import GroupError, Work, all_of

Tensors = Sequence[torch.Tensor]
Lists = Sequence[Tensors]

_LINE_BITS = 24  # of what was called, in a tag
_Method = TypeVar("_Method", bound=Callable[..., Any])


class Group(dist.ProcessGroup):  # type: ignore[misc, name-defined]
    """A job and the messages beside it. All ranks have to call in one order, so from one thread at a time."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout.total_seconds()
        asked = daemons_of_groups()
        self._messages = Messages(store, rank, size, own_host(), timeout)
        if rank == 0:  # once all are there: nobody else is to have taken the free port meanwhile
            store.set("mercury", f"torch-{secrets.token_hex(8)} {asked or own_place()} {'daemons' if asked else 'ranks'}")
        name, rendezvous, servers = told(store, "mercury", 0, size, timeout).split()
        daemons = servers == "daemons"
        self._context = Context("auto" if daemons else "embedded")
        if rank == 0 and daemons and self._context.mode == "embedded":  # which of a host with a daemon it is not
            warn_of_nobody(rendezvous)
        job = self._open(name, rendezvous, daemons)
        self._messages.begin(name)
        self._collectives = Exchange(self._context, job, self._messages.fail)
        self._calls = 0  # by messages: their tags are below zero, those of the program above
        self._process = os.getpid()
        groups.enter()
        weakref.finalize(self, _close, job, self._collectives, self._context, self._messages, self._process, self._timeout)

    def _open(self, name: str, rendezvous: str, daemons: bool) -> Job:
        """All ranks are there by now. GroupError: one of them, or a server, does not come into the job."""
        limit = max(1, min(2**31 - 1, int(self._timeout * 1000)))
        count = rendezvous.count(",") + 1 if daemons else self._size  # whatever the environment says of other jobs
        servers = f"the daemons at {rendezvous} (MERCURY_RENDEZVOUS; {SERVERS}=ranks if the ranks are to serve)" if daemons else f"the ranks themselves, of which rank 0 is at {rendezvous}"
        try:
            return self._context.open_job(name, serve=not daemons, role="worker", rank=self._rank, workers=self._size,
                                          servers=count, rendezvous=rendezvous, timeout_ms=limit, stall_timeout_ms=limit)
        except MercuryError as error:
            raise GroupError(error.errno, f"rank {self._rank} of {self._size} did not come into the group's job, whose servers are "
                             f"{servers}: {error.strerror}") from error

    def _reduce(self, what: str, inputs: Tensors, reduction: Any, outputs: Mapping[int, torch.Tensor], result: Any, root: str = "") -> Work:
        """`inputs` as one; `outputs` says which of them go where."""
        dtype = inputs[0].dtype
        name = name_of(reduction, dtype)
        flat = [one.detach().reshape(-1) for one in inputs]
        data = flat[0] if len(flat) == 1 else torch.cat(flat)

        def finish(reduced: torch.Tensor) -> Any:
            for place, part in enumerate(torch.split(reduced, [one.numel() for one in flat])):
                if place in outputs:
                    copy(outputs[place], part)
            return result
        op, call = operation_of(name, dtype), Call(what, data.numel(), dtype, name + root)
        if op is not None:
            return self._exchange(call, Key(op, NAMES[dtype], data.numel(), 1), ALL, data[None], SUM, ALL,
                                  lambda parts: finish(parts[0]), result)
        return self._all_bytes(call, bytes_of(data), lambda parts: finish(reduce_locally(name, [part.view(dtype) for part in parts])), result)

    def _reduce_scatter(self, what: str, inputs: Tensors, reduction: Any, outputs: Tensors, result: Any) -> Work:
        """Of each of `inputs`, which has a row for each rank, this rank's goes to its output."""
        dtype = inputs[0].dtype
        name = name_of(reduction, dtype)
        op = operation_of(name, dtype)
        if op is None:
            mine = {place * self._size + self._rank: output for place, output in enumerate(outputs)}
            return self._reduce(what, [row for one in inputs for row in one], reduction, mine, result)
        data = inputs[0] if len(inputs) == 1 else torch.cat([*inputs], 1)

        def finish(parts: Tensors) -> Any:
            for output, part in zip(outputs, torch.split(parts[0], [output.numel() for output in outputs])):
                copy(output, part)
            return result
        return self._exchange(Call(what, data.numel(), dtype, name), Key(op, NAMES[dtype], data.shape[1], self._size), ALL, data, SCATTER,
                              part(self._rank), finish, result)

    def _all_gather(self, what: str, inputs: Tensors, outputs: Lists, result: Any, then: Optional[Callable[[], object]] = None) -> Work:
        """Every rank's `inputs`, each to its `outputs`."""
        own = [bytes_of(one) for one in inputs]
        call = Call(what, sum(one.numel() for one in inputs), inputs[0].dtype)

        def finish(parts: Tensors) -> Any:
            for part, of_rank in zip(parts, outputs):
                for data, output in zip(torch.split(part, [one.numel() for one in own]), of_rank):
                    copy(output, data)
            if then is not None:
                then()
            return result
        return self._all_bytes(call, own[0] if len(own) == 1 else torch.cat(own), finish, result)

    def _all_bytes(self, call: Call, data: torch.Tensor, finish: Callable[[Tensors], Any], result: Any) -> Work:
        return self._exchange(call, Key("all_gather", "uint8", data.numel(), self._size), part(self._rank), data[None], GATHER,
                              ALL, finish, result)

    def _exchange(self, call: Call, key: Key, place: slice, data: torch.Tensor, how: How, back: slice,
                  finish: Callable[[Tensors], Any], result: Any) -> Work:
        self._check_process()
        return self._collectives.begin(call, key, place, data, how, back, finish if data.numel() else lambda _: result)

    def _collect(self, call: Call, sends: Mapping[int, torch.Tensor], receives: Mapping[Optional[int], torch.Tensor], result: Any) -> Work:
        """A collective by messages. They wait twice as long as the job does for the ranks' lines, which say who is late."""
        return self._swap(call.name, self._next_tag(call.line()), sends, receives, result, 2 * self._timeout, call)

    def _swap(self, what: str, tag: int, sends: Mapping[int, torch.Tensor], receives: Mapping[Optional[int], torch.Tensor], result: Any,
              timeout: Optional[float] = None, call: Optional[Call] = None) -> Work:
        """A message to each of `sends`, and one from each of `receives`, but for this rank itself. With a call, it has ended once all
        ranks have called the same, too."""
        self._check_process()
        limit = self._timeout if timeout is None else timeout
        sends = {rank: tensor for rank, tensor in sends.items() if rank != self._rank}
        receives = {rank: tensor for rank, tensor in receives.items() if rank != self._rank}
        # What is not contiguous, or on a GPU, comes to a copy.
        come = {rank: tensor if is_in_place(tensor) and not tensor.is_cuda else torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
                for rank, tensor in receives.items()}

        def finish() -> Any:
            for rank, tensor in receives.items():
                if come[rank] is not tensor:
                    copy(tensor, come[rank])
            return result
        device = next((tensor.device for tensor in (*receives.values(), *sends.values()) if tensor.is_cuda), None)
        work = self._collectives.work(what, in_order=False, device=device)
        ended = all_of(work, len(sends) + len(receives) + (call is not None), finish)
        if call is not None:
            self._collectives.tell(call, ended)
        for source, tensor in come.items():
            self._messages.recv(what, source, tag, memory_of(tensor), ended, limit)
        for rank, tensor in sends.items():
            self._messages.send(rank, tag, memory_of(tensor.cpu()), ended, limit)
        return work

    def _next_tag(self, line: bytes = b"") -> int:
        """The same on all ranks that call the same: no message of another call is taken for one of this."""
        self._calls += 1
        return -(self._calls << _LINE_BITS | zlib.crc32(line) >> 32 - _LINE_BITS)

    def _root_of(self, opts: Any) -> int:
        return _native.whole("root", 0 if opts is None else getattr(opts, "rootRank", opts), 0, self._size - 1)

    def _peer(self, rank: int, what: str) -> int:
        if not 0 <= rank < self._size or rank == self._rank:
            raise ValueError(f"{what}: rank {rank} is none of the other ranks of a group of {self._size}, whose rank {self._rank} this is")
        return rank

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise MercuryError(errno.ENOTCONN, "this process was forked from a rank of the group, and is none: do collectives there, or "
                               "init_process_group in a process of its own")


def _close(job: Job, collectives: Exchange, context: Context, messages: Messages, process: int, timeout: float) -> None:
    if os.getpid() != process:  # whose threads are not here
        return
    collectives.stop()
    if getattr(sys, "last_type", None) is not None:  # the program ends of an exception: the others would wait for it
        job.abandon()
    server = job._leave()
    context.close()

    def end() -> None:
        messages.stop()  # a stream that ends says that its rank is gone
        collectives.stop_callbacks()

    def wait(seconds: float) -> bool:
        return server is None or server.join(seconds)
    groups.leave(wait, end, timeout)


def also(**names: str) -> Callable[[_Method], _Method]:
    """Of a call that PyTorch's bindings have in several forms: what its arguments are called in the others."""
    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(*arguments: Any, **more: Any) -> Any:
            return method(*arguments, **{names.get(name, name): value for name, value in more.items()} if more else more)
        return cast(_Method, call)
    return decorate


def listed(tensors: Union[torch.Tensor, Tensors]) -> Tensors:
    """Some forms of PyTorch's bindings have one tensor where others have a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def lists(lists_or_list: Union[Tensors, Lists], is_one: bool) -> Lists:
    """... and one list where others have a list of lists."""
    return cast(Lists, [lists_or_list] if is_one else lists_or_list)


def reduction_of(opts: Any) -> Any:
    """PyTorch's calls have options, those of a program to the group itself perhaps a ReduceOp, or nothing."""
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def checked(tag: int) -> int:
    if not 0 <= tag < 2**63:
        raise ValueError(f"tag: expected 0 to 2^63-1, got {tag}")
    return tag


def only(tensors: Tensors, what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise NotImplementedError(f"{what} of the mercury backend: expected one tensor, got {len(tensors)}")
    return dense(tensors, what)[0]


def dense(tensors: Tensors, what: str) -> Tensors:
    for tensor in tensors:
        if tensor.device.type not in DEVICES or tensor.layout != torch.strided:
            raise NotImplementedError(f"{what} of the mercury backend: expected dense tensors on the CPU or a GPU of CUDA's, got one of "
                                      f"{tensor.layout} on {tensor.device}")
        if tensor.dtype != tensors[0].dtype or tensor.device != tensors[0].device:
            raise ValueError(f"{what}: expected tensors of one type on one device, got {tensors[0].dtype} on {tensors[0].device} and "
                             f"{tensor.dtype} on {tensor.device}")
    return tensors


def same(what: str, ones: Tensors, others: Tensors, size: int) -> None:
    """That there is one for each rank, all alike."""
    if len(others) != size:
        raise ValueError(f"{what}: expected {size} tensors, one for each rank, got {len(others)}")
    for place, other in enumerate(others):
        if other.numel() != ones[0].numel() or other.dtype != ones[0].dtype or other.device != ones[0].device:
            raise ValueError(f"{what}: the tensor of rank {place} has {other.numel()} elements of {other.dtype} on {other.device}, and the "
                             f"other one {ones[0].numel()} of {ones[0].dtype} on {ones[0].device}")


def copy(into: torch.Tensor, data: torch.Tensor) -> None:
    """`data` is of that type, or its bytes."""
    with torch.inference_mode(into.is_inference()):  # type: ignore[no-untyped-call]  # whatever the mode of the thread that waits
        into.detach().copy_(data.detach().view(into.dtype).view(into.shape) if data.dtype == torch.uint8 else data.detach().reshape(into.shape))


def memory_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(bytes_of(tensor).numpy()) if tensor.numel() else memoryview(bytearray())


def split(tensor: torch.Tensor, sizes: Sequence[int], size: int) -> Tensors:
    """Along the first dimension, in as many parts as there are ranks."""
    if not sizes:
        if tensor.shape[0] % size:
            raise ValueError(f"all_to_all_single: the first dimension, {tensor.shape[0]}, is no multiple of {size} ranks: give split sizes")
        sizes = [tensor.shape[0] // size] * size
    if len(sizes) != size or sum(sizes) != tensor.shape[0]:
        raise ValueError(f"all_to_all_single: split sizes {list(sizes)} of a first dimension of {tensor.shape[0]}; expected {size} that add up to it")
    return torch.split(tensor, list(sizes))
