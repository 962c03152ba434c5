"""What the workers' models have in common: that they are of the same parameters, and worker 0's values."""

from __future__ import annotations

import errno
import hashlib
import itertools
from typing import Iterable, Iterator

import numpy as np
import torch

from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._job import Job
from mercurystack._tensors import bytes_of

# Numbers of tensors, behind those of gradients: the first one's number is added.
_VALUES = 1 << 30
_DIGESTS = 3 << 29
_DESCRIPTIONS = 7 << 28
_DIGEST_BYTES = 32
_SIZE_BYTES = 8
PIECE_BYTES = 4 << 20  # large enough that a piece's round trip does not count


def describe(model: torch.nn.Module, managed: Iterable[str], more: str) -> list[str]:
    """A line for each parameter and buffer, its name first; `more` is of the optimizer."""
    trained = set(managed)
    lines = [f"{name} is {value.dtype} of shape {list(value.shape)}{', trained' if name in trained else ''}"
             for name, value in itertools.chain(model.named_parameters(), model.named_buffers())]
    return [*lines, more]


def compare(lines: list[str], context: Context, job: Job, first_number: int) -> None:
    """ValueError, on all workers: the lines of one differ from worker 0's. It says which and how."""
    text = "\n".join(lines).encode()
    mine = hashlib.sha256(text).digest() + len(text).to_bytes(_SIZE_BYTES, "big")
    try:
        all_of_them = _gather(mine, len(mine), context, job, _DIGESTS + first_number)
    except MercuryError as failure:
        raise with_first_number(failure, first_number) from None
    if len(set(all_of_them)) == 1:
        return
    longest = max(int.from_bytes(one[_DIGEST_BYTES:], "big") for one in all_of_them)
    texts = _gather(text, longest, context, job, _DESCRIPTIONS + first_number)
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
    for first, other in itertools.zip_longest(firsts, others, fillvalue="nothing more"):
        if first != other:
            raise ValueError(f"the workers' models differ: worker {first_rank}'s {first}, worker {rank}'s {other}")


def _gather(mine: bytes, size: int, context: Context, job: Job, number: int) -> list[bytes]:
    array = context.zeros(size * job.workers, "uint8")
    begin = size * job.rank
    array[begin:begin + len(mine)] = np.frombuffer(mine, np.uint8)
    job.declare(number, array).all_gather().wait()
    return [array[place * size:(place + 1) * size].tobytes() for place in range(job.workers)]


def broadcast(model: torch.nn.Module, context: Context, job: Job, first_number: int) -> None:
    """Worker 0's parameters and buffers, as bytes, which arrive as they are; in pieces, as the memory for one stays with the job."""
    values = [one for one in (*model.parameters(), *model.buffers()) if one.numel()]
    if not values:
        return
    parts = [bytes_of(value) for value in values]
    array = context.zeros(min(sum(part.numel() for part in parts), PIECE_BYTES), "uint8")
    memory = torch.from_numpy(array)
    tensor = job.declare(_VALUES + first_number, array)
    for piece in _pieces(parts, len(array)):
        sizes = [view.numel() for view in piece]
        torch.cat([view.cpu() for view in piece], out=memory[:sum(sizes)])
        tensor.broadcast(0).wait()
        for view, come in zip(piece, torch.split(memory[:sum(sizes)], sizes)):
            view.copy_(come)
    with torch.no_grad():
        for value, part in zip(values, parts):
            if part.data_ptr() != value.data_ptr():  # it is not contiguous
                value.copy_(part.view(value.dtype).view_as(value))


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
