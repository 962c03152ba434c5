"""What calls of torch.distributed return, what those fail of, and on which threads callbacks of their futures run."""

from __future__ import annotations

import datetime
import errno
import threading
from collections import deque
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist
from torch.futures import Future

from mercurystack._errors import JobFailedError, MercuryError, MercuryTimeoutError

_KEPT = 64
_NO_TIMEOUT = datetime.timedelta(0)  # PyTorch's default of Work.wait


class GroupError(JobFailedError, RuntimeError):
    """The group has failed, on every rank. A RuntimeError too, as other backends raise."""


class GroupTimeoutError(MercuryTimeoutError, RuntimeError):
    """The caller's time, or the group's, is over."""


def failure_of(error: Exception) -> Exception:
    """As a program that was written for another backend expects it."""
    if isinstance(error, JobFailedError) and not isinstance(error, GroupError):
        if error.errno == errno.ETIME:
            return GroupError(error.errno, f"the group's timeout is over: {error.strerror}")
        return GroupError(error.errno, error.strerror)
    return error


def again(failure: Exception) -> Exception:
    """To be raised: another object, as one that is kept would keep each frame that it passes, and so the group."""
    return type(failure)(*failure.args) if isinstance(failure, MercuryError) else failure


def timed_out(text: str) -> GroupTimeoutError:
    return GroupTimeoutError(errno.ETIMEDOUT, text)


def gone(text: str) -> GroupError:
    return GroupError(errno.ECONNRESET, text)


class Callbacks(threading.Thread):
    """Ends works' futures, one after the other: callbacks may begin collectives and messages, and wait for them, as PowerSGD's do.
    Callbacks of those run where these end: they are not to wait.

    Collectives' futures end in the order in which they were asked for: what their callbacks begin has to come in one order on all
    ranks. Messages' end as the messages do, of which one may hang on what is behind it.
    """

    def __init__(self) -> None:
        super().__init__(name="mercury-callbacks", daemon=True)
        self._changed = threading.Condition()
        self._in_order: deque[tuple[Work, Future[Any]]] = deque()
        self._ended: deque[tuple[Work, Future[Any]]] = deque()
        self._stops = False
        self.start()

    def is_here(self) -> bool:
        return threading.current_thread() is self

    def add(self, work: Work, future: Future[Any]) -> None:
        with self._changed:
            self._in_order.append((work, future))

    def end(self, work: Work, futures: list[Future[Any]]) -> None:
        """The work has ended, and these futures of it are not in order."""
        with self._changed:
            self._ended.extend((work, future) for future in futures)
            if self._ended or self._in_order:
                self._changed.notify()

    def stop(self) -> None:
        """Once all works have ended."""
        with self._changed:
            self._stops = True
            self._changed.notify()
        if not self.is_here():
            self.join()

    def run(self) -> None:
        while True:
            with self._changed:
                while (found := self._next()) is None:
                    if self._stops:
                        return
                    self._changed.wait()
            work, future = found
            work.end_future(future)

    def _next(self) -> Optional[tuple[Work, Future[Any]]]:
        if self._in_order and self._in_order[0][0].is_completed():
            return self._in_order.popleft()
        return self._ended.popleft() if self._ended else None


class Kept:
    """Works that the C++ side may hold alone. Its pointer does not keep the Python half of a work, without which a call
    ends nowhere; so this does, until the call, which for whoever never makes it is some collectives later."""

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}
        self._lock = threading.Lock()

    def add(self, work: Work) -> None:
        with self._lock:
            self._works[id(work)] = work
            dropped = [self._works.pop(next(iter(self._works))) for _ in range(len(self._works) - _KEPT)]
        del dropped  # their finalizers run without the lock

    def drop(self, work: Work) -> None:
        with self._lock:
            self._works.pop(id(work), None)


class Work(dist._Work):  # type: ignore[misc, name-defined]
    """A collective, or a message. Any thread may wait for it."""

    def __init__(self, name: str, kept: Kept, callbacks: Callbacks, in_order: bool, device: Optional[torch.device] = None) -> None:
        super().__init__()
        # Of the tensors that its result has, where a future has to know.
        self._devices: Optional[list[Union[int, str, torch.device]]] = None if device is None or device.type == "cpu" else [device]
        self._name = name
        self._kept = kept
        self._callbacks = callbacks
        self._in_order = in_order  # whether its futures end in the order of those that were asked for before
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failure: Optional[Exception] = None
        self._result: Any = None
        self._source = -1
        self._futures: list[Future[Any]] = []
        self._nested: list[Future[Any]] = []  # which callbacks wait for
        kept.add(self)

    def end(self, failure: Optional[Exception] = None, result: Any = None, source: int = -1) -> None:
        """By the backend, once."""
        with self._lock:
            self._failure = None if failure is None else failure_of(failure)
            self._result, self._source = result, source
            self._ended.set()
            futures, self._futures = self._futures, []
            nested, self._nested = self._nested, []
        self._callbacks.end(self, futures)
        for future in nested:
            self.end_future(future)

    def end_future(self, future: Future[Any]) -> None:
        """Once the work has ended."""
        future.set_result(self._result if self._failure is None else self._failure)

    # ---- PyTorch's calls -----------------------------------------------------------------------

    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        """Raises what it failed of. GroupTimeoutError: it has not ended, and goes on."""
        seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
        ended = self._ended.wait(seconds)
        self._drop()
        if not ended:
            raise timed_out(f"{self._name} has not ended within {seconds:g} s; it goes on")
        if self._failure is not None:
            raise again(self._failure)
        return True

    def get_future(self) -> Future[Any]:
        """Its result is the list of tensors that came."""
        future: Future[Any] = Future(devices=self._devices)
        # A future's own exception is no error to C++; that of a callback is one to both.
        outcome = future.then(_outcome)
        with self._lock:
            ended = self._ended.is_set()
            # Callbacks wait for what they begin: the futures of that end without them.
            if not ended and self._callbacks.is_here():
                self._nested.append(future)
            elif not ended and self._in_order:
                self._callbacks.add(self, future)
            elif not ended:
                self._futures.append(future)
        if ended:
            self.end_future(future)
        self._drop()
        return outcome

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._failure is None

    def exception(self) -> Optional[Exception]:
        return self._failure

    def result(self) -> Any:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Whom a message came from."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def _drop(self) -> None:
        self._kept.drop(self)

    def __repr__(self) -> str:
        state = "in flight" if not self._ended.is_set() else "done" if self._failure is None else "failed"
        return f"<Work, {self._name}: {state}>"


def _outcome(ended: Future[Any]) -> Any:
    value = ended.value()
    if isinstance(value, Exception):
        raise value
    return value


def all_of(work: Work, count: int, finish: Callable[[], Any]) -> Callable[[Optional[Exception], int], None]:
    """What each of `count` messages is told of its end, with the last of which the work ends. `finish` makes the result."""
    lock = threading.Lock()
    left = count
    failed: list[Exception] = []

    def ended(failure: Optional[Exception], source: int) -> None:
        nonlocal left
        with lock:
            left -= 1
            if failure is not None:
                failed.append(failure)
            first_failure, last = failure is not None and len(failed) == 1, left == 0
        if first_failure:
            work.end(failure)
        elif last and not failed:
            end(source)

    def end(source: int) -> None:
        try:
            result = finish()
        except Exception as error:  # of a tensor that the caller has changed meanwhile
            work.end(error)
        else:
            work.end(None, result, source)
    if count == 0:
        end(-1)
    return ended
