"""Collectives by a job's operations: elements are copied into memory of Mercury's, and a thread copies back what came of them."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import torch

from mercurystack import _native
from mercurystack._calls import LINE_BYTES, Agreement, Call, compare
from mercurystack._context import Context
from mercurystack._errors import JobFailedError, MercuryError, error_of
from mercurystack._job import Job, Tensor
from mercurystack._operation import Operation
from mercurystack._pieces import SMALL, Ending, Key, Owners, Piece, cut, put
from mercurystack._staging import Stage, Stages, pin
from mercurystack._tensors import over
from mercurystack._work import Callbacks, Kept, Work, again, all_of, failure_of, gone

_IN_FLIGHT = 4
_CALLS_IN_FLIGHT = 64  # collectives of which it is not known yet whether all ranks have called the same
_PIECES_IN_FLIGHT = 32  # of the largest: a collective of many does not wait for its own
_OWN_BYTES = 1 << 30  # of all sizes that have memory of their own
# Priorities. Small collectives are often what a program computes on with, as SyncBatchNorm's sums in the middle of a backward pass;
# larger ones, as DDP's buckets, it waits for at the end. A barrier overtakes nothing. All of a kind go in the order of the calls:
# DDP's step waits for all buckets, so that it does not matter which of them is first.
_URGENT, _PATIENT = 0, 1
_LOOK_MS = 500  # how often it is asked whether the job has failed, where nothing of it is in flight


ALL = slice(None)  # parts


def part(place: int) -> slice:
    return slice(place, place + 1)


class _Slot:
    """Memory of Mercury's for one collective at a time."""

    def __init__(self, tensor: Tensor, memory: torch.Tensor) -> None:
        self.tensor = tensor
        self.memory = memory
        self.is_pinned = False
        self.free = threading.Event()
        self.free.set()


class _Flight(NamedTuple):
    slot: _Slot
    operation: Operation
    finish: Callable[[], Any]  # takes the elements back; what the future's result is
    work: Ending


class Progress(threading.Thread):
    """Ends collectives whose operations have ended."""

    def __init__(self, job: Job, failed: Callable[[Exception], None]) -> None:
        super().__init__(name="mercury-progress", daemon=True)
        self._job = job
        self._failed = failed  # told of the job's failure, at least once
        self._lock = threading.Lock()
        self._flights: list[_Flight] = []
        self._wake, self._woken = os.pipe()
        self._is_woken = False  # and has not looked yet
        self._ends = False
        self._failure: Exception = gone("the process group was destroyed")  # of what begins once it ends
        self.start()

    def check(self) -> None:
        """Raises what the group has failed of, so that no collective can begin any more."""
        if self._ends:
            raise again(self._failure)

    def fail(self, failure: Exception) -> None:
        """All collectives end of it, and messages do."""
        if not self._ends:
            self._end_all(failure_of(failure))
            self._failed(failure_of(failure))

    def add(self, flight: _Flight) -> None:
        with self._lock:
            if not self._ends:
                self._flights.append(flight)
                # It may have ended before it was added, and its completion be collected.
                if not self._is_woken:
                    os.write(self._woken, b"x")
                self._is_woken = True
                return
        flight.slot.free.set()
        flight.work.end(self._failure)

    def stop(self) -> None:
        with self._lock:
            self._ends = True
            os.write(self._woken, b"x")
        self.join()
        os.close(self._wake)
        os.close(self._woken)
        self._end_all(self._failure)

    def _end_all(self, failure: Exception) -> None:
        with self._lock:
            self._ends = True
            self._failure = failure
            flights, self._flights = self._flights, []
        for flight in flights:
            flight.slot.free.set()
            flight.work.end(failure)

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # who waits would wait for ever
            self.fail(error)
            raise

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._job.fileno(), select.POLLIN)
        while not self._ends:
            if any(fd == self._wake for fd, _ in poller.poll(_LOOK_MS)):
                with self._lock:
                    os.read(self._wake, 4096)
                    self._is_woken = False
            self._job.poll()
            with self._lock:
                ended: list[_Flight] = []
                under_way: list[_Flight] = []
                for flight in self._flights:
                    (ended if flight.operation.is_known_done() else under_way).append(flight)
                self._flights = under_way
            for flight in ended:
                self._end(flight)
            with self._job._use as job:
                code, reason = _native.job_status(job)
            if code < 0:
                self._failed(failure_of(error_of(code, reason)))

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
        flight.work.end(failure, result)


class Exchange:
    """A group's collectives by operations, in the order of the calls, which all ranks share."""

    def __init__(self, context: Context, job: Job, failed: Callable[[Exception], None]) -> None:
        self._context, self._job = context, job
        self._kept, self._callbacks = Kept(), Callbacks()
        self._progress = Progress(job, failed)
        self._stages = Stages()
        self._lock = threading.Lock()
        self._slots: dict[Key, deque[_Slot]] = {}  # the one whose turn is next first
        self._own: set[Key] = set()  # those that the owners have
        self._owners = Owners(_OWN_BYTES)
        self._calls = self._declare_calls()
        self._declared = _CALLS_IN_FLIGHT * job.servers

    def work(self, name: str, in_order: bool = True, device: Optional[torch.device] = None) -> Work:
        return Work(name, self._kept, self._callbacks, in_order, device)

    def begin(self, call: Call, key: Key, place: slice, data: torch.Tensor, submit: Callable[[Tensor], Operation],
              back: slice, finish: Callable[[list[torch.Tensor]], Any]) -> Work:
        """`data`, a row for each part at `place` of a tensor, by operations of Mercury's; `finish` gets the parts at `back` of what came
        of it, if there are elements. It ends once it is known, too, that all ranks have called the same. If they have not, the group
        fails on all of them."""
        work = self.work(call.name, device=data.device)
        key = key._replace(urgent=key.urgent and key.numel < SMALL)
        with self._lock:
            self._progress.check()
            try:
                self._begin_all(call, key, place, data, submit, back, finish, work)
            except JobFailedError as error:
                raise failure_of(error) from error
        return work

    def _begin_all(self, call: Call, key: Key, place: slice, data: torch.Tensor, submit: Callable[[Tensor], Operation],
                   back: slice, finish: Callable[[list[torch.Tensor]], Any], work: Work) -> None:
        """What the ranks call, and the elements."""
        # Pieces of a tensor on a GPU would be put together on the CPU.
        is_whole = 0 < key.numel and (key.numel < SMALL or data.is_cuda or self._has_own(key, data.element_size()))
        pieces = [(0, key.numel)] if is_whole else cut(key.numel, key.largest_piece(data.element_size()), SMALL)
        results: list[Any] = []
        whole = torch.empty((key.parts, 0 if is_whole else key.numel), dtype=data.dtype)[back]
        ended = all_of(work, 1 + len(pieces), lambda: results[0] if is_whole else finish(list(whole)))

        def take_whole(parts: list[torch.Tensor]) -> None:
            results.append(finish(parts))
        agreement = Agreement(ended, self._progress.fail)
        flight = self._agree(call, agreement)
        try:
            for at, count in pieces:
                part_of_all: Callable[[list[torch.Tensor]], None] = partial(put, whole[:, at:at + count])
                self._begin(key._replace(numel=count), place, data[:, at:at + count], submit, back, take_whole if is_whole else part_of_all,
                            Piece(ended))
        except MercuryError as error:
            self._progress.add(flight)
            # Of a tensor that ranks have declared differently, perhaps, or of a rank that has ended of it: what they have called says more.
            raise again(agreement.wait() or error) from None
        self._progress.add(flight)  # at last, so that the thread looks once

    def _declare_calls(self) -> deque[_Slot]:
        """Each rank's line of text to all, of some calls. Part r is added up on rank r's host."""
        job = self._job
        array = self._context.zeros((_CALLS_IN_FLIGHT, LINE_BYTES * job.workers), "uint8")
        tensors = job.declare_all({turn * job.servers: row for turn, row in enumerate(array)})
        return deque(_Slot(tensor, torch.from_numpy(row).view(job.workers, LINE_BYTES)) for tensor, row in zip(tensors.values(), array))

    def _agree(self, call: Call, agreement: Agreement) -> _Flight:
        slot = self._calls[0]
        self._calls.rotate(-1)
        slot.free.wait()
        slot.free.clear()
        rank = self._job.rank
        try:
            slot.memory[rank] = torch.frombuffer(bytearray(call.line()), dtype=torch.uint8)
            operation = slot.tensor.all_gather()
        except BaseException:
            slot.free.set()
            raise
        return _Flight(slot, operation, lambda: compare(rank, list(slot.memory)), agreement)

    def _begin(self, key: Key, place: slice, data: torch.Tensor, submit: Callable[[Tensor], Operation], back: slice,
               finish: Callable[[list[torch.Tensor]], Any], work: Ending) -> None:
        """As one operation."""
        rounded, stage = key.rounded(), self._stages.of(data)
        slot = self._next_slot(rounded, data)
        slot.free.wait()
        slot.free.clear()
        try:
            parts = slot.memory.view(key.parts, rounded.numel)[:, :key.numel]
            come = list(parts[back])
            if stage is not None:
                return self._leave(stage, slot, parts[place], data, partial(submit, slot.tensor), lambda: finish(come), work)
            parts[place].copy_(data)
            operation = submit(slot.tensor)
        except BaseException:
            slot.free.set()
            raise
        self._progress.add(_Flight(slot, operation, lambda: finish(come), work))

    def _has_own(self, key: Key, width: int) -> bool:
        """Whether it has memory of its own, as a size that comes again does while there is some."""
        if key in self._slots or key in self._own:
            return True
        if not self._owners.knew(key) or not self._owners.take(key.numel * key.parts * width):
            return False
        self._own.add(key)
        return True

    def _leave(self, stage: Stage, slot: _Slot, part: torch.Tensor, data: torch.Tensor, submit: Callable[[], Operation],
               finish: Callable[[], Any], work: Ending) -> None:
        """From a GPU, and back to it."""
        if not slot.is_pinned:
            pin(slot.tensor.array)
            slot.is_pinned = True
        mark = stage.mark()

        def begin() -> None:
            try:
                operation = submit()
            except Exception as error:
                slot.free.set()
                work.end(error)
                raise
            self._progress.add(_Flight(slot, operation, lambda: stage.finish(mark, finish), work))
        stage.leave(part, data, begin)

    def stop(self) -> None:
        """No collective begins or ends any more."""
        self._stages.close()
        self._progress.stop()

    def stop_callbacks(self) -> None:
        """Once messages have ended too."""
        self._callbacks.stop()

    def _next_slot(self, key: Key, data: torch.Tensor) -> _Slot:
        slots = self._slots.setdefault(key, deque())
        slot = self._new_slot(key, data.dtype) if self._may_have_more(key, slots, data.element_size()) else slots.popleft()
        slots.append(slot)
        return slot

    def _may_have_more(self, key: Key, slots: deque[_Slot], width: int) -> bool:
        most = _PIECES_IN_FLIGHT if SMALL < key.numel == key.largest_piece(width) else _IN_FLIGHT
        if not slots or len(slots) == most:
            return not slots
        return key not in self._own or self._owners.take(key.numel * key.parts * width)

    def _new_slot(self, key: Key, dtype: torch.dtype) -> _Slot:
        array = self._context.zeros(key.numel * key.parts, key.dtype)
        op = key.kind if key.kind not in ("broadcast", "all_gather") else "sum"
        if key.parts > 1:  # rank r's part is then what server r adds up, which is on the same host where each rank serves
            self._declared += -self._declared % self._job.servers
        tensor = self._job.declare(self._declared, array, op=op, dtype=key.dtype, priority=_URGENT if key.urgent else _PATIENT)
        self._declared += 1
        return _Slot(tensor, over(array, dtype))
