"""Tensors on GPUs: they travel through memory of Mercury's that is pinned. Copies run beside the computing, on streams of their
own, and wait for it, or it for them, by events."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

import numpy as np
import torch

from mercurystack._memory import ArrayLike, owner_of
from mercurystack._operation import Operation

_cuda: Any = torch.cuda  # half of which has no types
DEVICES = ("cpu", "cuda")  # whose tensors Mercury takes


def pin(array: ArrayLike) -> None:
    """An array of Context.zeros(), for as long as its memory is there. RuntimeError: the driver refuses."""
    assert isinstance(array, np.ndarray)
    runtime = _cuda.cudart()
    address = array.ctypes.data
    code = runtime.cudaHostRegister(address, array.nbytes, 0)
    if int(code) != 0:
        raise RuntimeError(f"{array.nbytes} bytes of Mercury's memory cannot be pinned for the GPU: cudaHostRegister says "
                           f"{runtime.cudaGetErrorString(code)}. Raise the limit of locked memory (ulimit -l), or keep the tensors on the CPU")
    # Behind that of the memory itself, so that it runs before it.
    weakref.finalize(owner_of(array), _unpin, address, os.getpid()).atexit = False


def _unpin(address: int, process: int) -> None:
    if os.getpid() == process:  # a forked one has no GPU
        _cuda.synchronize()  # a copy may still be on its way
        _cuda.cudart().cudaHostUnregister(address)


class Leaving:
    """An operation that begins once its elements have come from the GPU."""

    def __init__(self, begun: Future[Operation]) -> None:
        self._begun = begun

    def wait(self) -> None:
        failure = self._begun.exception()
        if failure is not None:
            raise failure.with_traceback(None)  # of the thread that sends, and of its pool
        self._begun.result().wait()

    def done(self) -> bool:
        """Whether it has ended, well or not, or could not begin."""
        return self._begun.done() and (self._begun.exception() is not None or self._begun.result().done())

    @property
    def _status(self) -> Optional[int]:
        """As an Operation's, for the timeline."""
        if not self._begun.done():
            return None
        return -1 if self._begun.exception() is not None else self._begun.result()._status


class Stage:
    """Between one GPU and Mercury's memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out, self._back = _cuda.Stream(device), _cuda.Stream(device)
        self._sender = ThreadPoolExecutor(1, "mercury-gpu")

    def leave(self, memory: torch.Tensor, data: torch.Tensor, then: Callable[[], Any]) -> Future[Any]:
        """`data`, as the current stream leaves it, to `memory`; `then`, on a thread, once it is there."""
        self._out.wait_stream(_cuda.current_stream(self.device))
        self._out.wait_stream(self._back)  # which may read the memory still
        there = _cuda.Event(blocking=True)
        with torch.no_grad(), _cuda.stream(self._out):
            memory.copy_(data, non_blocking=True)
            there.record()
        data.record_stream(self._out)  # else another tensor may have its place before it is copied

        def send() -> Any:
            there.synchronize()
            return then()
        return self._sender.submit(send)

    def bring(self, into: torch.Tensor, memory: torch.Tensor) -> None:
        """`memory` to `into`, which the current stream waits for. No work that is under way has `into`."""
        with torch.no_grad(), _cuda.stream(self._back):
            into.copy_(memory, non_blocking=True)
        into.record_stream(self._back)
        _cuda.current_stream(self.device).wait_stream(self._back)

    def mark(self) -> Any:
        """What the current stream has to do until here."""
        event = _cuda.Event()
        event.record(_cuda.current_stream(self.device))
        return event

    def finish(self, mark: Any, copies: Callable[[], object]) -> object:
        """`copies` of what has come, behind the work that `mark` is of. They have ended when it returns."""
        with _cuda.stream(self._back):
            self._back.wait_event(mark)
            result = copies()
            self._back.synchronize()
        return result

    def close(self) -> None:
        """Once all that left is on its way."""
        self._sender.shutdown()


class Stages:
    """One for each GPU that has been seen. Any thread may ask."""

    def __init__(self) -> None:
        self._of: dict[torch.device, Stage] = {}

    def of(self, tensor: torch.Tensor) -> Optional[Stage]:
        """None: it is on the CPU."""
        if tensor.device.type == "cpu":
            return None
        stage = self._of.get(tensor.device)
        return self._of.setdefault(tensor.device, Stage(tensor.device)) if stage is None else stage

    def close(self) -> None:
        for stage in self._of.values():
            stage.close()
