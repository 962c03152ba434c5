"""A parameter of ScheduledOptimizer's, and its gradient: in memory of Mercury's, and while it is under way."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator, Mapping, Optional, Union

import torch

from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._job import Tensor
from mercurystack._operation import Operation
from mercurystack._staging import Leaving, Stage, pin
from mercurystack._tensors import NAMES, over

WIRE_DTYPES = (torch.float16, torch.bfloat16)
_WIRE_BYTES = 2
LEAST_URGENT = 65535  # of priorities

# What may be asked of a tensor without reading its elements. PyTorch's newer versions have no names.
_FACTS = tuple(getattr(torch.Tensor, name).__get__ for name in (
    "shape", "dtype", "device", "layout", "is_sparse", "requires_grad", "ndim", "is_leaf", "grad_fn", "names")
               if hasattr(torch.Tensor, name))
# What zero_grad() of modules and optimizers does before it writes zeros.
_NOTHING = (torch.Tensor.requires_grad_, torch.Tensor.detach_)


class GradientInFlight(torch.Tensor):
    """Stands for a gradient between its sending and its sum. Whoever reads it (clipping by the global norm, a loss
    scaler, a log) waits for all sums first, and is warned once of what that costs."""

    _read: Callable[[], None]
    _zero: Callable[[], None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Optional[Mapping[str, Any]] = None) -> Any:
        if func in _NOTHING:
            return args[0]
        if func is torch.Tensor.zero_:
            args[0]._zero()
            return args[0]
        if func is torch._foreach_zero_:
            return [one.zero_() for one in args[0]]
        if func not in _FACTS:
            for one in _in_flight([*args, *(kwargs or {}).values()]):
                one._read()
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


def _in_flight(values: Any) -> Iterator[GradientInFlight]:
    for value in values:
        if isinstance(value, GradientInFlight):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _in_flight(value)


class ManagedParameter:
    """One parameter, its gradient's memory and its place in a round."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int, context: Context,
                 on_read: Callable[[], None], wire_dtype: Optional[torch.dtype], stage: Optional[Stage]) -> None:
        self.name = name
        self._on_read = on_read
        self.parameter = parameter
        self._dtype = parameter.dtype
        self.group = group  # of the optimizer's groups, which loading a state replaces
        sent_as = wire_dtype if wire_dtype is not None and parameter.element_size() > _WIRE_BYTES else parameter.dtype
        self._stage = stage  # of its GPU
        self._is_apart = sent_as != parameter.dtype or stage is not None  # the gradient does not lie in Mercury's memory
        self.mercury_type = NAMES[sent_as]
        self.array = context.zeros(max(1, parameter.numel()), self.mercury_type)
        if stage is not None:
            pin(self.array)
        self._memory = over(self.array, sent_as)[:parameter.numel()].view_as(parameter)
        self.tensor: Optional[Tensor] = None  # stays so where there are no elements
        self.priority: Optional[int] = None  # known once the forward pass has come by
        self._lay()
        # One round: passes, then sent, then step() makes the update due, then the update ends it.
        self.passes = 0  # backward passes
        self.sent = False
        self.operation: Union[None, Operation, Leaving] = None  # until its sum has been waited for
        self.due: Optional[dict[str, Any]] = None  # the group's options at the time of step()
        self.version = 0  # of its elements, at that time
        self.moves = True  # whether the step is for it
        self.to_zero = False  # when it is updated

    def _lay(self) -> None:
        """The tensor that parameter.grad is: over the memory, unless gradients are converted for the wire, or on a GPU."""
        self.gradient = torch.zeros_like(self.parameter, requires_grad=False) if self._is_apart else self._memory.detach()
        self._leaves = self.gradient  # what a GPU sends
        self.gradient._of_mercury = True  # type: ignore[attr-defined]
        self._address = self.gradient.data_ptr()
        self.in_flight: GradientInFlight = self.gradient.as_subclass(GradientInFlight)
        self.in_flight._read, self.in_flight._zero = self._on_read, self.zero_later

    def collect(self) -> bool:
        """Brings the gradient into Mercury's memory, if it is not there; whether somebody had put it elsewhere. From a GPU
        push() does."""
        found = self.parameter.grad
        if found is self.gradient and not self._is_apart and found.data_ptr() == self._address:
            return False
        if found is self.in_flight:  # it took no part in the last pass
            found = self.gradient
        in_place = found is self.gradient and found.data_ptr() == self._address
        if in_place and not self._is_apart:
            return False
        if found is None:
            (self._memory if self._stage is None else self.gradient).zero_()
            self._leaves = self.gradient
            return False
        if found.dtype != self._dtype or found.shape != self._memory.shape:
            raise self._changed(found)
        self._leaves = found
        if self._stage is None:
            with torch.no_grad():
                self._memory.copy_(found)
        if found is self.gradient and not in_place:  # its data was replaced
            self._lay()
        return not in_place

    def _changed(self, found: torch.Tensor) -> RuntimeError:
        return RuntimeError(f"{self.name}: it was {self._dtype} of shape {tuple(self._memory.shape)} when the ScheduledOptimizer was made, "
                            f"and is {found.dtype} of shape {tuple(found.shape)}: make it behind all that changes the model")

    def has_arrived(self) -> bool:
        """As far as is known: whoever collects completions marks operations."""
        return self.operation is None or self.operation._status is not None

    def push(self) -> None:
        """Sends what was collected."""
        assert self.tensor is not None
        if self._stage is None:
            try:
                self.operation = self.tensor.push_pull(self.priority)
            except MercuryError as failure:
                raise self.named(failure) from None
            except ValueError as failure:  # the job is closed
                raise ValueError(f"the gradient of {self.name}: {failure}") from None
        else:
            push = partial(self.tensor.push_pull, self.priority)
            self.operation = Leaving(self._stage.leave(self._memory, self._leaves, push))

    def named(self, failure: MercuryError) -> MercuryError:
        """The same one, about this parameter."""
        return type(failure)(failure.errno, f"the gradient of {self.name}: {failure.strerror}")

    def arrive(self) -> None:
        """The sum is in Mercury's memory."""
        self.operation = None
        if self._stage is not None:
            self._stage.bring(self.gradient, self._memory)
        elif self._is_apart:
            self.gradient.copy_(self._memory)
        if self.parameter.grad is None:
            self.to_zero = True
        self.to_use()

    def to_use(self) -> None:
        """Where the next backward pass adds to."""
        try:
            self.parameter.grad = self.gradient
        except RuntimeError:  # PyTorch's names nobody
            raise self._changed(self.parameter) from None

    def zero(self) -> None:
        self.gradient.zero_()
        self.to_use()

    def drop(self) -> None:
        """Its round was void."""
        self.due, self.sent, self.passes, self.to_zero = None, False, 0, False
        self.zero()

    def zero_later(self) -> None:
        """Of a gradient that is under way."""
        if self.due is None:
            raise RuntimeError(f"{self.name}: its gradient is on its way to the other workers. step() ends the round; a backward "
                               "pass whose gradients are not for step() belongs into no_sync()")
        self.to_zero = True
