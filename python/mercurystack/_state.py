"""What an iteration begins with: weights, buffers, the optimizer's state, and what else the program carries from one to the next."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any, Protocol, Sequence

import torch

from mercurystack import _agreement


class HasState(Protocol):
    """As learning-rate schedulers are."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class State:
    """Of one worker. Parameters and the optimizer's state change only in steps that all take; what a forward pass and the
    program change beside them is remembered, as an iteration may be done again."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, carried: Sequence[HasState], lines: list[str]) -> None:
        self._model, self._optimizer, self._carried = model, optimizer, carried
        self._lines = lines  # what models have to have in common
        self._remembered: tuple[list[torch.Tensor], list[dict[str, Any]], list[Any]] = ([], [], [])

    def remember(self) -> None:
        """As an iteration begins."""
        self._remembered = ([one.detach().clone() for one in self._model.buffers()], self._options(),
                            [copy.deepcopy(one.state_dict()) for one in self._carried])

    def restore(self) -> None:
        """As it began."""
        self._set(list(self._model.buffers()), *copy.deepcopy(self._remembered))

    def pack(self, iteration: int) -> bytes:
        """Before `iteration`, for another worker."""
        file = io.BytesIO()
        torch.save({"lines": self._lines, "iteration": iteration, "options": self._options(),
                    "values": [one.detach() for one in self._values()],
                    "states": [self._optimizer.state.get(one) for one in self._parameters()],
                    "carried": [one.state_dict() for one in self._carried]}, file)
        return file.getvalue()

    def unpack(self, data: bytes, sender: int, rank: int) -> int:
        """The iteration that it is before. ValueError: it is another model's."""
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        _agreement.refuse_difference(found["lines"], self._lines, sender, rank)
        if len(found["carried"]) != len(self._carried):
            raise ValueError(f"carried: worker {sender} has {len(found['carried'])} objects in it, worker {rank} {len(self._carried)}")
        self._set(self._values(), found["values"], found["options"], found["carried"])
        for parameter, state in zip(self._parameters(), found["states"]):
            if state is None:
                self._optimizer.state.pop(parameter, None)
            else:
                self._optimizer.state[parameter] = state
        iteration: int = found["iteration"]
        return iteration

    def _set(self, values: list[torch.Tensor], come: list[torch.Tensor], options: list[dict[str, Any]], carried: list[Any]) -> None:
        with torch.no_grad():
            for value, new in zip(values, come):
                value.copy_(new)
        for one, state in zip(self._carried, carried):
            one.load_state_dict(state)
        for group, own in zip(self._optimizer.param_groups, options):  # last: a scheduler's state may not have the rate itself
            group.update(own)

    def _options(self) -> list[dict[str, Any]]:
        return [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups]

    def _values(self) -> list[torch.Tensor]:
        return list(itertools.chain(self._model.parameters(), self._model.buffers()))

    def _parameters(self) -> list[torch.Tensor]:
        return [one for group in self._optimizer.param_groups for one in group["params"]]
