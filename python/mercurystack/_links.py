"""Streams between the ranks of a group: each carries messages one way, from who opened it."""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from typing import Callable, NamedTuple, Optional

HEADER = struct.Struct("!qQ")  # tag, bytes
_RANK = struct.Struct("!I")

Ended = Callable[[Optional[Exception], int], None]  # a failure or None, and whom the message came from


class Posted(NamedTuple):
    """A message that somebody waits for."""

    what: str  # the call
    source: Optional[int]  # None: any
    tag: int
    memory: memoryview
    ended: Ended
    due: float

    def fits(self, source: int, tag: int) -> bool:
        return self.tag == tag and self.source in (None, source)

    def said(self) -> str:
        """What it is known by: a collective has no tag of the program's."""
        return f"with tag {self.tag}" if self.tag >= 0 else f"of {self.what}"


class Sent(NamedTuple):
    """A message that is to leave."""

    header: bytes
    memory: memoryview
    ended: Optional[Ended]
    due: float


class Outgoing:
    """To one rank. Nothing comes back on it, but its end: that the rank is gone."""

    def __init__(self, rank: int, address: tuple[str, int], hello: bytes) -> None:
        self.rank = rank
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(address)  # a refusal comes with the first write
        self.waiting: deque[Sent] = deque((Sent(b"", memoryview(hello), None, math.inf),))
        self._parts: list[memoryview] = []  # of the first one, what has not left

    def drop(self, failure: Exception) -> None:
        """What has not left, and never will."""
        waiting, self.waiting = self.waiting, deque()
        for sent in waiting:
            if sent.ended is not None:
                sent.ended(failure, -1)

    def write(self) -> bool:
        """As much as goes now; whether all has. OSError: the rank is gone."""
        while self.waiting:
            first = self.waiting[0]
            if not self._parts:
                self._parts = [part for part in (memoryview(first.header), first.memory) if part]
            while self._parts:
                try:
                    written = self.socket.send(self._parts[0])
                except BlockingIOError:
                    return False
                if written == len(self._parts[0]):
                    del self._parts[0]
                else:
                    self._parts[0] = self._parts[0][written:]
            self.waiting.popleft()
            if first.ended is not None:
                first.ended(None, -1)
        return True


class Incoming:
    """From one rank, which its first bytes tell."""

    def __init__(self, stream: socket.socket, hello: bytes, size: int) -> None:
        self.socket = stream
        self.socket.setblocking(False)
        self.rank = -1
        self._hello = hello
        self._size = size
        self._fixed = bytearray(len(hello) + _RANK.size)
        self._view = memoryview(self._fixed)
        self._got = 0
        self._in_body = False

    def read(self, begin: Callable[[Incoming, int, int], memoryview], end: Callable[[Incoming], None]) -> bool:
        """What has come, in turns; False: it is over. begin(link, tag, bytes): where a message goes; end: it is there.
        ValueError: a stranger."""
        for _ in range(64):  # then the others
            if self._got < len(self._view):
                try:
                    count = self.socket.recv_into(self._view[self._got:])
                except BlockingIOError:
                    return True
                if count == 0:
                    return False
                self._got += count
            if self._got == len(self._view):
                self._complete(begin, end)
        return True

    def _complete(self, begin: Callable[[Incoming, int, int], memoryview], end: Callable[[Incoming], None]) -> None:
        self._got = 0
        if self._in_body:
            end(self)
        elif self.rank < 0:
            said, (rank,) = bytes(self._fixed[:len(self._hello)]), _RANK.unpack(self._fixed[len(self._hello):])
            if said != self._hello or rank >= self._size:
                raise ValueError("not a rank of this group")
            self.rank = rank
            self._fixed = bytearray(HEADER.size)
        else:
            tag, size = HEADER.unpack(self._fixed)
            body = begin(self, tag, size)
            if size:
                self._view, self._in_body = body, True
                return
            end(self)
        self._view, self._in_body = memoryview(self._fixed), False


def hello_of(group: bytes, rank: int) -> bytes:
    return group + _RANK.pack(rank)
