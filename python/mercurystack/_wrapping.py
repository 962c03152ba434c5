"""What ScheduledOptimizer shows of the optimizer that it is around."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

import torch

from mercurystack._stepping import Stepper


class WrappedOptimizer(torch.optim.Optimizer):
    """Its groups and its state are the inner one's. Whoever makes one sets _optimizer, and does not call the base's initialiser, which
    would make groups and state of its own."""

    _optimizer: torch.optim.Optimizer
    _stepper: Stepper

    def flush(self) -> None:
        """Takes the step that is due, for all parameters."""
        raise NotImplementedError

    def _flush_at_end(self) -> None:
        """Of its job. What fails is raised again by who uses the model next."""
        with contextlib.suppress(Exception):
            self.flush()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._optimizer.state

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def _behind_flush(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def flushed(*arguments: Any, **named: Any) -> Any:
            self.flush()
            with self._stepper.with_all_groups():
                return call(*arguments, **named)
        return flushed

    def register_step_pre_hook(self, hook: Any) -> Any:
        raise RuntimeError("a step is taken in parts: hooks around it are not called for all of it at once")

    register_step_post_hook = register_step_pre_hook

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a ScheduledOptimizer cannot be copied or pickled: its state_dict() can")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise RuntimeError("parameters cannot be added: make another ScheduledOptimizer, with another first_number")

    def __repr__(self) -> str:
        return f"ScheduledOptimizer({self._optimizer!r})"
