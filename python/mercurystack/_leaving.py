"""How a process leaves its groups: at once, and what serves the other ranks stays for those who have not left yet."""

from __future__ import annotations

import threading
import time
from typing import Callable, NamedTuple


class Left(NamedTuple):
    """A group that this process has left."""

    wait: Callable[[float], bool]  # for the other ranks to leave it, so many seconds; whether they have
    end: Callable[[], None]  # what served them meanwhile
    due: float


class Groups:
    """The groups of this process. Ranks may leave several in different orders: who waited in one for the others, before it
    had left the next, would wait for those who wait in that one. So the last group that is left waits for all."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run within
        self._open = 0
        self._left: list[Left] = []

    def enter(self) -> None:
        with self._lock:
            self._open += 1

    def leave(self, wait: Callable[[float], bool], end: Callable[[], None], timeout: float) -> None:
        """Serves the others for at most `timeout` seconds longer."""
        with self._lock:
            self._open -= 1
            left, self._left = [*self._left, Left(wait, end, time.monotonic() + timeout)], []
            last = self._open == 0
        for one in left:
            if one.wait(max(0.0, one.due - time.monotonic()) if last else 0.0) or last:
                one.end()
            else:
                with self._lock:
                    self._left.append(one)


groups = Groups()
