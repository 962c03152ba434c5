"""How a worker's state comes to those that are new: in pieces, each the sum of its sender's bytes and of everybody else's zeros.
So whoever takes the place of a lost worker can take part in it at once, without knowing whether anything is sent or by whom: its
zeros change nothing."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple, Optional

import numpy as np

from mercurystack._context import Context
from mercurystack._job import Job
from mercurystack._operation import Operation

PIECE_BYTES = 4 << 20  # large enough that a piece's round trip does not count
_MAGIC = 0x4D53_5441
# Magic, sender, which piece, of how many, its bytes, their CRC-32.
_HEADER = struct.Struct("<6I")
_ATTEMPT = np.dtype("<u4")


class Piece(NamedTuple):
    """What came of one round."""

    attempt: int  # whose outcome it is sent for; 0: nobody said
    sender: int  # -1: it was lost meanwhile, or nobody sent
    place: int
    of: int
    data: bytes


class StateTensor:
    """One tensor, whose rounds are pieces. Before the header each worker has a place of its own for its attempt's number."""

    def __init__(self, context: Context, job: Job, number: int, most: int = PIECE_BYTES) -> None:
        self._rank = job.rank
        self._places = job.workers * _ATTEMPT.itemsize
        self._data_at = self._places + _HEADER.size
        self.most = most  # bytes of a piece
        self._array = np.asarray(context.zeros(self._data_at + most, "uint8"))
        self._attempts = self._array[:self._places].view(_ATTEMPT)
        self.tensor = job.declare(number, self._array)
        self.operation: Optional[Operation] = None  # of the round that this worker is in

    def listen(self, attempt: int = 0) -> None:
        """Takes part in a round, if it does not yet, and sends nothing."""
        if self.operation is None:
            self._array.fill(0)
            self._attempts[self._rank] = attempt
            self.operation = self.tensor.push_pull()

    def send(self, attempt: int, index: int, count: int, data: memoryview) -> None:
        assert self.operation is None
        self._array.fill(0)
        self._attempts[self._rank] = attempt
        header = _HEADER.pack(_MAGIC, self._rank, index, count, len(data), zlib.crc32(data))
        self._array[self._places:self._data_at] = np.frombuffer(header, np.uint8)
        self._array[self._data_at:self._data_at + len(data)] = np.frombuffer(data, np.uint8)
        self.operation = self.tensor.push_pull()

    def take(self) -> Piece:
        """Waits for the round that this worker is in."""
        assert self.operation is not None
        self.operation.wait()
        self.operation = None
        attempt = int(self._attempts.max())
        magic, sender, index, count, size, crc = _HEADER.unpack(self._array[self._places:self._data_at].tobytes())
        # A sender that was lost between two chunks has left part of it.
        if magic != _MAGIC or size > self.most:
            return Piece(attempt, -1, 0, 0, b"")
        data = self._array[self._data_at:self._data_at + size].tobytes()
        return Piece(attempt, sender, index, count, data) if zlib.crc32(data) == crc else Piece(attempt, -1, 0, 0, b"")


class Collected:
    """The pieces of one sending, until all are there or it has failed."""

    def __init__(self) -> None:
        self.sender = -1
        self._parts: list[bytes] = []

    def add(self, piece: Piece) -> Optional[bool]:
        """True: it was the last one; False: no more will come; None: more will."""
        if piece.sender < 0:
            return False
        if piece.place == 0:
            self._parts.clear()
        self._parts.append(piece.data)
        self.sender = piece.sender
        return True if piece.place + 1 == piece.of else None

    @property
    def data(self) -> bytes:
        return b"".join(self._parts)

    def drop(self) -> None:
        """Its memory, once it was taken."""
        self._parts.clear()
