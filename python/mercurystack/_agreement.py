"""What the workers' models have in common: that they are of the same parameters, and worker 0's values."""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import struct
from typing import Iterable, Iterator, Optional

import numpy as np
import torch

from mercurystack._context import Context
from mercurystack._errors import MercuryError, MercuryTimeoutError
from mercurystack._job import FIRST_TOLD_S, Job
from mercurystack._memory import AnyArray
from mercurystack._operation import Operation
from mercurystack._staging import DEVICES
from mercurystack._tensors import bytes_of

# Numbers of tensors, behind those of gradients: the first one's number is added.
_VALUES = 1 << 30
_DIGESTS = 3 << 29
_DESCRIPTIONS = 7 << 28
_TERMS = 5 << 28  # this one's, of all optimizers: theirs are told by it
_NAMES = {_VALUES: "the broadcast of worker 0's parameters and buffers", _DIGESTS: "the comparison of the models",
          _DESCRIPTIONS: "the exchange of what models differ in", _TERMS: "the comparison of first_number= and broadcast="}
_TERM = struct.Struct("<QB")  # first_number, broadcast
_DIGEST_BYTES = 32
_SIZE_BYTES = 8
PIECE_BYTES = 4 << 20  # large enough that a piece's round trip does not count


def describe(model: torch.nn.Module, managed: Iterable[str], more: str) -> list[str]:
    """A line for each parameter and buffer, its name first; `more`, the last one, is of the optimizer."""
    trained = set(managed)
    lines = [f"{name} is {value.dtype} of shape {list(value.shape)}{', trained' if name in trained else ''}"
             f"{'' if value.layout == torch.strided else f', {value.layout}'}" for name, value in itertools.chain(model.named_parameters(), model.named_buffers())]
    return [*lines, more]


def state_of(optimizer: torch.optim.Optimizer) -> str:
    """What it has of its parameters, as a checkpoint or steps have left it: kinds and shapes, and what is one number, such as a count
    of steps. Others are not read: of the same steps their last bits differ between processors of different kinds."""
    said = []
    for number, kept in optimizer.state_dict().get("state", {}).items():
        for name, value in (kept.items() if isinstance(kept, dict) else ()):
            if isinstance(value, torch.Tensor):
                is_number = value.numel() == 1 and value.layout == torch.strided and not value.is_complex()
                said.append(f"{number} {name} {value.dtype} {list(value.shape)} {value.item() if is_number else ''}")
            elif isinstance(value, (bool, int, float, str)):
                said.append(f"{number} {name} {value}")
    text = "\n".join(sorted(said)).encode()
    return f"with a state of {len(said)} values ({hashlib.sha256(text).hexdigest()[:8]})" if said else "without a state"


def agree(lines: list[str], model: torch.nn.Module, context: Context, job: Job, first_number: int, broadcast: bool) -> None:
    """That the workers make the same optimizer, and a model that can be broadcast. ValueError: they do not, or it cannot. Without
    `broadcast` nobody is waited for, so that this worker learns of others that have it by their end alone."""
    if job.rejoin_ms and not broadcast:
        return  # one that comes back makes its optimizer alone
    if job._terms is not None:
        _await(job._terms, job, _TERMS, 0)
    array = context.zeros(_TERM.size * job.workers, "uint8") if _TERMS not in job._tensors else job._tensors[_TERMS].array
    job._terms = _begin_gather(_TERM.pack(first_number, broadcast), _TERM.size, np.asarray(array), job, _TERMS)
    if not broadcast:
        return
    _await(job._terms, job, _TERMS, 0)
    job._terms = None
    for rank, (number, others) in enumerate(_TERM.iter_unpack(np.asarray(array).tobytes())):
        if (number, others) != (first_number, broadcast):
            raise ValueError(f"the workers make different ScheduledOptimizers: worker {job.rank}'s has first_number={first_number}, "
                             f"broadcast={broadcast}, worker {rank}'s first_number={number}, broadcast={bool(others)}")
    compare(lines, context, job, first_number)
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if value.layout != torch.strided or value.is_quantized or value.device.type not in DEVICES:
            raise ValueError(f"{name}: worker 0's goes to all, which has to be dense, not quantized, and on the CPU or a GPU of CUDA's; it is of "
                             f"{value.dtype}, {value.layout} on {value.device}: change it, or say broadcast=False on all workers")


def compare(lines: list[str], context: Context, job: Job, first_number: int) -> None:
    """ValueError, on all workers: the lines of one differ from worker 0's. It says which and how."""
    text = "\n".join(lines).encode()
    mine = hashlib.sha256(text).digest() + len(text).to_bytes(_SIZE_BYTES, "big")
    try:
        all_of_them = _gather(mine, len(mine), context, job, _DIGESTS, first_number)
    except MercuryError as failure:
        raise with_first_number(failure, first_number) from None
    if len(set(all_of_them)) == 1:
        return
    longest = max(int.from_bytes(one[_DIGEST_BYTES:], "big") for one in all_of_them)
    texts = _gather(text, longest, context, job, _DESCRIPTIONS, first_number)
    theirs = [text.rstrip(b"\0").decode().split("\n") for text in texts]
    for rank, others in enumerate(theirs):
        refuse_difference(theirs[0], others, 0, rank)


def with_first_number(failure: MercuryError, first_number: int) -> MercuryError:
    """With what to do, where another optimizer has declared the same tensors."""
    if failure.errno != errno.EEXIST:
        return failure
    return type(failure)(failure.errno, f"{failure.strerror}: another optimizer of this job, open or closed, has first_number={first_number} "
                         "or numbers that overlap: give this one a first_number= behind all of them")


def refuse_difference(firsts: list[str], others: list[str], first_rank: int, rank: int) -> None:
    """ValueError: it says which line differs, and how."""
    by_kind = itertools.chain(itertools.zip_longest(firsts[:-1], others[:-1], fillvalue="model has nothing more"), [(firsts[-1], others[-1])])
    for first, other in by_kind:
        if first != other:
            raise ValueError(f"the workers' models differ: worker {first_rank}'s {first}, worker {rank}'s {other}")


def _gather(mine: bytes, size: int, context: Context, job: Job, kind: int, first_number: int) -> list[bytes]:
    array = context.zeros(size * job.workers, "uint8")
    try:
        operation = _begin_gather(mine, size, array, job, kind + first_number)
    except MercuryError as failure:
        raise _named(failure, kind, first_number) from None
    _await(operation, job, kind, first_number)
    return [array[place * size:(place + 1) * size].tobytes() for place in range(job.workers)]


def _begin_gather(mine: bytes, size: int, array: AnyArray, job: Job, number: int) -> Operation:
    begin = size * job.rank
    array[begin:begin + len(mine)] = np.frombuffer(mine, np.uint8)
    return (job._tensors.get(number) or job.declare(number, array)).all_gather()


def _await(operation: Operation, job: Job, kind: int, first_number: int) -> None:
    """Says what it waits for while that lasts, less often as it goes on."""
    seconds = FIRST_TOLD_S
    try:
        while True:
            try:
                return operation.wait(seconds)
            except MercuryTimeoutError:
                logging.getLogger("mercurystack").warning("worker %d of %d waits for the others in %s, which all make when they make their "
                                                          "ScheduledOptimizer", job.rank, job.workers, _NAMES[kind])
                seconds *= 2
    except MercuryError as failure:
        raise _named(failure, kind, first_number) from None


def _named(failure: MercuryError, kind: int, first_number: int) -> MercuryError:
    """With what the tensor is for, in place of its number, which the program has not chosen."""
    return type(failure)(failure.errno, (failure.strerror or "").replace(f"tensor {kind + first_number}", _NAMES[kind]))


def broadcast(model: torch.nn.Module, context: Context, job: Job, first_number: int) -> None:
    """Worker 0's parameters and buffers, as bytes, which arrive as they are; in pieces, as the memory for one stays with the job."""
    values = [one for one in (*model.parameters(), *model.buffers()) if one.numel()]
    if not values:
        return
    parts = [bytes_of(value) for value in values]
    array = context.zeros(min(sum(part.numel() for part in parts), PIECE_BYTES), "uint8")
    memory = torch.from_numpy(array)
    try:
        tensor = job.declare(_VALUES + first_number, array)
    except MercuryError as failure:
        raise _named(failure, _VALUES, first_number) from None
    for piece in _pieces(parts, len(array)):
        sizes = [view.numel() for view in piece]
        torch.cat([view.cpu() for view in piece], out=memory[:sum(sizes)])
        _await(tensor.broadcast(0), job, _VALUES, first_number)
        for view, come in zip(piece, torch.split(memory[:sum(sizes)], sizes)):
            view.copy_(come)
    with torch.no_grad():
        for value, part in zip(values, parts):
            if part.data_ptr() != value.data_ptr():  # it is not contiguous, or a view with values of its own
                _once(value).copy_(_once(part.view(value.dtype).view_as(value), value))


def _pieces(parts: list[torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """Views of all parts, `most` elements together."""
    piece: list[torch.Tensor] = []
    room = most
    for part in parts:
        while part.numel():
            piece.append(part[:room])
            part = part[room:]
            room -= piece[-1].numel()
            if room == 0:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def _once(value: torch.Tensor, like: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Without the repetitions of an expanded tensor, each element of which is many; or as one that is `like` it."""
    for dimension, stride in enumerate((value if like is None else like).stride()):
        if stride == 0 and value.size(dimension) > 1:
            value = value.narrow(dimension, 0, 1)
    return value
