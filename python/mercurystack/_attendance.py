"""Training with a quorum: sums may lack workers that are slow or lost. All get the same sums, so their weights stay the same."""

from __future__ import annotations

import errno
import time
from typing import Iterable, Optional

from mercurystack._errors import MercuryError
from mercurystack._job import Contributors, Job, Tensor
from mercurystack._meeting import Step
from mercurystack._state import State
from mercurystack._state_tensor import StateTensor, Collected

_GIVES_UP_S = 60.0  # without anything of worker 0's


class Attendance:
    """Who is in the sums of a step."""

    def __init__(self, job: Job, tensors: int) -> None:
        self._everybody = frozenset(range(job.workers))
        self._tensors = tensors
        self._open: dict[int, dict[int, Contributors]] = {}  # by round, by tensor
        self.last: Optional[Step] = None

    def note(self, tensor: Tensor) -> None:
        """Its sum has been waited for, perhaps again, after an exception. Of two rounds some may be waited for in turns: modules that a
        pass leaves out."""
        of = tensor.contributors()
        if self.last is not None and of.round - 1 <= self.last.iteration:
            return
        sums = self._open.setdefault(of.round, {})
        sums[tensor.id] = of
        if len(sums) == self._tensors:
            in_all = self._everybody.intersection(*(one.in_all for one in sums.values()))
            in_any = frozenset().union(*(one.in_any for one in sums.values()))
            self.last = Step(of.round - 1, in_all, in_any - in_all, 1)
            del self._open[of.round]


def refuse_next_life(tensors: Iterable[Tensor], job: Job) -> None:
    """MercuryError: this worker was lost, and the others have gone on without it."""
    if any(tensor.round > 1 for tensor in tensors):
        raise MercuryError(errno.EALREADY, f"worker {job.rank} has come back to a job with a quorum, which goes on without it: a job with "
                           "rejoin_ms, and elastic= instead of quorum=, takes it in again")


def give(state: State, tensor: StateTensor, job: Job) -> None:
    """Worker 0's state to all. What it pushes too late is in no sum, and it pushes that again."""
    data = memoryview(state.pack(0) if job.rank == 0 else b"")
    count = -(-len(data) // tensor.most)
    collected = Collected()
    index, heard = 0, time.monotonic()
    ended: Optional[bool] = None
    while not ended:
        if job.rank == 0:
            tensor.send(1, index, count, data[index * tensor.most:][:tensor.most])
        else:
            tensor.listen(1)
        piece = tensor.take()
        if piece.sender >= 0:
            ended = collected.add(piece)
            index, heard = piece.place + 1, time.monotonic()
        elif time.monotonic() - heard > _GIVES_UP_S:
            raise MercuryError(errno.ETIME, f"worker 0 has given nothing of its weights to worker {job.rank} for {_GIVES_UP_S:g} s")
    if job.rank != 0:
        state.unpack(collected.data, 0, job.rank)
