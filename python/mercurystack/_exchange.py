"""Collectives by a job's operations: elements are copied into memory of Mercury's, and a thread copies back what came of them."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from mercurystack import _native
from mercurystack._calls import LINE_BYTES, Agreement, Call, compare
from mercurystack._context import Context
from mercurystack._errors import JobFailedError, MercuryError, error_of
from mercurystack._job import Job, Tensor
from mercurystack._operation import How, Operation
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
SUM, GATHER, SCATTER = How(_native.PUSH_PULL), How(_native.ALL_GATHER), How(_native.REDUCE_SCATTER)


def part(place: int) -> slice:
    return slice(place, place + 1)


def from_root(root: int) -> How:
    return How(_native.BROADCAST, root=root)


class _Slot:
    """Memory of Mercury's for one collective at a time."""

    def __init__(self, tensor: Tensor, memory: torch.Tensor) -> None:
        self.tensor = tensor
        self.memory = memory
        self.is_pinned = False
        self.free = threading.Event()
        self.free.set()


class _LineSlot(_Slot):
    """For a line of each rank."""

    def __init__(self, tensor: Tensor, memory: torch.Tensor) -> None:
        super().__init__(tensor, memory)
        self.lines = memoryview(memory.numpy())


class _Ready(NamedTuple):
    """To be submitted."""

    slot: _Slot
    how: How
    finish: Callable[[], Any]  # takes the elements back; what the future's result is
    work: Ending


class _Flight(NamedTuple):
    operation: Operation
    of: _Ready


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

    def add(self, flights: Sequence[_Flight]) -> None:
        with self._lock:
            if not self._ends:
                self._flights += flights
                # Of those that have ended before they were added, and whose completions were collected, the job says nothing more.
                if not self._is_woken and any(flight.operation.is_known_done() for flight in flights):
                    os.write(self._woken, b"x")
                    self._is_woken = True
                return
        for flight in flights:
            flight.of.slot.free.set()
            flight.of.work.end(self._failure)

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
            flight.of.slot.free.set()
            flight.of.work.end(failure)

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
                result = flight.of.finish()
            except Exception as error:  # of a tensor that the caller has changed meanwhile
                failure = error
        flight.of.slot.free.set()
        flight.of.work.end(failure, result)


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

    def begin(self, call: Call, key: Key, place: slice, data: torch.Tensor, how: How,
              back: slice, finish: Callable[[list[torch.Tensor]], Any]) -> Work:
        """`data`, a row for each part at `place` of a tensor, by operations of Mercury's; `finish` gets the parts at `back` of what came
        of it, if there are elements. It ends once it is known, too, that all ranks have called the same. If they have not, the group
        fails on all of them."""
        work = self.work(call.name, device=data.device)
        key = key._replace(urgent=key.urgent and key.numel < SMALL)
        with self._lock:
            self._progress.check()
            try:
                self._begin_all(call, key, place, data, how, back, finish, work)
            except JobFailedError as error:
                raise failure_of(error) from error
        return work

    def _begin_all(self, call: Call, key: Key, place: slice, data: torch.Tensor, how: How,
                   back: slice, finish: Callable[[list[torch.Tensor]], Any], work: Work) -> None:
        """What the ranks call, and the elements."""
        # Pieces of a tensor on a GPU would be put together on the CPU.
        is_whole = 0 < key.numel and (key.numel < SMALL or data.is_cuda or self._has_own(key, data.element_size()))
        pieces = [(0, key.numel)] if is_whole else cut(key.numel, key.largest_piece(data.element_size()), SMALL)
        results: list[Any] = []
        ended = all_of(work, 1 + len(pieces), lambda: results[0] if is_whole else finish(list(whole)))

        def take_whole(parts: list[torch.Tensor]) -> None:
            results.append(finish(parts))
        agreement = Agreement(ended, self._progress.fail)
        if is_whole and not data.is_cuda and self._is_declared(key.rounded(), data):
            own = self._ready(key, place, data, how, back, take_whole, Piece(ended))
            self._submit_behind_line(call, agreement, key, [own])
            return
        with torch.inference_mode(False):  # type: ignore[no-untyped-call]  # the progress thread writes it
            whole = torch.empty((key.parts, 0 if is_whole else key.numel), dtype=data.dtype)[back]
        self._submit_behind_line(call, agreement, key, [])
        try:
            for at, count in pieces:
                part_of_all: Callable[[list[torch.Tensor]], None] = partial(put, whole[:, at:at + count])
                self._begin(key._replace(numel=count), place, data[:, at:at + count], how, back, take_whole if is_whole else part_of_all,
                            Piece(ended))
        except MercuryError as error:
            # Of a tensor that ranks have declared differently, perhaps, or of a rank that has ended of it: what they have called says more.
            raise again(agreement.wait() or error) from None

    def tell(self, call: Call, told: Callable[[Optional[Exception], int], None]) -> None:
        """What this rank has called, of a collective whose elements go by messages; `told` once it is known whether all ranks have. If
        they have not, the group fails on all of them."""
        with self._lock:
            self._progress.check()
            try:
                self._submit_behind_line(call, Agreement(told, self._progress.fail), Key("sum", "uint8", 0, 1), [])
            except JobFailedError as error:
                raise failure_of(error) from error

    def _declare_calls(self) -> deque[_LineSlot]:
        """Each rank's line of text to all, of some calls. Part r is added up on rank r's host."""
        job = self._job
        array = self._context.zeros((_CALLS_IN_FLIGHT, LINE_BYTES * job.workers), "uint8")
        tensors = job.declare_all({turn * job.servers: row for turn, row in enumerate(array)})
        return deque(_LineSlot(tensor, torch.from_numpy(row)) for tensor, row in zip(tensors.values(), array))

    def _submit_behind_line(self, call: Call, agreement: Agreement, key: Key, own: list[_Ready]) -> None:
        """What this rank has called, and what is ready of it, in one call of Mercury's."""
        slot = self._calls[0]
        self._calls.rotate(-1)
        rank = self._job.rank
        try:
            slot.free.wait()
        except BaseException:  # a signal's
            _free(own)
            raise
        slot.free.clear()
        lines = slot.lines
        lines[rank * LINE_BYTES:(rank + 1) * LINE_BYTES] = call.line()
        how = GATHER if key.urgent or key.numel else GATHER._replace(priority=_PATIENT)  # a barrier's is all that it has
        self._submit([_Ready(slot, how, lambda: compare(rank, lines), agreement), *own])

    def _submit(self, ready: Sequence[_Ready]) -> None:
        try:
            operations = self._job._submit_all([(one.slot.tensor, one.how) for one in ready])
        except BaseException:
            _free(ready)
            raise
        self._progress.add([_Flight(operation, one) for operation, one in zip(operations, ready)])

    def _begin(self, key: Key, place: slice, data: torch.Tensor, how: How, back: slice, finish: Callable[[list[torch.Tensor]], Any],
               work: Ending) -> None:
        """As one operation."""
        stage = self._stages.of(data)
        if stage is None:
            self._submit([self._ready(key, place, data, how, back, finish, work)])
        else:
            ready, parts = self._take_slot(key, data, how, back, finish, work)
            self._leave(stage, ready, parts[place], data)

    def _ready(self, key: Key, place: slice, data: torch.Tensor, how: How, back: slice, finish: Callable[[list[torch.Tensor]], Any],
               work: Ending) -> _Ready:
        """With the elements in its memory."""
        ready, parts = self._take_slot(key, data, how, back, finish, work)
        try:
            parts[place].copy_(data)
        except BaseException:
            _free([ready])
            raise
        return ready

    def _take_slot(self, key: Key, data: torch.Tensor, how: How, back: slice, finish: Callable[[list[torch.Tensor]], Any],
                   work: Ending) -> tuple[_Ready, torch.Tensor]:
        """And its memory, a row for each part."""
        rounded = key.rounded()
        slot = self._next_slot(rounded, data)
        parts = slot.memory.view(key.parts, rounded.numel)[:, :key.numel]
        come = list(parts[back])
        slot.free.wait()
        slot.free.clear()
        return _Ready(slot, how, lambda: finish(come), work), parts

    def _has_own(self, key: Key, width: int) -> bool:
        """Whether it has memory of its own, as a size that comes again does while there is some."""
        if key in self._slots or key in self._own:
            return True
        if not self._owners.knew(key) or not self._owners.take(key.numel * key.parts * width):
            return False
        self._own.add(key)
        return True

    def _leave(self, stage: Stage, ready: _Ready, part: torch.Tensor, data: torch.Tensor) -> None:
        """From a GPU, and back to it."""
        slot = ready.slot
        try:
            if not slot.is_pinned:
                pin(slot.tensor.array)
                slot.is_pinned = True
            mark = stage.mark()
            there = ready._replace(finish=lambda: stage.finish(mark, ready.finish))

            def begin() -> None:
                try:
                    self._submit([there])
                except Exception as error:
                    ready.work.end(error)
                    raise
            stage.leave(part, data, begin)
        except BaseException:
            _free([ready])
            raise

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

    def _is_declared(self, key: Key, data: torch.Tensor) -> bool:
        """Whether the next slot is one that there is: nobody waits for the other ranks to declare it."""
        return len(self._slots.get(key, ())) == _most_in_flight(key, data.element_size())

    def _may_have_more(self, key: Key, slots: deque[_Slot], width: int) -> bool:
        if not slots or len(slots) == _most_in_flight(key, width):
            return not slots
        return key not in self._own or self._owners.take(key.numel * key.parts * width)

    def _new_slot(self, key: Key, dtype: torch.dtype) -> _Slot:
        array = self._context.zeros(key.numel * key.parts, key.dtype)
        op = key.kind if key.kind not in ("broadcast", "all_gather") else "sum"
        if key.parts > 1:  # rank r's part is then what server r adds up, which is on the same host where each rank serves
            self._declared += -self._declared % self._job.servers
        tensor = self._job.declare(self._declared, array, op=op, dtype=key.dtype, priority=_URGENT if key.urgent else _PATIENT)
        self._declared += 1
        with torch.inference_mode(False):  # type: ignore[no-untyped-call]  # it is for whoever comes with this size
            return _Slot(tensor, over(array, dtype))


def _most_in_flight(key: Key, width: int) -> int:
    return _PIECES_IN_FLIGHT if SMALL < key.numel == key.largest_piece(width) else _IN_FLIGHT


def _free(ready: Sequence[_Ready]) -> None:
    for one in ready:
        one.slot.free.set()
