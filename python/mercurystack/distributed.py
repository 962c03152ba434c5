"""torch.distributed over Mercury. Importing this makes the backend known:

    import mercurystack.distributed
    torch.distributed.init_process_group("mercury")

Each process runs a server too, so that nothing else is to be started; with MERCURY_RENDEZVOUS set, the daemons that it
names serve. Tensors are on the CPU. all_reduce (sum, average, min, max), broadcast, all_gather, reduce_scatter and
barrier are there, and with them what PyTorch makes of these: DistributedDataParallel, objects, subgroups. What is not
(send, recv, all_to_all, gather, scatter, reduce) is an error that names it.

A collective's elements are copied into memory of Mercury's and back. Four of one size, type and kind may be in flight;
a fifth waits for the first. For every size that is used, memory stays until the group ends.
"""

from __future__ import annotations

import datetime
import os
import secrets
import select
import socket
import threading
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from mercurystack._context import Context
from mercurystack._job import Job, Tensor
from mercurystack._operation import Operation

# Mercury's name of a type, and the type of NumPy and PyTorch of the same width that memory of it has.
_DTYPES = {torch.float32: ("float32", "float32"), torch.float64: ("float64", "float64"), torch.float16: ("float16", "float16"),
           torch.bfloat16: ("bfloat16", "int16"), torch.int32: ("int32", "int32"), torch.int64: ("int64", "int64"),
           torch.int8: ("int8", "int8"), torch.uint8: ("uint8", "uint8")}
_REDUCTIONS = tuple((getattr(dist.ReduceOp, name), op) for name, op in (
    ("SUM", "sum"), ("AVG", "average"), ("MIN", "min"), ("MAX", "max")))
_IN_FLIGHT = 4
_SMALL = 1 << 16  # elements: below, one size stands for all up to it


class _Slot:
    """Memory of Mercury's for one collective at a time."""

    def __init__(self, tensor: Tensor, memory: torch.Tensor) -> None:
        self.tensor = tensor
        self.memory = memory
        self.free = threading.Event()
        self.free.set()


class _Flight(NamedTuple):
    slot: _Slot
    operation: Operation
    finish: Callable[[], Any]  # takes the elements back; what the future's result is
    future: Future[Any]


class _Progress(threading.Thread):
    """Ends collectives whose operations have ended."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="mercury-progress", daemon=True)
        self._job = job
        self._lock = threading.Lock()
        self._flights: list[_Flight] = []
        self._wake, self._woken = os.pipe()
        self._ends = False

    def add(self, flight: _Flight) -> None:
        with self._lock:
            self._flights.append(flight)
        # It may have ended before it was added, and its completion be collected.
        os.write(self._woken, b"x")

    def stop(self) -> None:
        self._ends = True
        os.write(self._woken, b"x")
        self.join()
        os.close(self._wake)
        os.close(self._woken)

    def run(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._job.fileno(), select.POLLIN)
        while not self._ends:
            if any(fd == self._wake for fd, _ in poller.poll()):
                os.read(self._wake, 4096)
            self._job.poll()
            with self._lock:
                ended = [flight for flight in self._flights if flight.operation.done()]
                self._flights = [flight for flight in self._flights if flight not in ended]
            for flight in ended:
                self._end(flight)

    @staticmethod
    def _end(flight: _Flight) -> None:
        failure: Optional[Exception] = flight.operation.exception()
        result = None
        if failure is None:
            try:
                result = flight.finish()
            except Exception as error:  # of a tensor that the caller has changed meanwhile
                failure = error
        flight.slot.free.set()
        if failure is not None:
            flight.future.set_exception(failure)
        else:
            flight.future.set_result(result)


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc, name-defined]
    """A job of Mercury's. Made by torch.distributed."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        daemons = os.environ.get("MERCURY_RENDEZVOUS")
        if rank == 0:
            store.set("mercury", f"torch-{secrets.token_hex(8)} {daemons or _own_place()}")
        name, rendezvous = store.get("mercury").decode().split()
        self._context = Context("auto" if daemons else "embedded")
        options: dict[str, object] = {"servers": rendezvous.count(",") + 1} if daemons else {}
        self._job = self._context.open_job(name, serve=not daemons, role="worker", rank=rank, workers=size, rendezvous=rendezvous,
                                           timeout_ms=min(2**31 - 1, int(timeout.total_seconds() * 1000)), **options)
        self._lock = threading.Lock()  # collectives are numbered in the order of their calls, which all ranks share
        self._slots: dict[tuple[str, str, int], list[_Slot]] = {}
        self._calls: dict[tuple[str, str, int], int] = {}
        self._declared = 0
        self._progress = _Progress(self._job)
        self._progress.start()
        weakref.finalize(self, _close, self._progress, self._context)

    # ---- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        tensor = _only(tensors, "all_reduce")
        return self._reduce(tensor, opts.reduceOp, lambda reduced: [tensor.copy_(reduced.view_as(tensor))])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        tensor = _only(tensors, "broadcast")
        data = _bytes_of(tensor)

        def finish(memory: torch.Tensor) -> list[torch.Tensor]:
            return [tensor.copy_(memory.view(tensor.dtype).view_as(tensor))]
        return self._exchange(("broadcast", "uint8", data.numel()), data, lambda sent: sent.broadcast(opts.rootRank), finish, tensors)

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any = None) -> Any:
        tensor, outputs = _only(input_tensors, "all_gather"), output_tensors[0]
        size = _bytes_of(tensor).numel()
        data = torch.zeros(size * self._size, dtype=torch.uint8)
        data[size * self._rank:size * (self._rank + 1)] = _bytes_of(tensor)

        def finish(memory: torch.Tensor) -> list[list[torch.Tensor]]:
            for place, output in enumerate(outputs):
                output.copy_(memory[size * place:size * (place + 1)].view(output.dtype).view_as(output))
            return output_tensors
        return self._exchange(("all_gather", "uint8", data.numel()), data, lambda sent: sent.all_gather(), finish, output_tensors)

    def reduce_scatter(self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any = None) -> Any:
        output = _only(output_tensors, "reduce_scatter")
        data = torch.cat([part.reshape(-1) for part in input_tensors[0]])

        def finish(reduced: torch.Tensor) -> list[torch.Tensor]:
            return [output.copy_(reduced[output.numel() * self._rank:][:output.numel()].view_as(output))]
        return self._reduce(data, opts.reduceOp, finish)

    def barrier(self, opts: Any = None) -> Any:
        return self._reduce(torch.zeros(1, dtype=torch.int32), dist.ReduceOp.SUM, lambda _: None)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Any:
        raise NotImplementedError("the mercury backend has no send and recv: use a gloo group beside it")

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Any:
        raise NotImplementedError("the mercury backend has no send and recv: use a gloo group beside it")

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return "mercury"

    # ---- by Mercury's operations ---------------------------------------------------------------

    def _reduce(self, tensor: torch.Tensor, reduction: Any, finish: Callable[[torch.Tensor], Any]) -> Any:
        op = next((name for known, name in _REDUCTIONS if reduction == known), None)
        if op is None:
            raise NotImplementedError(f"the mercury backend has sum, average, min and max, not {reduction}")
        if tensor.dtype not in _DTYPES:
            raise NotImplementedError(f"the mercury backend does not reduce tensors of {tensor.dtype}")
        data = tensor.detach().reshape(-1)
        return self._exchange((op, _DTYPES[tensor.dtype][0], data.numel()), data, lambda sent: sent.push_pull(), finish, [tensor])

    def _exchange(self, key: tuple[str, str, int], data: torch.Tensor, submit: Callable[[Tensor], Operation],
                  finish: Callable[[torch.Tensor], Any], unchanged: Any) -> Any:
        """`data` by an operation of Mercury's; `finish` gets what came of it."""
        future: Future[Any] = Future()
        if data.numel() == 0:
            future.set_result(unchanged)
            return _create_work_from_future(future)
        with self._lock:
            slot = self._next_slot(key, data.dtype)
            slot.free.wait()
            slot.free.clear()
            try:
                part = slot.memory[:data.numel()]
                part.copy_(data)
                operation = submit(slot.tensor)
            except BaseException:
                slot.free.set()
                raise
        self._progress.add(_Flight(slot, operation, lambda: finish(part), future))
        return _create_work_from_future(future)

    def _next_slot(self, key: tuple[str, str, int], dtype: torch.dtype) -> _Slot:
        """The same on every rank, as all make the same calls in the same order."""
        kind, name, numel = key
        if kind != "all_gather" and numel < _SMALL:  # parts of a gathered tensor are equal
            numel = 1 << (numel - 1).bit_length()
        key = (kind, name, numel)
        slots = self._slots.setdefault(key, [])
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        if len(slots) < _IN_FLIGHT:
            array = self._context.zeros(numel, next(numpy for known, numpy in _DTYPES.values() if known == name))
            op = kind if kind not in ("broadcast", "all_gather") else "sum"
            tensor = self._job.declare(self._declared, array, op=op, dtype=name)
            self._declared += 1
            slots.append(_Slot(tensor, torch.from_numpy(array).view(dtype)))
        return slots[call % _IN_FLIGHT]


def _only(tensors: list[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1 or tensors[0].device.type != "cpu" or tensors[0].is_sparse:
        raise NotImplementedError(f"{what} of the mercury backend: expected one dense tensor on the CPU")
    return tensors[0]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _own_place() -> str:
    """An address of this host that the others reach, and a port that is free there."""
    master = socket.getaddrinfo(os.environ.get("MASTER_ADDR", "127.0.0.1"), 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(master[0], socket.SOCK_DGRAM) as probe:
        probe.connect(master[4])
        host = probe.getsockname()[0]
    with socket.socket(master[0], socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _close(progress: _Progress, context: Context) -> None:
    progress.stop()
    context.close()


dist.Backend.register_backend("mercury", ProcessGroup)  # type: ignore[no-untyped-call]
