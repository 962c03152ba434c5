"""Which collectives have memory of their own, and how others are cut into pieces that share it, so that sizes which come once
leave nothing behind. All ranks see the same sizes in one order, and so decide alike."""

from __future__ import annotations

from typing import Any, Callable, Hashable, NamedTuple, Optional, Protocol, Sequence

import torch

SMALL = 1 << 16  # elements: below, powers of two stand for all sizes, so that not each takes memory of its own
_PIECE_BYTES = 1 << 22
_KNOWN = 1024  # sizes that are remembered


class Key(NamedTuple):
    """Collectives that share memory."""

    kind: str  # sum, average, min, max, broadcast, all_gather
    dtype: str  # Mercury's name
    numel: int
    parts: int  # 1, or how many equal parts of `numel` there are, those of an all-gather or of a reduce-scatter
    urgent: bool = True  # overtakes the others; small ones may

    def rounded(self) -> Key:
        return self._replace(numel=1 << (self.numel - 1).bit_length()) if self.numel < SMALL else self

    def largest_piece(self, width: int) -> int:
        """Elements of so many bytes each."""
        return max(SMALL, 1 << (max(1, _PIECE_BYTES // (width * self.parts)).bit_length() - 1))


def cut(numel: int, most: int, least: int) -> list[tuple[int, int]]:
    """(begin, count) of each piece: powers of two from `most` down to `least`, and what is left."""
    pieces, at = [], 0
    while at < numel:
        left = numel - at
        count = min(most, 1 << (left.bit_length() - 1)) if left >= least else left
        pieces.append((at, count))
        at += count
    return pieces


def put(rows: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """A piece of each rank's part where it belongs."""
    for row, part in zip(rows, parts):
        row.copy_(part)


class Ending(Protocol):
    """A work, or what is told of the end of a part of one."""

    def end(self, failure: Optional[Exception] = None, result: Any = None) -> None: ...


class Piece:
    """Of a collective that is cut."""

    def __init__(self, ended: Callable[[Optional[Exception], int], None]) -> None:
        self._ended = ended

    def end(self, failure: Optional[Exception] = None, result: Any = None) -> None:
        self._ended(failure, -1)


class Owners:
    """Sizes that have come before may have memory of their own, as long as there is some."""

    def __init__(self, most: int) -> None:
        self._left = most  # bytes
        self._known: dict[Hashable, None] = {}  # the one that came longest ago first

    def take(self, size: int) -> bool:
        """Whether there is so much, which is the caller's from now on."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def knew(self, key: Hashable) -> bool:
        """Whether it has come before; it has from now on."""
        known = key in self._known
        self._known.pop(key, None)
        self._known[key] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return known
