"""Hooks in a model: they tell ScheduledOptimizer what the forward and the backward pass come by."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import attrgetter, eq
from typing import Any, Callable, Iterator, Mapping, Optional, Protocol

import torch
from torch.nn.modules import module as torch_module

from mercurystack._gradient import ManagedParameter
from mercurystack._torn import is_own


class Listener(Protocol):
    def _on_forward(self, place: Place, *_: Any) -> None: ...

    def _on_forward_end(self) -> None: ...

    def _on_gradient(self, one: ManagedParameter, *_: Any) -> None: ...

    def _on_gradient_again(self, one: ManagedParameter) -> None: ...

    def flush(self) -> None: ...


_PRE_HOOKS = attrgetter("_forward_pre_hooks")


def _no_hook(*_: Any) -> None:
    """What a copy of a model has in a hook's place, and one that was saved whole and loaded."""


def _get_no_hook() -> Callable[..., None]:
    return _no_hook


def at_end_of_backward(call: Callable[[], None]) -> None:
    """RuntimeError: no backward pass is under way on this thread."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _nothing() -> None:
    pass


def is_backward() -> bool:
    """Whether one is under way on this thread."""
    try:
        at_end_of_backward(_nothing)
    except RuntimeError as failure:
        if not is_own(failure):
            raise
        return False
    return True


class _Hook:
    """Of one module. Copies of it, of an average of weights for example, are nobody's to watch."""

    __name__ = "mercury_hook"  # torch.jit.script() asks for it

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> Any:
        return _get_no_hook, ()


class _ForwardHook(partial):  # type: ignore[type-arg]
    """As the others, but that no call of Python's is to cost time between."""

    __name__ = "mercury_hook"

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> Any:
        return _get_no_hook, ()


class Place:
    """A module, and the parameters that have to be up to date when the forward pass comes to it."""

    def __init__(self, name: str, module: torch.nn.Module, of: Mapping[torch.nn.Parameter, ManagedParameter]) -> None:
        self.name = name
        self._module, self._of = module, of
        self.parameters: list[ManagedParameter] = []
        self.frozen: list[tuple[str, torch.nn.Parameter]] = []  # which the optimizer has too
        self.called = False
        self.hook = 0  # its number

    def all(self) -> list[ManagedParameter]:
        """Also those of the modules in it."""
        return [self._of[one] for one in self._module.parameters() if one in self._of]

    def begin(self, listener: Listener) -> Any:
        handle = self._module.register_forward_pre_hook(_ForwardHook(listener._on_forward, self))
        self.hook = handle.id
        self.come_first()
        return handle

    def come_first(self) -> bool:
        """Before the hooks that compute weights from parameters, as weight_norm does. False: others came before it until now."""
        hooks: Any = self._module._forward_pre_hooks
        if self.hook not in hooks:  # somebody has taken it away
            return True
        for number, hook in hooks.items():
            if number == self.hook:
                return True
            if not isinstance(hook, _ForwardHook):  # nor another ScheduledOptimizer's
                break
        hooks.move_to_end(self.hook, last=False)
        return False

    def check_first(self) -> None:
        """Where nothing was called around it, which would have put its hook first, or have taken all steps."""
        if next(iter(self._module._forward_pre_hooks), None) == self.hook and not torch_module._global_forward_pre_hooks:
            return
        if not self.come_first() or torch_module._global_forward_pre_hooks:
            raise RuntimeError(f"{self.name or 'the model'}: a forward pre-hook comes before ScheduledOptimizer's (prepend=True, or one for all modules), which may "
                               "have read parameters whose step was not taken yet. Call the model that it was made with, not its parts, or flush() first")

    def check_frozen(self) -> None:
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise RuntimeError(f"{name}: it was frozen when the ScheduledOptimizer was made, and wants a gradient now: close() "
                                   "that, and make another with another first_number")


class Watch:
    """The hooks, until they are removed."""

    def __init__(self, model: torch.nn.Module, managed: list[ManagedParameter], optimized: set[torch.nn.Parameter],
                 listener: Listener) -> None:
        self._places: dict[str, Place] = {}
        self._handles: list[Any] = []
        self._nodes: list[Any] = []
        self._modules: list[torch.nn.Module] = []  # of the places
        self._first: list[int] = []  # their hooks
        self.model = model
        of = {one.parameter: one for one in managed}
        self._handles.append(model.register_forward_hook(_Hook(lambda *_: listener._on_forward_end())))
        for name, module in model.named_modules():
            if any(parameter in optimized for parameter in module.parameters()):
                place = self._places[name] = Place(name, module, of)
                for own, parameter in module.named_parameters(name, recurse=False):
                    if parameter in of:
                        place.parameters.append(of[parameter])
                    elif parameter in optimized:
                        place.frozen.append((own, parameter))
                self._watch(module, place, listener)
                self._modules.append(module)
                self._first.append(place.hook)
        for one in managed:
            # The parameter's own hooks are called where torch.autograd.grad() computes its gradient, too. The next pass that has the parameter
            # finds the node again while somebody keeps it.
            with torch.enable_grad():
                node: Any = one.parameter.expand_as(one.parameter).grad_fn.next_functions[0][0]
            self._nodes.append(node)
            self._handles.append(node.register_prehook(partial(_before_accumulation, listener, one)))
            accumulated = getattr(one.parameter, "register_post_accumulate_grad_hook", node.register_hook)  # PyTorch 1 has it of the node alone
            self._handles.append(accumulated(partial(listener._on_gradient, one)))

    def _watch(self, module: torch.nn.Module, place: Place, listener: Listener) -> None:
        def flush(*_: Any) -> None:
            listener.flush()
        self._handles += [place.begin(listener), module._register_state_dict_hook(_Hook(flush)),  # type: ignore[no-untyped-call]
                          module._register_load_state_dict_pre_hook(_Hook(flush))]  # type: ignore[no-untyped-call]

    def come_first(self) -> None:
        """All the model's hooks, at the beginning of a pass, before anything of it is used."""
        first: Iterator[Any] = map(next, map(iter, map(_PRE_HOOKS, self._modules)), repeat(None))  # type: ignore[misc]
        if not all(map(eq, first, self._first)):
            for place in self._places.values():
                place.come_first()

    def is_late(self) -> bool:
        """Hooks for all modules come before the model's, whatever these do."""
        return bool(torch_module._global_forward_pre_hooks)

    def place_of(self, one: ManagedParameter) -> Optional[Place]:
        """For a parameter that is read without a call of its module, as attention reads its output projection: the
        nearest module around it that was called."""
        path = one.name.split(".")[:-1]
        for depth in range(len(path), -1, -1):
            place = self._places.get(".".join(path[:depth]))
            if place is not None and place.called:
                return place
        return None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()


def _before_accumulation(listener: Listener, one: ManagedParameter, gradients: tuple[Optional[torch.Tensor], ...]) -> None:
    if gradients[0] is None:  # of a function that has none for it
        return
    if gradients[0].is_sparse:
        raise RuntimeError(f"{one.name}: its gradient is sparse, and would be sent whole: make the layer with sparse=False")
    if one.sent:
        listener._on_gradient_again(one)
