"""PyTorch's tensors as Mercury has them: which element types both know, tensors over arrays, tensors as bytes."""

from __future__ import annotations

import torch

from mercurystack._memory import DTYPES, AnyArray

NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in DTYPES}
FLOATING = tuple(dtype for dtype in NAMES if dtype.is_floating_point)


def over(array: AnyArray, dtype: torch.dtype) -> torch.Tensor:
    """Of Context.zeros(), whose bfloat16 is NumPy's uint16, which PyTorch does not take."""
    return torch.from_numpy(array.view("int16") if dtype == torch.bfloat16 else array).view(dtype)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """In place where the tensor is contiguous, and has its own values. So are those of one element, whatever their strides."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def is_in_place(tensor: torch.Tensor) -> bool:
    """Whether bytes_of() are the tensor's own."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
