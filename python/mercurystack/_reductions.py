"""torch.distributed's reductions: which are Mercury's, and the others, of all ranks' tensors."""

from __future__ import annotations

from typing import Callable, Optional, Sequence

import torch
import torch.distributed as dist

from mercurystack._tensors import FLOATING, NAMES

_OPS: dict[str, Optional[str]] = {"SUM": "sum", "AVG": "average", "MIN": "min", "MAX": "max", "PRODUCT": None, "BAND": None, "BOR": None,
                                  "BXOR": None}
_BITS = ("BAND", "BOR", "BXOR")
_LOCALLY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.Tensor.add_, "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda into, other: torch.minimum(into, other, out=into), "MAX": lambda into, other: torch.maximum(into, other, out=into),
    "BAND": torch.Tensor.bitwise_and_, "BOR": torch.Tensor.bitwise_or_, "BXOR": torch.Tensor.bitwise_xor_}


def name_of(reduction: object, dtype: torch.dtype) -> str:
    """NotImplementedError: neither Mercury nor this module has it."""
    name = next((name for name in _OPS if reduction == getattr(dist.ReduceOp, name)), None)
    floating = dtype.is_floating_point or dtype.is_complex
    if name is None:
        raise NotImplementedError(f"the mercury backend has {', '.join(_OPS)}, not {reduction}")
    if name in _BITS and floating:
        raise NotImplementedError(f"the mercury backend has {name} of integers and bool, not of {dtype}")
    if name == "AVG" and dtype not in FLOATING:
        raise NotImplementedError(f"the mercury backend has AVG of {', '.join(map(str, FLOATING))}, not of {dtype}")
    if name in ("MIN", "MAX") and dtype.is_complex:
        raise NotImplementedError(f"the mercury backend has no {name} of {dtype}, which has no order")
    return name


def operation_of(name: str, dtype: torch.dtype) -> Optional[str]:
    """Mercury's operation; None: reduce locally."""
    return _OPS[name] if dtype in NAMES else None


def reduce_locally(name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """In the order of ranks, so the same bits on all."""
    into = parts[0].clone()
    for part in parts[1:]:
        _LOCALLY[name](into, part)
    return into
