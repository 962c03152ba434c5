"""Steps of a wrapped optimizer for some of its parameters."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional

import torch

# What PyTorch 2 calls around each step, where it is not empty: in the optimizer, and of all optimizers.
_OWN_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_ALL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_TORCHS = torch.optim.Optimizer.__init__.__code__.co_filename
_is_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: True)


def without_record(step: Callable[..., Any]) -> Optional[Callable[..., Any]]:
    """What PyTorch has wrapped in a record for its profiler, which costs as much as the update of a small tensor. None: it is not
    wrapped so, or by somebody else as well."""
    code = getattr(step, "__code__", None)
    if code is None or (code.co_filename, code.co_name) != (_TORCHS, "wrapper") or not getattr(step, "hooked", False):
        return None
    return getattr(step, "__wrapped__", None)


class Stepper:
    """Calls the class's step, as a learning-rate scheduler has put a counter of calls around the object's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._tried = False  # whether the optimizer has updated a parameter by itself
        self._known: Optional[Callable[..., Any]] = None
        self._bare: Optional[Callable[..., Any]] = None  # of the known one
        self._hooks = [getattr(optimizer, name) for name in _OWN_HOOKS if hasattr(optimizer, name)]
        of_all = sys.modules[torch.optim.Optimizer.__module__]
        self._hooks += [getattr(of_all, name) for name in _ALL_HOOKS if hasattr(of_all, name)]

    def step(self, groups: list[dict[str, Any]]) -> None:
        """With these instead of the optimizer's. RuntimeError: it cannot update parameters one by one."""
        optimizer = self._optimizer
        before = None if self._tried else [dict(group) for group in groups]
        saved, optimizer.param_groups = optimizer.param_groups, groups
        try:
            step = type(optimizer).step
            if step is not self._known:
                self._known, self._bare = step, without_record(step)
            if self._bare is None or _is_profiled() or any(self._hooks):
                step(optimizer)
            else:
                self._bare(optimizer)
        finally:
            optimizer.param_groups = saved
        if before is not None:
            self._check(before, groups)

    def _check(self, before: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
        for old, new in zip(before, groups):
            for key in new:
                if key not in old or new[key] is not old[key]:
                    raise RuntimeError(f"{type(self._optimizer).__name__} changes '{key}' of its groups with each step: it needs "
                                       "all gradients together, and cannot update parameters one by one")
        self._tried = True
