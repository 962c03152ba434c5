"""The C API (mercurystack/mercury.h) by ctypes, which releases the GIL for as long as a call takes."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import operator
import os
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, Optional, TypeVar

from mercurystack._errors import error_of

_Sized = TypeVar("_Sized", bound="Sized")


def _load() -> ctypes.CDLL:
    """The library of this package, else that of $MERCURY_LIBRARY, else the system's."""
    named = os.environ.get("MERCURY_LIBRARY")
    own = os.path.join(os.path.dirname(__file__), "libmercurystack.so")
    path = named or (own if os.path.exists(own) else ctypes.util.find_library("mercurystack"))
    if not path:
        raise ImportError("libmercurystack.so was not found: install Mercury, or say where it is in $MERCURY_LIBRARY")
    return ctypes.CDLL(path, use_errno=False)


library = _load()
Function = Any  # of ctypes, whose stubs know no better

F32, F64, F16, BF16, I32, I64, I8, U8 = range(8)
SUM, AVERAGE, MIN, MAX = range(4)
ROLE_WORKER, ROLE_SERVER = range(2)
PUSH_PULL, PUSH, PULL, BROADCAST, ALL_GATHER, REDUCE_SCATTER = range(6)
MODE_AUTO, MODE_DAEMON, MODE_EMBEDDED = range(3)


class Sized(Structure):
    """A struct that begins with its own size, as all of the API's: it can grow."""

    _initialiser: ClassVar[str]

    @classmethod
    def initial(cls: type[_Sized]) -> _Sized:
        struct = cls()
        check(getattr(library, cls._initialiser)(ctypes.byref(struct), ctypes.sizeof(cls)))
        return struct


class AttachOptions(Sized):
    _initialiser = "mercury_attach_options_init"
    _fields_ = [("size", c_size_t), ("mode", c_int32), ("socket", c_char_p), ("listen", c_char_p),
                ("rate", c_char_p), ("daemon_timeout_ms", c_int32)]


class JobOptions(Sized):
    _initialiser = "mercury_job_options_init"
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("secret", c_char_p), ("role", c_int32), ("rank", c_int32),
                ("workers", c_int32), ("servers", c_int32), ("rendezvous", c_char_p), ("timeout_ms", c_int32),
                ("deterministic", c_int32), ("policy", c_char_p), ("weight", c_int32), ("rejoin_ms", c_int32),
                ("quorum", c_int32), ("patience_ms", c_int32), ("stall_timeout_ms", c_int32)]


class TensorOptions(Sized):
    _initialiser = "mercury_tensor_options_init"
    _fields_ = [("size", c_size_t), ("id", c_uint32), ("dtype", c_int32), ("numel", c_uint64), ("op", c_int32),
                ("priority", c_int32), ("data", c_void_p)]


class SubmittedOperation(Sized):
    _initialiser = "mercury_operation_init"
    _fields_ = [("size", c_size_t), ("kind", c_int32), ("tensor", c_uint32), ("priority", c_int32),
                ("root", c_uint32), ("user_data", c_uint64), ("handle", c_uint64)]


class Completion(Sized):
    _initialiser = "mercury_completion_init"
    _fields_ = [("size", c_size_t), ("handle", c_uint64), ("user_data", c_uint64), ("status", c_int32),
                ("tensor", c_uint32), ("round", c_uint32), ("kind", c_int32), ("message", c_char_p)]


class Contributors(Sized):
    _initialiser = "mercury_contributors_init"
    _fields_ = [("size", c_size_t), ("round", c_uint32), ("workers", c_uint32), ("in_all", c_uint64 * 4),
                ("in_any", c_uint64 * 4), ("in_all_above", c_uint64 * 12), ("in_any_above", c_uint64 * 12)]


class JobStats(Sized):
    _initialiser = "mercury_job_stats_init"
    _fields_ = [("size", c_size_t), ("operations", c_uint64), ("bytes_pushed", c_uint64), ("bytes_pulled", c_uint64)]


STRUCTS = {"mercury_attach_options": AttachOptions, "mercury_job_options": JobOptions,
           "mercury_tensor_options": TensorOptions, "mercury_operation": SubmittedOperation,
           "mercury_completion": Completion, "mercury_contributors": Contributors, "mercury_job_stats": JobStats}

# What each function takes. Those that are not in _RESULTS return an int.
_ARGUMENTS: dict[str, list[Any]] = {
    "mercury_attach": [POINTER(AttachOptions), POINTER(c_void_p)],
    "mercury_context_close": [c_void_p],
    "mercury_detach": [c_void_p],
    "mercury_context_get_mode": [c_void_p],
    "mercury_alloc": [c_void_p, c_size_t, POINTER(c_void_p)],
    "mercury_free": [c_void_p, c_void_p],
    "mercury_register": [c_void_p, c_void_p, c_size_t],
    "mercury_deregister": [c_void_p, c_void_p],
    "mercury_job_options_from_env": [POINTER(JobOptions)],
    "mercury_job_open": [c_void_p, POINTER(JobOptions), POINTER(c_void_p)],
    "mercury_job_get_rank": [c_void_p],
    "mercury_job_get_workers": [c_void_p],
    "mercury_job_get_servers": [c_void_p],
    "mercury_job_close": [c_void_p],
    "mercury_job_set_policy": [c_void_p, c_char_p],
    "mercury_job_get_status": [c_void_p, c_char_p, c_size_t],
    "mercury_job_wait_end": [c_void_p, c_int],
    "mercury_barrier": [c_void_p, c_int],
    "mercury_job_get_stats": [c_void_p, POINTER(JobStats)],
    "mercury_job_get_fd": [c_void_p],
    "mercury_declare": [c_void_p, POINTER(TensorOptions), c_size_t],
    "mercury_tensor_get_round": [c_void_p, c_uint32, POINTER(c_uint32)],
    "mercury_tensor_get_part": [c_void_p, c_uint32, c_uint32, POINTER(c_uint64), POINTER(c_uint64)],
    "mercury_tensor_get_contributors": [c_void_p, c_uint32, POINTER(Contributors)],
    "mercury_submit": [c_void_p, POINTER(SubmittedOperation), c_size_t],
    "mercury_wait": [c_void_p, c_uint64, c_int],
    "mercury_poll": [c_void_p, POINTER(Completion), c_size_t, c_size_t],
    "mercury_last_error": [],
    "mercury_version": [],
    **{struct._initialiser: [POINTER(struct), c_size_t] for struct in STRUCTS.values()},
}
_RESULTS = {"mercury_last_error": c_char_p, "mercury_version": c_char_p}
for _name, _arguments in _ARGUMENTS.items():
    _function = getattr(library, _name)
    _function.argtypes = _arguments
    _function.restype = _RESULTS.get(_name, c_int)


def check(code: int) -> int:
    """`code`, unless it is a negative errno: then the exception, with the library's text."""
    if code < 0:
        raise error_of(code, last_error())
    return code


def last_error() -> str:
    text: bytes = library.mercury_last_error()
    return text.decode(errors="replace")


def version() -> str:
    """The library's."""
    text: bytes = library.mercury_version()
    return text.decode()


def whole(name: str, value: Any, least: int, most: int) -> int:
    """`value`, for a field or argument that would cut an integer to its width. ValueError, TypeError: it is none of `least` to `most`."""
    if value.__class__ is int and least <= value <= most:
        return value  # type: ignore[no-any-return]
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, {least} to {most}, got {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {number}")
    return number


def text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def array_of(struct: type[_Sized], count: int) -> ctypes.Array[_Sized]:
    array = (struct * count)()
    for one in array:
        check(getattr(library, struct._initialiser)(ctypes.byref(one), ctypes.sizeof(struct)))
    return array


def read_environment(options: JobOptions) -> None:
    """What a launcher says, where there is one."""
    code = library.mercury_job_options_from_env(ctypes.byref(options))
    if code != -errno.ENOENT:
        check(code)


def job_status(job: c_void_p) -> tuple[int, str]:
    """0, or what the job has failed of, and why."""
    reason = ctypes.create_string_buffer(512)
    code: int = library.mercury_job_get_status(job, reason, len(reason))
    return code, reason.value.decode(errors="replace")
