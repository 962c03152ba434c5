"""Whether all ranks have called the same: beside each collective every rank says, in a line of text, which one it has begun, and
compares what the others say. Memory that several sizes share, and operations that give bytes a type, would not show it."""

from __future__ import annotations

import errno
import threading
from typing import Callable, NamedTuple, Optional

import torch

from mercurystack._errors import MercuryError

LINE_BYTES = 80  # the longest has some 70; what is beyond is not compared


class Call(NamedTuple):
    """A collective as its program calls it."""

    name: str  # PyTorch's
    numel: Optional[int] = 0  # of what this rank gives; None: it may give more than another
    dtype: Optional[torch.dtype] = None  # None: it has no elements
    how: str = ""  # the reduction, the root

    def line(self) -> bytes:
        count = "" if self.numel is None else f"{self.numel} elements of "
        what = "" if self.dtype is None else f" of {count}{str(self.dtype).partition('.')[2]}"
        return f"{self.name}{what}{self.how and ', '}{self.how}".encode()[:LINE_BYTES].ljust(LINE_BYTES)


def compare(rank: int, lines: memoryview) -> None:
    """MercuryError: they are not all alike."""
    texts = [bytes(lines[place:place + LINE_BYTES]) for place in range(0, len(lines), LINE_BYTES)]
    for other, text in enumerate(texts):
        if text != texts[rank]:
            raise MercuryError(errno.EPROTOTYPE, f"the ranks of the group have called different collectives: rank {rank} of {len(texts)} "
                               f"{texts[rank].decode().rstrip()}, and rank {other} of {len(texts)} {text.decode(errors='replace').rstrip()}")


class Agreement:
    """That the ranks have called the same, once it is known."""

    def __init__(self, told: Callable[[Optional[Exception], int], None], differ: Callable[[Exception], None]) -> None:
        self._told, self._differ = told, differ
        self._ended = threading.Event()
        self._failure: Optional[Exception] = None

    def end(self, failure: Optional[Exception] = None, result: object = None) -> None:
        self._failure = failure
        self._ended.set()
        self._told(failure, -1)
        if failure is not None:
            self._differ(failure)

    def wait(self) -> Optional[Exception]:
        """Until all ranks have called, or the group has failed; of what it has."""
        self._ended.wait()
        return self._failure
