"""Steps of a wrapped optimizer for some of its parameters."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from typing import Any, Callable, Iterator, Optional, Protocol

import torch

from mercurystack._gradient import ManagedParameter

# What PyTorch 2 calls around each step, where it is not empty: in the optimizer, and of all optimizers.
_OWN_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_ALL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
STEP_S = 60.0  # one step of some of the parameters, at most, where another thread waits for it
_TOGETHER = "it needs all gradients together, and cannot update parameters one by one"
_TORCHS = torch.optim.Optimizer.__init__.__code__.co_filename
_is_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: True)


_is_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled",
                                               lambda: torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())

trace_state: Callable[[], object] = torch._C._get_tracing_state  # None: nothing is traced


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Of a group, as they are now: what changes in place is copied."""
    options = dict(group)
    for key, value in group.items():
        if isinstance(value, torch.Tensor):
            options[key] = value.detach().clone()
        elif key != "params":
            options[key] = copy.copy(value)
    return options


def refuse_trace() -> None:
    """RuntimeError: the step would be recorded, and taken with each call of what torch.jit.trace() makes."""
    raise RuntimeError("torch.jit.trace() has come to a module whose step is due, and would record it: flush() first")


@contextlib.contextmanager
def _as_in_step() -> Iterator[None]:
    """Without what the program has around a forward pass."""
    plain = torch.amp.autocast_mode.autocast
    with torch.inference_mode(mode=False), plain("cpu", enabled=False), plain("cuda", enabled=False):  # type: ignore[no-untyped-call]
        yield


def without_record(step: Callable[..., Any]) -> Optional[Callable[..., Any]]:
    """What PyTorch has wrapped in a record for its profiler, which costs as much as the update of a small tensor. None: it is not
    wrapped so, or by somebody else as well."""
    code = getattr(step, "__code__", None)
    if code is None or (code.co_filename, code.co_name) != (_TORCHS, "wrapper"):
        return None
    return getattr(step, "__wrapped__", None)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


class Stepper:
    """Calls the class's step, as a learning-rate scheduler has put a counter of calls around the object's."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._tried = False  # whether the optimizer has updated some of its parameters alone
        self._known: Optional[Callable[..., Any]] = None
        self._bare: Optional[Callable[..., Any]] = None  # of the known one
        self._running: Optional[list[int]] = None  # the thread of the step that runs: another list for each step
        self._all: list[dict[str, Any]] = []  # the groups that are the optimizer's when none runs
        self._hooks = [getattr(optimizer, name) for name in _OWN_HOOKS if hasattr(optimizer, name)]
        of_all = sys.modules[torch.optim.Optimizer.__module__]
        self._hooks += [getattr(of_all, name) for name in _ALL_HOOKS if hasattr(of_all, name)]

    def step(self, groups: list[dict[str, Any]]) -> None:
        """With these instead of the optimizer's, by who has the lock. RuntimeError: it cannot update parameters one by one."""
        optimizer, before = self._optimizer, self._running  # of a step that calls the model, whose parameters have one due
        saved = optimizer.param_groups
        check = None if self._tried else _Before(groups, self._parameters)
        if before is None:
            self._all = saved
        try:
            self._running, optimizer.param_groups = [threading.get_ident()], groups
            step = type(optimizer).step
            if step is not self._known:
                self._known, self._bare = step, without_record(step)
            if self._bare is not None and not (_is_profiled() or any(self._hooks)):
                step = self._bare
            if torch.is_inference_mode_enabled() or _is_any_autocast():
                with _as_in_step():
                    step(optimizer)
            else:
                step(optimizer)
        finally:
            self._running, optimizer.param_groups = before, saved
        if check is not None:
            check.check(type(optimizer).__name__, groups)
            self._tried = bool(check.others)

    @contextlib.contextmanager
    def with_all_groups(self) -> Iterator[None]:
        """For who asks for the optimizer's state within a step, as a signal's handler may."""
        groups, running = self._optimizer.param_groups, self._running
        is_within = running is not None and running[0] == threading.get_ident()
        if is_within:
            self._optimizer.param_groups = self._all
        try:
            yield
        finally:
            if is_within:
                self._optimizer.param_groups = groups

    def reads(self, one: ManagedParameter, lock: _Lock) -> bool:
        """Whether a step reads the gradient, on this thread. Where one runs on another thread, this one waits for the lock.
        RuntimeError: the gradient is none of the step's, or a step waits for this thread, as far as can be seen."""
        running = self._running  # once: another thread's may end at any time
        if running is None:
            return False
        if running[0] == threading.get_ident():
            if one.sent:
                raise RuntimeError(f"{type(self._optimizer).__name__} has read the gradient of {one.name} in its step for other parameters: {_TOGETHER}. "
                                   "Of one that hands steps on to another optimizer, wrap that one")
            return True
        while not lock.acquire(timeout=STEP_S):
            before, running = running, self._running
            if running is before and running is not None:  # all that time the same step: others, and waits for sums, come to an end
                raise RuntimeError(f"the gradient of {one.name} is read while {type(self._optimizer).__name__} takes a step on another thread, which has "
                                   f"not ended for {STEP_S:g} s. If the step waits for this thread, {_TOGETHER}")
        lock.release()
        return False


class _Before:
    """What a step for some parameters must leave as it is."""

    def __init__(self, groups: list[dict[str, Any]], parameters: list[torch.nn.Parameter]) -> None:
        self._groups = [{key: (value, _version_of(value)) for key, value in group.items()} for group in groups]
        self.others: list[tuple[torch.nn.Parameter, int]] = []
        if sum(len(group["params"]) for group in groups) < len(parameters):
            those = {parameter for group in groups for parameter in group["params"]}
            self.others = [(parameter, parameter._version) for parameter in parameters if parameter not in those]

    def check(self, name: str, groups: list[dict[str, Any]]) -> None:
        for old, new in zip(self._groups, groups):
            for key, value in new.items():
                if key not in old or value is not old[key][0] or _version_of(value) != old[key][1]:
                    raise RuntimeError(f"{name} changes '{key}' of its groups with each step: it needs all gradients together, and cannot "
                                       "update parameters one by one")
        if any(parameter._version != version for parameter, version in self.others):
            raise RuntimeError(f"{name} updates parameters that are not in its groups, as one does that hands steps on to another optimizer: "
                               "wrap that one")


def _version_of(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) else 0
