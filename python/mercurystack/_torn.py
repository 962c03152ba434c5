"""What an exception cut off, a signal's handler's or the wrapped optimizer's: nobody knows how much of it was done, and what follows is
refused. Mercury's own errors come before anything is changed, or are repeated by whoever comes next.

Whoever catches one calls nothing before it has noted it: with each call another signal may come."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Iterator, NoReturn, Optional, Protocol, Sequence, TypeVar, cast

from mercurystack._errors import MercuryError

if TYPE_CHECKING:
    from mercurystack._gradient import ManagedParameter

Torn = tuple[str, Sequence["ManagedParameter"], BaseException]  # what was cut off, of which parameters, and by what

_NAMED = 3  # parameters in an error
_Call = TypeVar("_Call", bound=Callable[..., Any])


def is_own(failure: BaseException) -> bool:
    """Whether Mercury has raised it below the caller, and no handler or hook of the program's: one that another thread puts into this
    one has no frame of the program's, either, and passes for Mercury's if it is of these classes."""
    trace = failure.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            return False
        trace = trace.tb_next
    return isinstance(failure, _KINDS) and not isinstance(failure, RecursionError)


def is_of_arguments(failure: BaseException) -> bool:
    """Whether the call itself is wrong, and has not begun."""
    trace = failure.__traceback__
    return isinstance(failure, TypeError) and trace is not None and trace.tb_next is None


_OWN = (os.path.dirname(is_own.__code__.co_filename) + os.sep, contextlib.contextmanager.__code__.co_filename)  # as tracebacks have it
_KINDS = (MercuryError, RuntimeError, ValueError, FloatingPointError)


def refuse(torn: Torn) -> NoReturn:
    what, of, failure = torn
    names = ", ".join(one.name for one in of[:_NAMED]) + ", ..." * (len(of) > _NAMED)
    said = f": {failure}" if str(failure) else ""
    raise RuntimeError(f"{what} for {names} was cut off by {type(failure).__name__}{said}; how much of it was done is not known. Start all "
                       "workers again, from a checkpoint") from failure


class Tearable(Protocol):
    """`_is_due` is true where anything is torn, too: whoever uses the model asks for that first."""

    _torn: Optional[Torn]
    _is_due: bool
    _parameters: list[ManagedParameter]


def tears(what: str) -> Callable[[_Call], _Call]:
    """Of a method that does all or nothing."""
    def decorate(call: _Call) -> _Call:
        @functools.wraps(call)
        def whole(self: Tearable, *arguments: Any, **named: Any) -> Any:
            if self._torn is not None:
                refuse(self._torn)
            try:
                return call(self, *arguments, **named)
            except BaseException as failure:
                if self._torn is None:
                    self._torn, self._is_due = (what, self._parameters, failure), True
                    if is_own(failure) or is_of_arguments(failure):
                        self._torn = None
                raise
        return cast(_Call, whole)
    return decorate


def tears_backward(call: Callable[[Any, ManagedParameter], None]) -> Callable[..., None]:
    """As tears(), of a hook that each gradient calls: without what arguments of any kind cost."""
    @functools.wraps(call)
    def whole(self: Tearable, one: ManagedParameter, *_: Any) -> None:
        if self._torn is not None:
            refuse(self._torn)
        try:
            call(self, one)
        except BaseException as failure:
            if self._torn is None:
                self._torn, self._is_due = ("the backward pass", (one,), failure), True
                if is_own(failure):
                    self._torn = None
            raise
    return whole


class Iterations(Iterator[int]):
    """A generator's numbers. What has ended that is raised by whoever asks for another: training does not end in silence."""

    def __init__(self, of: Tearable, numbers: Iterator[int]) -> None:
        self._of, self._numbers = of, numbers
        self._ended: Optional[BaseException] = None

    def __next__(self) -> int:
        if self._of._torn is not None:
            refuse(self._of._torn)
        if self._ended is not None:
            raise self._ended
        try:
            return next(self._numbers)
        except StopIteration:
            raise
        except BaseException as failure:
            self._of._torn, self._of._is_due = ("iterations()", self._of._parameters, failure), True
            if is_own(failure):
                self._of._torn, self._ended = None, failure
            raise
