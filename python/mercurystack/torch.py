"""PyTorch: gradients go out as they are ready, and the next forward pass waits for each layer's own sum alone.

    optimizer = ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, context, job)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()   # each gradient is sent from here as it is complete
        optimizer.step()                          # returns at once

A parameter is updated when its own sum is back and the forward pass comes to its module. Gradients lie in memory of
Mercury's; their priority is the place of their parameter in the forward pass, so that what the next pass needs first
comes back first (Duan et al., TPDS 2023, sections II and IV).
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from typing import Any, Callable, Iterator, Mapping, Optional

import numpy as np
import torch

from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._job import Job, Tensor
from mercurystack._operation import Operation

# NumPy's type of the same width, and Mercury's name.
_DTYPES = {torch.float32: ("float32", "float32"), torch.float64: ("float64", "float64"),
           torch.float16: ("float16", "float16"), torch.bfloat16: ("int16", "bfloat16")}
_BROADCAST = 1 << 30  # the number of the tensor of first weights, behind those of gradients


# What may be asked of a tensor without reading its elements.
_FACTS = tuple(getattr(torch.Tensor, name).__get__ for name in (
    "shape", "dtype", "device", "layout", "is_sparse", "requires_grad", "ndim", "is_leaf", "grad_fn", "names"))


class _GradientInFlight(torch.Tensor):
    """Stands for a gradient between its sending and its sum. Whoever reads it (clipping by the global norm, a loss
    scaler, a log) waits for all sums first, and is warned once of what that costs."""

    _wait: Callable[[], None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Optional[Mapping[str, Any]] = None) -> Any:
        if func not in _FACTS:
            for one in _gradients_of(args):
                one._wait()
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


def _gradients_of(values: Any) -> Iterator[_GradientInFlight]:
    for value in values:
        if isinstance(value, _GradientInFlight):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _gradients_of(value)


class _Parameter:
    """One parameter, its gradient's memory and its place in a round."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, group: int, gradient: torch.Tensor) -> None:
        self.name = name
        self.parameter = parameter
        self.group = group  # of the optimizer's groups, which loading a state replaces
        self.gradient = gradient
        self.tensor: Optional[Tensor] = None
        self.priority: Optional[int] = None  # known once the forward pass has come by
        # One round: passes, then sent, then step() makes the update due, then the update ends it.
        self.passes = 0  # backward passes
        self.sent = False
        self.operation: Optional[Operation] = None  # until its sum has been waited for
        self.due: Optional[dict[str, Any]] = None  # the group's options at the time of step()
        self.to_zero = False  # when it is updated


class ScheduledOptimizer(torch.optim.Optimizer):
    """An optimizer around `optimizer`, for the parameters of `model` that it has.

    context, job: this worker's. Both are the caller's to close, after the last use of this.
    backward_passes_per_step: gradients are sent with the last of so many. See also no_sync().
    first_number: of the tensors that it declares, one for each parameter; for a second optimizer in the same job.
    broadcast: worker 0's parameters and buffers go to all first.

    All workers make it with the same model. From step() until the forward pass comes by, a parameter has its old
    value: flush() updates all of them now, and state_dict() of both does so by itself.

    Errors: ValueError names the parameter that cannot be had (not on the CPU, no floating-point type, not in the
    model); MercuryError as in docs/api.md, with the parameter's name where it is about one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, context: Context, job: Job, *,
                 backward_passes_per_step: int = 1, first_number: int = 0, broadcast: bool = True) -> None:
        # The base's initialiser would make groups and state of its own; both are the optimizer's.
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS evaluates the model several times a step: it cannot update parameters one by one")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step: expected 1 or more, got {backward_passes_per_step}")
        self._optimizer = optimizer
        self._job = job
        self._passes = backward_passes_per_step
        self._sends = True
        self._warned = False
        self._next_priority = 0
        self._of: dict[torch.nn.Parameter, _Parameter] = {}
        self._parameters = self._manage(model, context)
        self._declare(first_number)
        if broadcast:
            self._broadcast(model, context, first_number)
        self._nodes: list[Any] = []
        self._watch(model)
        self.defaults = optimizer.defaults

    # ---- making it -----------------------------------------------------------------------------

    def _manage(self, model: torch.nn.Module, context: Context) -> list[_Parameter]:
        names = {parameter: name for name, parameter in model.named_parameters()}
        managed: list[_Parameter] = []
        for place, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if parameter not in names:
                    raise ValueError(f"a parameter of shape {tuple(parameter.shape)} is the optimizer's and not the model's")
                if not parameter.requires_grad:
                    continue
                name = names[parameter]
                if parameter.device.type != "cpu" or parameter.dtype not in _DTYPES:
                    raise ValueError(f"{name}: expected floating point on the CPU, got {parameter.dtype} on "
                                     f"{parameter.device}")
                numpy_type, _ = _DTYPES[parameter.dtype]
                memory = torch.from_numpy(context.zeros(max(1, parameter.numel()), numpy_type))
                gradient = memory.view(parameter.dtype)[:parameter.numel()].view_as(parameter)
                managed.append(_Parameter(name, parameter, place, gradient))
        # Whatever order the optimizer has them in, the model's is the same on every worker.
        order = {name: place for place, name in enumerate(names.values())}
        managed.sort(key=lambda one: order[one.name])
        self._of = {one.parameter: one for one in managed}
        return managed

    def _declare(self, first_number: int) -> None:
        by_type: dict[str, dict[int, Any]] = defaultdict(dict)
        for place, one in enumerate(self._parameters):
            numpy_type, name = _DTYPES[one.parameter.dtype]
            if one.gradient.numel():
                array = one.gradient.view(-1).view(getattr(torch, numpy_type)).numpy()
                by_type[name][first_number + place] = array
        for name, arrays in sorted(by_type.items()):
            try:
                tensors = self._job.declare_all(arrays, op="average", dtype=name)
            except MercuryError as failure:
                raise self._with_names(failure, first_number) from None
            for number, tensor in tensors.items():
                self._parameters[number - first_number].tensor = tensor

    def _with_names(self, failure: MercuryError, first_number: int) -> MercuryError:
        text = failure.strerror or ""
        words = text.replace(",", " ").replace(":", " ").split()
        for place, word in enumerate(words[:-1]):
            number = words[place + 1]
            if word == "tensor" and number.isdigit() and 0 <= int(number) - first_number < len(self._parameters):
                text += f" (the gradient of {self._parameters[int(number) - first_number].name})"
                break
        return type(failure)(failure.errno, text)

    def _broadcast(self, model: torch.nn.Module, context: Context, first_number: int) -> None:
        """As bytes, which arrive as they are."""
        values = [one for one in (*model.parameters(), *model.buffers()) if one.numel()]
        if not values:
            return
        parts = [value.detach().contiguous().view(-1).view(torch.uint8) for value in values]
        sizes = [part.numel() for part in parts]
        bytes_ = context.zeros(sum(sizes), "uint8")
        memory = torch.from_numpy(bytes_)
        torch.cat(parts, out=memory)
        self._job.declare(_BROADCAST + first_number, bytes_).broadcast(0).wait()
        with torch.no_grad():
            for value, part in zip(values, torch.split(memory, sizes)):
                value.copy_(part.clone().view(value.dtype).view_as(value))

    def _watch(self, model: torch.nn.Module) -> None:
        for module in model.modules():
            parameters = list(module.parameters(recurse=False))
            if parameters:
                module.register_forward_pre_hook(self._before_forward(parameters))
        for one in self._parameters:
            one.parameter.grad = one.gradient
            with torch.enable_grad():
                accumulate = one.parameter.expand_as(one.parameter).grad_fn.next_functions[0][0]
            self._nodes.append(accumulate)  # else it would go, and its hook with it
            accumulate.register_hook(self._after_accumulation(one))
        # Of the model as users know it: what both do is about gradients and values that may be under way.
        state_dict = model.state_dict

        def flushed_state_dict(*args: Any, **kwargs: Any) -> Any:
            self.flush()
            return state_dict(*args, **kwargs)

        def zero_grad(set_to_none: bool = False) -> None:
            self.zero_grad()
        model.state_dict = flushed_state_dict  # type: ignore[assignment]
        model.zero_grad = zero_grad  # type: ignore[assignment]

    # ---- an iteration --------------------------------------------------------------------------

    def _before_forward(self, parameters: list[torch.nn.Parameter]) -> Callable[..., None]:
        def hook(module: torch.nn.Module, _: Any) -> None:
            for parameter in parameters:
                one = self._of.get(parameter)
                if one is not None:
                    self._meet(one)
                elif parameter.requires_grad:
                    raise RuntimeError(f"a parameter of {type(module).__name__}, of shape {tuple(parameter.shape)}, wants a "
                                       "gradient and is not the optimizer's: it was added, or thawed, afterwards")
        return hook

    def _meet(self, one: _Parameter) -> None:
        """The forward pass has come to a module of it."""
        if one.priority is None:
            one.priority = min(self._next_priority, 65535)
            self._next_priority += 1
        if one.due is not None:
            self._update(one, one.due)
        elif one.parameter.grad is None and not one.sent:  # as `parameter.grad = None` zeroes
            one.gradient.zero_()
            one.parameter.grad = one.gradient

    def _after_accumulation(self, one: _Parameter) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if one.due is not None:
                raise RuntimeError(f"{one.name}: it was used without a call of the module that it belongs to, so that its last "
                                   "step was not taken yet. Call the module, or flush() before the forward pass")
            if one.sent:
                raise RuntimeError(f"{one.name}: its gradient was computed again before step(), when the first was on its way. "
                                   "To add gradients up, use no_sync() or backward_passes_per_step")
            one.passes += 1
            if self._sends and one.passes >= self._passes:
                self._send(one)
        return hook

    def _send(self, one: _Parameter) -> None:
        one.sent = True
        if one.parameter.grad is not one.gradient:  # somebody has put another there, or none
            if one.parameter.grad is None:
                one.gradient.zero_()
            else:
                with torch.no_grad():
                    one.gradient.copy_(one.parameter.grad)
        if one.tensor is None:  # it has no elements
            return
        one.operation = one.tensor.push_pull(one.priority)
        in_flight = one.gradient.as_subclass(_GradientInFlight)
        in_flight._wait = self._wait_for_reader
        one.parameter.grad = in_flight

    def _take(self, one: _Parameter) -> None:
        """Waits for its sum, if one is on its way."""
        if one.operation is not None:
            try:
                one.operation.wait()
            except MercuryError as failure:
                raise type(failure)(failure.errno, f"the gradient of {one.name}: {failure.strerror}") from None
            one.operation = None
            if one.parameter.grad is None:
                one.to_zero = True
            one.parameter.grad = one.gradient

    def _update(self, one: _Parameter, options: dict[str, Any]) -> None:
        self._take(one)
        one.due, one.sent, one.passes = None, False, 0
        if one.parameter.requires_grad:
            groups = self._optimizer.param_groups
            self._optimizer.param_groups = [{**options, "params": [one.parameter]}]
            try:
                # Of the class: a learning-rate scheduler has put a counter of calls around the object's.
                type(self._optimizer).step(self._optimizer)
            finally:
                self._optimizer.param_groups = groups
        if one.to_zero:
            one.gradient.zero_()
            one.to_zero = False

    def _wait_for_reader(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn("gradients are read before the next forward pass: all of them are waited for there, and nothing "
                          "overlaps it", stacklevel=4)
        self.synchronize()

    # ---- for the training loop -----------------------------------------------------------------

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Makes the step due. It is taken parameter by parameter, as their modules come in the next forward pass."""
        if closure is not None:
            raise ValueError("a closure would evaluate the model within the step: that is not supported")
        self.flush()  # of modules that were not called since
        groups = [dict(group) for group in self._optimizer.param_groups]  # a scheduler may change them meanwhile
        for one in self._parameters:
            if not one.sent:  # it took no part in the loss: the others wait for ours all the same
                self._send(one)
            one.due = groups[one.group]

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Gradients are zero when the next backward pass begins. They keep their memory: set_to_none is as False."""
        for one in self._parameters:
            if one.due is not None:
                one.to_zero = True
            elif one.sent:
                raise RuntimeError(f"{one.name}: its gradient is on its way to the other workers. step() ends the round")
            else:
                one.gradient.zero_()
                one.parameter.grad = one.gradient
                one.passes = 0

    def synchronize(self) -> None:
        """Waits for the sums of all gradients that are on their way: they can be read, and changed, until step()."""
        for one in self._parameters:
            self._take(one)

    def flush(self) -> None:
        """Takes the step that is due, for all parameters."""
        for one in self._parameters:
            if one.due is not None:
                self._update(one, one.due)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in it add to gradients without sending them."""
        before, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = before

    # ---- as an optimizer -----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._optimizer.state

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.flush()
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise RuntimeError("parameters cannot be added: make another ScheduledOptimizer, with another first_number")

    def __repr__(self) -> str:
        return f"ScheduledOptimizer({self._optimizer!r})"
