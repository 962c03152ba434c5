"""A job's pointer, which calls share and one close ends; and its operations in flight, which several threads and
event loops may wait for."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence

import numpy as np
import numpy.typing as npt

from mercurystack import _native
from mercurystack._errors import MercuryError, error_of
from mercurystack._operation import OWN_PRIORITY

if TYPE_CHECKING:
    from mercurystack._operation import How, Operation

# A blocked call looks this often whether a signal came, whose handler runs between two calls, or a close.
_SLICE_S = 0.1
_BATCH = 64  # completions that one call collects
_NO_TEXTS = ("",) * _BATCH  # of completions that say that all is well
_KEPT = 2  # operations in one call whose structs are kept
_ident = threading.get_ident


class Use:
    """`with use as pointer:` for a call that no close may overtake. close() waits until no other thread is in one.

    A signal's handler may raise an exception at any point of the main thread, here too: what that leaves of a call is
    its thread's name among the users, which does not keep the thread itself from closing. No lock can stay behind.

    A process that was forked has neither the library's threads nor the users', and its locks may be held for ever: nothing
    is closed there, which the end of the process does.
    """

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self._pointer = pointer
        self._users: set[int] = set()
        self._left = threading.Event()
        self._closed = False
        self._process = os.getpid()
        self._to_close = [pointer]  # taken by whoever does
        self.lock = threading.RLock()  # who has it, and has seen that it is not closed, is a user too: for calls that never wait
        self.awaited: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()  # of loops, under the lock
        # Whoever comes second waits for the first, but for who interrupts it: the garbage collector, a signal's handler.
        self._closing = threading.RLock()

    def __enter__(self) -> ctypes.c_void_p:
        self._users.add(_ident())  # before it looks: close() looks in the other order
        if self._closed:
            self.__exit__(None, None, None)
            raise ValueError("the job is closed")
        return self._pointer

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._users.discard(_ident())
        if self._closed:
            self._left.set()

    def close(self, end: _native.Function) -> None:
        """Any number of times, by any threads: when it returns, no other thread is in a call, and end() has been called."""
        self._closed = True
        if os.getpid() != self._process:
            return
        with self.lock:
            for future in list(self.awaited):
                _end_await(future)
        with self._closing:
            while self._users - {threading.get_ident()}:
                self._left.wait(_SLICE_S)
                self._left.clear()
            with self.lock:
                if self._to_close:
                    end(self._to_close.pop())

    def pointer(self) -> ctypes.c_void_p:
        """For who has the lock, as long as that is so."""
        if self._closed:
            raise ValueError("the job is closed")
        return self._pointer

    def wait(self, call: _native.Function, arguments: tuple[object, ...], timeout: Optional[float]) -> int:
        """call(pointer, *arguments, milliseconds) until it says something else than that the time is over, or
        `timeout` seconds have passed."""
        due = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_S if due is None else min(_SLICE_S, max(0.0, due - time.monotonic()))
            with self as pointer:
                code: int = call(pointer, *arguments, -int(-left * 1000 // 1))
            if code != -errno.ETIMEDOUT or (due is not None and time.monotonic() >= due):
                return code


class Flight:
    """Operations by their handles, until they end."""

    def __init__(self, use: Use) -> None:
        self._use = use
        self._lock = use.lock
        self._ended = threading.Condition()  # for those who wait behind another thread, and only where there are any
        self._followers = 0
        self._kept: dict[int, ctypes.Array[_native.SubmittedOperation]] = {}
        self._operations: dict[int, Operation] = {}
        self._loops: dict[asyncio.AbstractEventLoop, _Reader] = {}  # those that await operations
        self._doubtful: set[Operation] = set()  # of which an interrupted wait may have been told, and nobody knows
        # Written by the library, and emptied once all of a batch have been told: what an exception of a signal's handler leaves
        # is there for the next call.
        self._completions = _native.array_of(_native.Completion, _BATCH)
        self._each = list(self._completions)  # which an array makes anew for who asks for one
        self._first = self._each[0]
        self._handles = _column(self._completions, _native.Completion.handle, np.uint64)
        self._statuses = _column(self._completions, _native.Completion.status, np.int32)

    def submit(self, job: ctypes.c_void_p, operations: Sequence[Operation], ways: Iterable[How]) -> bool:
        """Each in its way. Whether there was room for all; else none is in flight, and the caller tries again later."""
        with self._lock:  # nobody collects one before it is known
            asked = self._asked_of(len(operations))
            for one, operation, way in zip(asked, operations, ways):
                one.kind, one.tensor, one.root = way.kind, operation.tensor.id, way.root
                one.priority = OWN_PRIORITY if way.priority is None else way.priority
            if (code := _native.library.mercury_submit(job, asked, len(operations))) == -errno.EAGAIN:
                return False
            _native.check(code)
            for one, operation in zip(asked, operations):
                operation._handle = one.handle
                self._operations[one.handle] = operation
        return True

    def _asked_of(self, count: int) -> ctypes.Array[_native.SubmittedOperation]:
        """Small ones are kept: they come with each collective."""
        asked = self._kept.get(count) or _native.array_of(_native.SubmittedOperation, count)
        if count <= _KEPT:
            self._kept[count] = asked
        return asked

    def submit_one(self, operation: Operation, kind: int, priority: int, root: int) -> bool:
        """As submit(), by its tensor's own struct: making one takes longer than the call."""
        one = operation.tensor._asked
        with self._lock:
            one.kind, one.priority, one.root = kind, priority, root
            code = _native.library.mercury_submit(self._use.pointer(), one, 1)
            if code < 0:
                if code == -errno.EAGAIN:
                    return False
                _native.check(code)
            operation._handle = handle = one.handle
            self._operations[handle] = operation
        return True

    def collect(self, job: ctypes.c_void_p) -> int:
        ended = 0
        size = ctypes.sizeof(_native.Completion)
        with self._lock:
            try:
                while True:
                    if self._first.handle:
                        ended += self._read_left()
                    got = _native.library.mercury_poll(job, self._completions, _BATCH, size)
                    if got > 0:
                        ended += self._read_completions(got)
                    if got < _BATCH:
                        break
                for operation in list(self._doubtful):
                    self._ask(self._use, operation, 0.0)
            except BaseException:  # of a signal's handler: the descriptor does not call a loop again for what was taken
                self._call_loops()
                raise
            _native.check(got)
            return ended

    def _read_left(self) -> int:
        """What an exception left, if no signal's handler has read it meanwhile."""
        count = int(np.count_nonzero(self._handles))
        return self._read_completions(count) if count else 0

    def _call_loops(self) -> None:
        for loop in list(self._loops):
            with contextlib.suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(self._look)

    def _read_completions(self, count: int) -> int:
        """All, or all again: what an exception leaves is known by its handles, and which operations have ended, by themselves.
        A signal's handler that polls meanwhile tells all of these, and may leave others in their place."""
        operations = self._operations
        handles, statuses = self._handles[:count].tolist(), self._statuses[:count].tolist()
        texts = [_text_of(one) for one in self._each[:count]] if any(statuses) else _NO_TEXTS
        for handle, status, text in zip(handles, statuses, texts):
            operation = operations.get(handle)
            if operation is not None:
                if status:
                    operation._text = text
                operation._status = status
                if operation._awaiting or self._followers:
                    self._tell(operation)
                operations.pop(handle, None)  # the last: until then it is told again
        if self._first.handle == handles[0]:
            self._handles[:count] = 0
        return count

    def wait(self, use: Use, operation: Operation, timeout: Optional[float]) -> None:
        """Returns once it has ended, well or not. MercuryTimeoutError: it has not."""
        due = None if timeout is None else time.monotonic() + timeout
        while operation._status is None:
            left = None if due is None else max(0.0, due - time.monotonic())
            code = self._ask(use, operation, left)
            if code == -errno.EBUSY and left != 0.0:  # another thread waits for it in the library
                self._follow(operation, _SLICE_S if left is None else min(left, _SLICE_S))
            elif code:
                raise error_of(-errno.ETIMEDOUT, "the operation is still in flight")

    def _ask(self, use: Use, operation: Operation, seconds: Optional[float]) -> int:
        """The library, for so long: 0, it has ended, and is marked so; -ETIMEDOUT; -EBUSY, another thread waits for it there."""
        self._doubtful.discard(operation)
        try:
            code = use.wait(_native.library.mercury_wait, (operation._handle,), seconds)
            if code in (-errno.ETIMEDOUT, -errno.EBUSY):
                return code
            text = _native.last_error() if code < 0 else ""
            with self._lock:
                if code == -errno.ENOENT and self._first.handle:
                    self._read_left()
                if operation._status is None:
                    self._end(operation, *self._collected(use) if code == -errno.ENOENT else (code, text))
            return 0
        except BaseException:  # of a signal's handler: the library may have told of the end, and does so once
            self._doubtful.add(operation)
            with self._lock:
                self._tell(operation)
            raise

    def _follow(self, operation: Operation, seconds: float) -> None:
        """Until it has ended, or for a while: whoever leads may have been interrupted."""
        with self._ended:
            self._followers += 1
            try:
                self._ended.wait_for(lambda: operation._status is not None, seconds)
            finally:
                self._followers -= 1

    def _collected(self, use: Use) -> tuple[int, str]:
        """Of an operation that was collected and whose status is not known: the exception of a signal's handler
        came in between. Operations fail with their job."""
        with use as job:
            return _native.job_status(job)

    async def until_ended(self, fd: int, operation: Operation) -> None:
        """Waits in the running loop, which looks whenever there may be something. ValueError: the job was closed."""
        while operation._status is None:
            await self._until_told(fd, operation)
            if operation._status is None:  # an exception kept another thread from saying how it has ended, or the job is closed
                self._ask(self._use, operation, 0.0)

    async def _until_told(self, fd: int, operation: Operation) -> None:
        """Or until somebody is interrupted who may know."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if operation._status is not None:
                return
            self._use.pointer()
            if loop not in self._loops:
                self._loops[loop] = _Reader(loop, fd, self._look)
            self._loops[loop].awaited += 1
            operation._awaiting += (future,)
            self._use.awaited.add(future)
        try:
            # Whoever polls until here, as a signal's handler may, does not know of the future.
            if operation._status is None and operation not in self._doubtful:
                await future
        finally:
            with self._lock:
                self._loops[loop].awaited -= 1
                if not self._loops[loop].awaited:
                    self._loops.pop(loop).stop()
                self._use.awaited.discard(future)
                operation._awaiting = tuple(one for one in operation._awaiting if one is not future)  # it was cancelled, or the job closed

    def _look(self) -> None:
        with contextlib.suppress(ValueError):  # the job is closed, which who awaits is told
            with self._use as job:
                self.collect(job)

    def _end(self, operation: Operation, status: int, text: str) -> None:
        self._operations.pop(operation._handle, None)  # the first: no completion comes of it that would find it
        operation._text = text
        operation._status = status
        self._tell(operation)

    def _tell(self, operation: Operation) -> None:
        """Whoever waits for it otherwise than in the library, any number of times: they look whether it has ended."""
        for future in operation._awaiting:
            _end_await(future)
        operation._awaiting = ()
        if self._followers:
            with self._ended:
                self._ended.notify_all()


def _column(array: ctypes.Array[_native.Completion], field: Any, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Of an array of structs, one field of each, so that many are read at once."""
    return np.ndarray(len(array), kind, memoryview(array), field.offset, ctypes.sizeof(_native.Completion))


def _text_of(completion: _native.Completion) -> str:
    message: bytes = completion.message or b""
    return message.decode(errors="replace")


class _Reader:
    """Calls whenever there may be something, in a loop. It has a descriptor of its own: a job that another thread closes takes
    its own away, and the next file may get that number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, look: Callable[[], None]) -> None:
        self.awaited = 0  # operations
        self._loop, self._fd = loop, os.dup(fd)
        loop.add_reader(self._fd, look)

    def stop(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


def _end_await(future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # its loop was closed
        future.get_loop().call_soon_threadsafe(_set_done, future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
