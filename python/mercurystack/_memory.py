"""Arrays in memory of Mercury's, and what arrays are in memory at all."""

from __future__ import annotations

import ctypes
import math
import operator
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

import numpy as np
import numpy.typing as npt

from mercurystack import _native

if TYPE_CHECKING:
    from mercurystack._context import Attachment

AnyArray = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """A tensor of another library (PyTorch, JAX, CuPy) on the CPU."""

    def __dlpack__(self, *, stream: None = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


ArrayLike = Union[AnyArray, SupportsDLPack]

# NumPy's name of an element type, and Mercury's. bfloat16 has no name in NumPy: it is declared by name, over
# any array of elements of two bytes.
DTYPES = {"float32": _native.F32, "float64": _native.F64, "float16": _native.F16, "bfloat16": _native.BF16,
          "int32": _native.I32, "int64": _native.I64, "int8": _native.I8, "uint8": _native.U8}
_WIDTHS = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "int8": 1, "uint8": 1}

_MOST_BYTES = 2**63 - 1


class View(NamedTuple):
    """Where an array's elements lie."""

    address: int
    elements: int
    dtype: int  # Mercury's
    bytes: int


def view_of(array: ArrayLike, dtype: str | None) -> View:
    """`array` as Mercury sees it. TypeError, ValueError: it is not contiguous, or of a type that Mercury does not
    add."""
    seen = array if isinstance(array, np.ndarray) else _from_dlpack(array)
    if not seen.flags.c_contiguous:
        raise ValueError("the array is not contiguous in memory")
    name = dtype if dtype is not None else seen.dtype.name
    if name not in DTYPES or not seen.dtype.isnative:
        raise TypeError(f"Mercury does not exchange elements of type {name}: one of {', '.join(DTYPES)}")
    if seen.dtype.itemsize != _WIDTHS[name]:
        raise TypeError(f"{name} takes {_WIDTHS[name]} bytes an element, the array's {seen.dtype.name} takes "
                        f"{seen.dtype.itemsize}")
    return View(seen.ctypes.data, seen.size, DTYPES[name], seen.nbytes)


def _from_dlpack(array: SupportsDLPack) -> AnyArray:
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"expected a NumPy array or a tensor with __dlpack__, got {type(array).__name__}")
    return np.from_dlpack(array)


def allocate(attachment: Attachment, shape: int | tuple[int, ...], dtype: str) -> AnyArray:
    """Zeros in memory that tensors travel from without a copy. The memory lives as long as an array over it."""
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    elements = math.prod(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    if elements < 1:
        raise ValueError(f"an array of shape {shape} has no elements")
    size = _native.whole(f"bytes of an array of shape {shape}", elements * kind.itemsize, 1, _MOST_BYTES)
    address = attachment.allocate(size)
    memory = (ctypes.c_char * size).from_address(address)
    # NumPy keeps `memory` for every array and view over it: with the last of them it goes.
    weakref.finalize(memory, attachment.free, address).atexit = False
    return np.ndarray(shape, kind, memoryview(memory))


def owner_of(array: AnyArray) -> object:
    """Of an array of allocate(): what the memory lives as long as."""
    return array.base
