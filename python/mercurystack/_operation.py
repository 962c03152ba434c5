"""One push, pull or push-pull in flight."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generator, NamedTuple, Optional

from mercurystack._errors import MercuryError, error_of

if TYPE_CHECKING:
    from mercurystack._job import Tensor


OWN_PRIORITY = -1  # the tensor's


class How(NamedTuple):
    """An operation is asked for. priority: None, its tensor's own."""

    kind: int  # of _native
    priority: Optional[int] = None
    root: int = 0


class Operation:
    """In flight until its tensor holds the sum (push_pull, pull), or its part of it (reduce_scatter), or servers have all of it (push).

    Wait for it, `await` it in asyncio, or ask whether it is `done`: in any number of ways and threads, any number
    of times. All say the same: nothing, or the exception for what it failed of. tensor: what it is an operation of.
    """

    __slots__ = ("tensor", "_handle", "_status", "_text", "_awaiting")

    _handle: int  # once it is submitted
    _text: str  # once it has failed

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._status: Optional[int] = None
        self._awaiting: tuple[asyncio.Future[None], ...] = ()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Blocks without the GIL, at most `timeout` seconds (None: for ever). Signals interrupt it.

        MercuryTimeoutError: still in flight. JobFailedError and MercuryError: it failed."""
        self.tensor._job._wait(self, timeout)
        self._raise_failure()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        if self._status is None:
            self.tensor._job.poll()
        return self._status is not None

    def is_known_done(self) -> bool:
        """As done(), of what has been collected: whoever asks for many polls the job once."""
        return self._status is not None

    def exception(self) -> Optional[MercuryError]:
        """What it failed of, None if it did not or is still in flight."""
        return error_of(self._status, self._text) if self._status else None

    def __await__(self) -> Generator[object, None, None]:
        if self._status is None:
            yield from self.tensor._job._awaited(self).__await__()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self.exception()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        state = "in flight" if self._status is None else "done" if self._status == 0 else "failed"
        return f"<Operation on tensor {self.tensor.id}: {state}>"
