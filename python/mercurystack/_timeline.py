"""When a worker computed, what was under way, and for whose sum the forward pass waited."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import threading
import time
from collections import defaultdict, deque
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from mercurystack._errors import MercuryError
from mercurystack._gradient import ManagedParameter
from mercurystack._job import Job
from mercurystack._operation import Operation
from mercurystack._staging import Leaving

_COMPUTING = 0  # the row of what the training's thread does


class Span(NamedTuple):
    """Times are of the monotonic clock."""

    kind: str  # "forward", "backward", "wait", "update", "exchange"
    name: str  # of the module, or of the parameter
    iteration: int
    begin_ns: int
    end_ns: int


class Summary(NamedTuple):
    """Of the iterations that are in the timeline as a whole. Seconds, medians; waits are means an iteration."""

    iterations: int
    iteration_s: float
    waited_s: float
    waited_for: list[tuple[str, float]]  # parameters, the longest first

    def __str__(self) -> str:
        if not self.iterations:
            return "no iteration was recorded as a whole"
        text = f"{self.iterations} iterations, median {1e3 * self.iteration_s:.1f} ms, of it {1e3 * self.waited_s:.1f} ms waiting for sums"
        longest = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.waited_for[:3])
        return text + (f"; on average longest for {longest}" if longest else "")


class Timeline:
    """The newest `most` spans. A thread notes when sums are back; everything else is the training's thread."""

    def __init__(self, job: Job, most: int) -> None:
        self._job = job
        self._spans: deque[Span] = deque(maxlen=most)
        self._steps: deque[int] = deque(maxlen=most)  # when step() was called, of the newest iterations
        self._iteration = 0
        self._running: Optional[tuple[str, int]] = None  # a module of the forward pass, and its begin
        self._backward_from = time.monotonic_ns()
        self._under_way: dict[Union[Operation, Leaving], tuple[ManagedParameter, int, int]] = {}
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)  # the thread ends with the job
        self._thread = threading.Thread(target=self._watch, name="mercury-timeline", daemon=True)
        self._thread.start()

    # ---- from the training's thread ------------------------------------------------------------

    def forward(self, name: str) -> None:
        """A module begins to compute."""
        self._running = (name, time.monotonic_ns())

    def pause(self) -> None:
        """What the forward pass computes ends here: at another module, at its end, or at what comes after it."""
        if self._running is not None:
            name, begin = self._running
            self._running = None
            self._backward_from = time.monotonic_ns()
            self._add("forward", name, begin, self._backward_from)

    def gradient(self, name: str) -> None:
        self.pause()
        now = time.monotonic_ns()
        self._add("backward", name, self._backward_from, now)
        self._backward_from = now

    def sent(self, one: ManagedParameter) -> None:
        if one.operation is not None:
            self._under_way[one.operation] = (one, self._iteration, time.monotonic_ns())
            self._tell(b"s")  # it may be back already, and have been seen by nobody

    @contextlib.contextmanager
    def span(self, kind: str, name: str) -> Iterator[None]:
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(kind, name, begin, time.monotonic_ns())

    @contextlib.contextmanager
    def update(self, names: Sequence[str]) -> Iterator[None]:
        """Of several at once: each has a span of all that time."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            end = time.monotonic_ns()
            for name in names:
                self._add("update", name, begin, end)

    def step(self) -> None:
        self.pause()
        self._iteration += 1
        self._steps.append(time.monotonic_ns())

    def _add(self, kind: str, name: str, begin: int, end: int) -> None:
        self._spans.append(Span(kind, name, self._iteration, begin, end))

    # ---- when sums are back --------------------------------------------------------------------

    def _watch(self) -> None:
        with contextlib.suppress(MercuryError, ValueError, OSError):  # the job has failed, or is closed
            while True:
                ready, _, _ = select.select([self._awake, self._job.fileno()], [], [])
                if self._awake in ready and b"e" in os.read(self._awake, 4096):
                    return
                self._job.poll()
                self._note_ended()

    def _note_ended(self) -> None:
        now = time.monotonic_ns()
        for operation, (one, iteration, begin) in list(self._under_way.items()):
            if operation._status is not None and self._under_way.pop(operation, None) is not None:
                self._spans.append(Span("exchange", one.name, iteration, begin, now))

    def taken(self) -> None:
        """The training's thread has a sum, and what came with it: who collects completions leaves none to the other thread."""
        self._note_ended()

    def close(self) -> None:
        self._tell(b"e")
        self._thread.join()
        for end in (self._awake, self._wake):
            with contextlib.suppress(OSError):  # closed before
                os.close(end)

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # full, as nobody reads; or closed
            os.write(self._wake, what)

    # ---- what is in it -------------------------------------------------------------------------

    def spans(self) -> list[Span]:
        return list(self._spans)

    def whole(self) -> list[tuple[int, int]]:
        """Begin and end, from step() to step(), of the iterations of which all spans are kept."""
        steps = list(self._steps)
        oldest = min((span.begin_ns for span in self.spans()), default=0)
        return [(begin, end) for begin, end in zip(steps, steps[1:]) if begin >= oldest]

    def summary(self) -> Summary:
        whole, spans = self.whole(), self.spans()
        if not whole:
            return Summary(0, 0.0, 0.0, [])
        by_name: dict[str, int] = defaultdict(int)
        waited = []
        for begin, end in whole:
            inside = [span for span in spans if span.kind == "wait" and begin <= span.begin_ns < end]
            waited.append(sum(span.end_ns - span.begin_ns for span in inside))
            for span in inside:
                by_name[span.name] += span.end_ns - span.begin_ns
        longest = sorted(((name, ns / 1e9 / len(whole)) for name, ns in by_name.items()), key=lambda one: -one[1])
        return Summary(len(whole), statistics.median(end - begin for begin, end in whole) / 1e9, statistics.median(waited) / 1e9,
                       longest)

    def write(self, path: str) -> None:
        spans = sorted(self._spans, key=lambda span: span.begin_ns)
        tensors = dict.fromkeys(span.name for span in spans if span.kind == "exchange")
        rows = {name: row for row, name in enumerate(tensors, 1)}
        worker = self._job.rank
        events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": worker, "args": {"name": f"worker {worker}"}}]
        for name, row in [("computing", _COMPUTING), *rows.items()]:
            events.append({"name": "thread_name", "ph": "M", "pid": worker, "tid": row, "args": {"name": name}})
        for span, row in _placed(spans, rows):
            events.append({"name": f"{span.kind} {span.name}", "cat": span.kind, "ph": "X", "ts": span.begin_ns / 1e3,
                           "dur": (span.end_ns - span.begin_ns) / 1e3, "pid": worker, "tid": row,
                           "args": {"iteration": span.iteration, "layer": span.name}})
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _placed(spans: Sequence[Span], rows: Mapping[str, int]) -> Iterator[tuple[Span, int]]:
    """Each with its row. An update is in its tensor's, too; of those that are one step, the first stands among what is computed."""
    updated = 0
    for span in spans:
        if span.kind in ("exchange", "update") and span.name in rows:
            yield span, rows[span.name]
        if span.kind != "exchange" and not (span.kind == "update" and span.begin_ns == updated):
            yield span, _COMPUTING
        if span.kind == "update":
            updated = span.begin_ns
