"""Making a ScheduledOptimizer: what it refuses, the parameters that it takes, and the tensors that it declares for them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any, Callable, Optional

import torch

from mercurystack import _agreement, _meeting
from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._gradient import WIRE_DTYPES, ManagedParameter
from mercurystack._job import Job
from mercurystack._staging import DEVICES, Stages
from mercurystack._tensors import FLOATING

_MOST_NUMBERS = 1 << 28  # first_number is below
# Why they are refused.
_NOT_ONE_BY_ONE = {"LBFGS": "evaluates the model several times a step", "SparseAdam": "wants sparse gradients"}


def refuse(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """ValueError: updates cannot be taken one by one, or gradients are sparse or summed by somebody else."""
    name = type(optimizer).__name__
    for base in type(optimizer).__mro__:
        if base.__name__ in _NOT_ONE_BY_ONE:
            raise ValueError(f"{name} {_NOT_ONE_BY_ONE[base.__name__]}: it cannot update parameters one by one")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(f"{name} evaluates the model within the step: it cannot update parameters one by one")
    step = vars(optimizer).get("step")
    if step is not None and not getattr(step, "_with_counter", False) and not getattr(step, "_wrapped_by_lr_sched", False):
        raise ValueError(f"{name}.step was replaced in this object, and the class's is what would be called: wrap it before that")
    if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        raise ValueError(f"expected the model itself, got {type(model).__name__} around it, which sums gradients by itself")
    for place, module in model.named_modules():
        if isinstance(module, torch.jit._script.ScriptModule):
            raise ValueError(f"{place or 'the model'}: it is scripted, so that nothing can be put around its calls: script it behind the training")
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise ValueError(f"{place}.weight: its gradient is sparse, and would be sent whole: make the layer with sparse=False")


def check_kinds(optimizer: object, model: object, context: object, job: object) -> None:
    """TypeError: an argument is something else."""
    for name, value, kind in (("optimizer", optimizer, torch.optim.Optimizer), ("model", model, torch.nn.Module), ("context", context, Context),
                              ("job", job, Job)):
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected a {kind.__module__.partition('.')[0]} {kind.__name__}, got {type(value).__name__}")


def check_numbers(backward_passes_per_step: int, first_number: int, wire_dtype: Optional[torch.dtype]) -> None:
    """ValueError: one is out of its range."""
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step: expected 1 or more, got {backward_passes_per_step}")
    if wire_dtype not in (None, *WIRE_DTYPES):
        raise ValueError(f"wire_dtype: expected torch.float16 or torch.bfloat16, got {wire_dtype}")
    if not 0 <= first_number < _MOST_NUMBERS:
        raise ValueError(f"first_number: expected 0 to {_MOST_NUMBERS - 1}, got {first_number}")


def check_job(job: Job, is_elastic: bool, quorum: int, broadcast: bool, finite: bool) -> None:
    """ValueError: it has other terms."""
    if quorum != job.quorum:
        raise ValueError(f"quorum: worker {job.rank}'s job has {job.quorum} and its ScheduledOptimizer {quorum}: open the job with quorum= and "
                         "patience_ms=, and say the same quorum here")
    if not is_elastic:
        return
    if quorum:
        raise ValueError("elastic: not in a job with a quorum, which goes on without workers that are lost")
    if not job.rejoin_ms:
        raise ValueError(f"elastic: open the job of worker {job.rank} with rejoin_ms=, how long it waits for a worker that was lost")
    if job._server is not None:
        raise ValueError("elastic: a worker that is killed takes the server in its process along, and with it the job: without serve=True "
                         "daemons serve, or processes of their own")
    if finite:
        raise ValueError("elastic: not with finite=, as a worker that comes back sees no averages of the iteration that it comes into")
    if not broadcast:
        raise ValueError("elastic: worker 0's weights go to all: leave broadcast= out")
    if _meeting.VOTES in job._tensors:
        raise ValueError("elastic: the job has an elastic ScheduledOptimizer already, and takes one: give that one all parameters")


def check_elastic(parameters: list[ManagedParameter]) -> None:
    for one in parameters:
        if one.parameter.is_cuda:
            raise ValueError(f"{one.name}: an elastic ScheduledOptimizer takes no parameters on GPUs")


def manage(optimizer: torch.optim.Optimizer, model: torch.nn.Module, context: Context, on_read: Callable[[ManagedParameter], None],
           wire_dtype: Optional[torch.dtype], stages: Stages) -> list[ManagedParameter]:
    """The optimizer's parameters, in the model's order: that is the same on every worker. ValueError: it has one that cannot
    be had."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    managed: list[ManagedParameter] = []
    for place, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(f"a parameter of shape {tuple(parameter.shape)} is the optimizer's and not the model's")
            if parameter.requires_grad:
                _check(names[parameter], parameter)
                managed.append(ManagedParameter(names[parameter], parameter, place, context, on_read, wire_dtype, stages.of(parameter)))
    order = {name: place for place, name in enumerate(names.values())}
    return sorted(managed, key=lambda one: order[one.name])


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    if parameter.device.type not in DEVICES or parameter.dtype not in FLOATING:
        raise ValueError(f"{name}: expected floating point on the CPU or on a GPU of CUDA's, got {parameter.dtype} on {parameter.device}")
    if getattr(parameter.grad, "_of_mercury", None) == id(parameter.grad):
        raise ValueError(f"{name}: another ScheduledOptimizer has it. close() that one first")


def declare(parameters: list[ManagedParameter], job: Job, first_number: int) -> None:
    """Gives each its tensor. MercuryError, with the parameter's name where it is about one."""
    by_type: dict[str, dict[int, Any]] = defaultdict(dict)
    for place, one in enumerate(parameters):
        if one.parameter.numel():
            by_type[one.mercury_type][first_number + place] = one.array
    for name, arrays in sorted(by_type.items()):
        try:
            tensors = job.declare_all(arrays, op="average", dtype=name)
        except MercuryError as failure:
            raise _with_name(failure, parameters, first_number) from None
        for number, tensor in tensors.items():
            parameters[number - first_number].tensor = tensor


def _with_name(failure: MercuryError, parameters: list[ManagedParameter], first_number: int) -> MercuryError:
    text = failure.strerror or ""
    words = text.replace(",", " ").replace(":", " ").split()
    for word, number in zip(words, words[1:]):
        if word == "tensor" and number.isdigit() and 0 <= int(number) - first_number < len(parameters):
            text += f" (the gradient of {parameters[int(number) - first_number].name})"
            break
    return _agreement.with_first_number(type(failure)(failure.errno, text), first_number)


def difference(found: list[torch.nn.Parameter], known: list[torch.nn.Parameter], model: torch.nn.Module) -> str:
    """What has happened to the optimizer's parameters, which were `known`."""
    place = next((place for place, (one, other) in enumerate(zip(found, known)) if one is not other), min(len(found), len(known)))
    if place == len(found):
        return f"the optimizer has lost {len(known) - len(found)} of its parameters"
    names = (name for name, parameter in model.named_parameters() if parameter is found[place])
    name = next(names, f"a parameter of shape {tuple(found[place].shape)}, which is not the model's,")
    return f"{name} was added to the optimizer, or put in another's place,"
