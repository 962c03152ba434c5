"""What a run computed when, as a trace that mercury-sim and mercury-replay read (apps/trace/trace.h)."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from typing import NamedTuple, Sequence

from mercurystack._gradient import LEAST_URGENT, ManagedParameter
from mercurystack._timeline import Span, Timeline
from mercurystack._watching import Watch

_COLUMNS = "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority,update_ns"
_TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
_LONGEST_NAME = 127
_COMPUTING = ("forward", "backward", "update")


class TraceTensor(NamedTuple):
    """One that is sent, in the order of the forward pass."""

    name: str  # of the parameter
    module: str  # as the timeline's spans of the forward pass have it
    numel: int
    dtype: str
    priority: int


def tensors_of(parameters: Sequence[ManagedParameter], watch: Watch) -> list[TraceTensor]:
    found = []
    for one in parameters:
        if one.tensor is not None:
            place = watch.place_of(one)
            module = "model" if place is None or not place.name else place.name
            found.append(TraceTensor(one.name, module, one.parameter.numel(), one.mercury_type,
                                     LEAST_URGENT if one.priority is None else one.priority))
    return sorted(found, key=lambda tensor: tensor.priority)


class _Sums:
    """Nanoseconds of one iteration or, added up, of several: of a layer's forward pass at its first tensor."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in _COMPUTING}

    def add(self, other: _Sums, share: float) -> None:
        for kind, times in other.of.items():
            for name, ns in times.items():
                self.of[kind][name] += ns * share


def _computed(spans: Sequence[Span], begin_ns: int, end_ns: int, first_of: dict[str, str], sent: set[str], first: str) -> _Sums:
    """Of an iteration's spans, in their order. All time counts but for waits: what no span has, for the span behind it; what is
    behind the last one, a loop's own work, for the first layer."""
    sums, last, now = _Sums(), first, begin_ns
    for span in spans:
        if span.kind == "wait":
            sums.of["forward"][last] += max(0, span.begin_ns - now)
        else:
            if span.kind == "forward":
                last = first_of.get(span.name, last)  # one that sends nothing counts for the layer before it
            name = last if span.kind == "forward" or span.name not in sent else span.name
            sums.of[span.kind][name] += max(0, span.end_ns - now)
        now = max(now, span.end_ns)
    sums.of["forward"][first] += max(0, end_ns - now)
    return sums


def _middle(whole: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The half of the iterations that were neither short nor long: of these, parts add up to the whole."""
    by_length = sorted(whole, key=lambda one: one[1] - one[0])
    cut = len(by_length) // 4
    return by_length[cut:len(by_length) - cut]


def text_of(timeline: Timeline, tensors: Sequence[TraceTensor]) -> str:
    """RuntimeError: there is no whole iteration. ValueError: two names would be one in a trace."""
    whole = timeline.whole()
    if not whole:
        raise RuntimeError("no iteration was recorded as a whole: it takes two steps, and a timeline= that keeps the spans between "
                           f"them, {len(timeline.spans())} are kept")
    first_of: dict[str, str] = {}
    for tensor in tensors:
        first_of.setdefault(tensor.module, tensor.name)
    computing = sorted((span for span in timeline.spans() if span.kind != "exchange"), key=lambda span: span.begin_ns)
    sent = {tensor.name for tensor in tensors}
    middle, mean = _middle(whole), _Sums()
    for begin, end in middle:
        mine = [span for span in computing if begin <= span.begin_ns < end]
        mean.add(_computed(mine, begin, end, first_of, sent, tensors[0].name), 1 / len(middle))
    reached = statistics.mean(end - begin for begin, end in middle)
    lines = [f"# {len(tensors)} tensors, {sum(tensor.numel for tensor in tensors)} parameters. Computing: means of the "
             f"{len(middle)} of {len(whole)} iterations that were neither short nor long, which took {reached / 1e6:.1f} ms each.",
             f"# {timeline.summary()}.", _COLUMNS]
    return "\n".join(lines + _rows(tensors, mean.of, first_of)) + "\n"


def _rows(tensors: Sequence[TraceTensor], ns: dict[str, dict[str, float]], first_of: dict[str, str]) -> list[str]:
    rows, names = [], set()
    layers = {module: place for place, module in enumerate(first_of)}
    # A trace's tensors are in the order of their layers.
    for tensor in sorted(tensors, key=lambda one: layers[one.module]):
        name = re.sub(r"[^A-Za-z0-9_./:-]", "_", tensor.name)[-_LONGEST_NAME:]
        if name in names:
            raise ValueError(f"{tensor.name}: another parameter is called {name} too, once characters that a trace cannot hold are "
                             "replaced")
        names.add(name)
        times = {kind: round(ns[kind].get(tensor.name, 0)) for kind in _COMPUTING}
        rows.append(f"{layers[tensor.module]},{name},{tensor.numel},{_TYPES[tensor.dtype]},{times['forward']},{times['backward']},"
                    f"{tensor.priority},{times['update']}")
    return rows
