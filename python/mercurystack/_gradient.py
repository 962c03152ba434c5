"""A parameter of ScheduledOptimizer's, and its gradient in memory of Mercury's, of which it is noticed who reads it."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator, Mapping, Optional, Union

import torch

from mercurystack import _native
from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._job import Tensor
from mercurystack._operation import OWN_PRIORITY, Operation
from mercurystack._staging import Leaving, Stage, pin
from mercurystack._tensors import NAMES, over
from mercurystack._torn import is_own

WIRE_DTYPES = (torch.float16, torch.bfloat16)
_WIRE_BYTES = 2
LEAST_URGENT = 65535  # of priorities

# What may be asked of a tensor without reading its elements. PyTorch's newer versions have no names.
_FACTS = tuple(getattr(torch.Tensor, name).__get__ for name in (
    "shape", "dtype", "device", "layout", "is_sparse", "requires_grad", "ndim", "is_leaf", "grad_fn", "names")
               if hasattr(torch.Tensor, name))
# What zero_grad() of modules and optimizers does before it writes zeros.
_NOTHING = (torch.Tensor.requires_grad_, torch.Tensor.detach_)
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Watched(torch.Tensor):
    """Stands for a gradient that is not, or not yet, an average. Of a round whose gradients are on their way, whoever reads it (clipping
    by the global norm, a loss scaler, a log) waits for all sums first, and is warned once of what that costs."""

    _read: Callable[[], None]
    _zero: Callable[[], None]
    _moved: bool  # somebody has put it elsewhere

    def _plain(self) -> torch.Tensor:
        self._read()
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]
            return self.as_subclass(torch.Tensor)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self._plain().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self._plain())

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
            for one in _watched([*args, *(kwargs or {}).values()]):
                one._read()
        if func == _SET_DATA:  # which is made anew each time
            args[0]._moved = True
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


def _watched(values: Any) -> Iterator[Watched]:
    for value in values:
        if isinstance(value, Watched):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _watched(value)


def zero_all(gradients: list[torch.Tensor]) -> None:
    if len(gradients) == 1:
        gradients[0].zero_()
    elif gradients:
        torch._foreach_zero_(gradients)


class ManagedParameter:
    """One parameter, its gradient's memory and its place in a round."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int, context: Context,
                 on_read: Callable[[ManagedParameter], None], wire_dtype: Optional[torch.dtype], stage: Optional[Stage]) -> None:
        self.name = name
        self._on_read = partial(on_read, self)
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
        self._sent_as = sent_as
        self._memory = self._view()
        self._memory_address = self._memory.data_ptr()
        self.tensor: Optional[Tensor] = None  # stays so where there are no elements
        self.priority: Optional[int] = None  # known once the forward pass has come by
        self._lay()
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            self.gradient.copy_(parameter.grad)
        # One round: passes, then sent, then step() makes the update due, then the update ends it.
        self.passes = 0  # backward passes
        self.sent = False
        self.operation: Union[None, Operation, Leaving] = None  # until its sum has been waited for
        self.due: Optional[dict[str, Any]] = None  # the group's options at the time of step()
        self.version = 0  # of its elements, at that time
        self.moves = True  # whether the step is for it
        self.taken_away = False  # the program has put None in its place, before step(); until the update
        self.zeroed = False  # by itself, since step()
        self.to_zero = False  # when it is updated

    def _view(self) -> torch.Tensor:
        return over(self.array, self._sent_as)[:self.parameter.numel()].view_as(self.parameter)

    @torch.inference_mode(False)  # type: ignore[no-untyped-call]  # whoever zeroes or evaluates
    def _lay(self) -> None:
        """The tensors that parameter.grad is: over the memory, unless gradients are converted for the wire, or on a GPU."""
        self._find_memory()
        self.gradient = torch.zeros_like(self.parameter, requires_grad=False) if self._is_apart else self._memory.detach()
        self._leaves = self.gradient  # what a GPU sends
        self._address = self.gradient.data_ptr()
        self.watched: Watched = self.gradient.as_subclass(Watched)
        self.watched._read, self.watched._zero, self.watched._moved = self._on_read, self.zero_later, False
        for one in (self.gradient, self.watched):
            one._of_mercury = id(one)  # type: ignore[attr-defined]  # not a copy's

    def _find_memory(self) -> None:
        if self._memory.data_ptr() != self._memory_address:  # somebody has moved what shares its elements, as share_memory() does
            self._memory = self._view()

    def collect(self) -> bool:
        """Brings the gradient into Mercury's memory, if it is not there; whether somebody had put it elsewhere. From a GPU
        push() does."""
        found = self.parameter.grad
        gradient, watched = self.gradient, self.watched
        in_place = (found is watched and not watched._moved or found is gradient) and gradient.data_ptr() == self._address
        if in_place and not self._is_apart:
            return False
        self._refuse_anothers(found)
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]
            return self._bring(gradient if in_place else found, in_place)

    def _refuse_anothers(self, found: Optional[torch.Tensor]) -> None:
        if isinstance(found, Watched) and found._read is not self._on_read:
            raise RuntimeError(f"{self.name}: another parameter's gradient is in its place, and may be on its way to the other workers: put a "
                               "clone() of it there")

    def _bring(self, found: Optional[torch.Tensor], in_place: bool) -> bool:
        if found is None:  # as it zeroes
            self.to_use()
            (self._memory if self._stage is None else self.gradient).zero_()
            self._leaves = self.gradient
            return False
        if found.dtype != self._dtype or found.shape != self._memory.shape:
            raise self._changed(found)
        self._find_memory()
        if self._stage is None:  # first: what a signal's handler cuts off is done again, and finds it where it was
            self._memory.copy_(found.detach())
        self._leaves = found
        if not in_place:
            if found is self.watched or found is self.gradient:
                self._lay()
                self._leaves = found
            self.parameter.grad = self.watched
        return not in_place

    def _changed(self, found: torch.Tensor) -> RuntimeError:
        return RuntimeError(f"{self.name}: it was {self._dtype} of shape {tuple(self._memory.shape)} when the ScheduledOptimizer was made, "
                            f"and is {found.dtype} of shape {tuple(found.shape)}: make it behind all that changes the model")

    def push(self) -> None:
        """Sends what was collected."""
        tensor, priority = self.tensor, self.priority
        assert tensor is not None
        if self._stage is None:
            try:
                self.operation = tensor._job._submit(tensor, _native.PUSH_PULL, OWN_PRIORITY if priority is None else priority)
            except (MercuryError, ValueError) as failure:
                if not is_own(failure):
                    raise
                if isinstance(failure, MercuryError):
                    raise self.named(failure) from None
                raise ValueError(f"the gradient of {self.name}: {failure}") from None  # the job is closed
        else:
            push = partial(tensor.push_pull, priority)
            self.operation = Leaving(self._stage.leave(self._memory, self._leaves, push))

    def named(self, failure: MercuryError) -> MercuryError:
        """The same one, about this parameter."""
        return type(failure)(failure.errno, f"the gradient of {self.name}: {failure.strerror}")

    def arrive(self) -> None:
        """The sum is in Mercury's memory. Where a signal's handler interrupts it, it can be called again."""
        operation, was_due, found = self.operation, self.due is not None, self.parameter.grad
        if operation is None:  # a signal's handler has called flush() meanwhile
            return
        if found is self.watched and not self._is_apart:  # mostly
            self._show(self.gradient)
            self.operation = None
            return
        in_place = found is self.watched or found is self.gradient
        if not in_place:
            self._refuse_anothers(found)
        zeroes = self.to_zero or found is None
        if self._is_apart and self.operation is operation:
            if self._stage is None:
                self.gradient.copy_(self._memory)
            else:
                self._stage.bring(self.gradient, self._memory)
        if was_due and self.due is None:  # a signal's handler has called flush() meanwhile
            if self._is_apart and zeroes:
                self.gradient.zero_()
            return
        if found is None:
            self.to_zero, self.taken_away = True, not was_due
            in_place = True
        if in_place:
            self._show(self.gradient)
        self.operation = None

    def take_back(self) -> None:
        """Behind its update: what the program has put in its place stays what the next backward pass adds to."""
        found, gradient = self.parameter.grad, self.gradient
        if found is not gradient and found is not self.watched and found is not None:
            gradient.copy_(found)
        self.to_zero = False
        self._show(self.watched)

    def to_use(self) -> None:
        """Where the next backward pass adds to."""
        self._show(self.watched)

    def to_read(self) -> None:
        self._show(self.gradient)

    def _show(self, gradient: torch.Tensor) -> None:
        try:
            self.parameter.grad = gradient
        except RuntimeError as failure:  # PyTorch's names nobody
            if not is_own(failure):
                raise
            raise self._changed(self.parameter) from None

    def zero(self) -> None:
        if self.watched._moved or self.gradient.data_ptr() != self._address:
            self._lay()
        self.gradient.zero_()
        self.to_zero = False
        self.to_use()

    def drop(self) -> None:
        """Its round was void."""
        self.due, self.sent, self.passes = None, False, 0
        self.to_zero = self.taken_away = self.zeroed = False
        self.zero()

    def zero_later(self) -> None:
        """By somebody who zeroes gradients one by one; later, where it is under way."""
        before, self.zeroed, self.to_zero = self.to_zero, True, True  # first: a signal's handler may call flush() at any time
        if self.due is not None:
            return
        self.to_zero = before
        if self.sent:
            raise RuntimeError(f"{self.name}: its gradient is on its way to the other workers. step() ends the round; a backward "
                               "pass whose gradients are not for step() belongs into no_sync()")
        self.zero()
