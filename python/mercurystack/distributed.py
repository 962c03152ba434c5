"""torch.distributed over Mercury. Importing this makes the backend known:

    import mercurystack.distributed
    torch.distributed.init_process_group("mercury")

Each process runs a server too, so that nothing else is to be started; with MERCURY_RENDEZVOUS set, the daemons that it
names serve, unless the program has opened a job with serve=True there, or MERCURY_GROUP_SERVERS says ranks. Tensors are on the CPU, or on a GPU of CUDA's, from where they are copied through pinned memory. Sums, averages,
least and greatest are Mercury's, as are broadcasts and all-gathers; what Mercury does not add up (products, bits, types that it does not have) each rank reduces itself, of all ranks' tensors.
send, recv, gather, scatter and all_to_all are messages between two ranks.

Beside each collective, by messages too, all ranks say what they have called: if it is not the same, the group fails on all of them.

A collective's elements are copied into memory of Mercury's and back; fewer than 65,536 are sent with as many as the next power
of two. Larger ones go in pieces, powers of two of at most 4 MB, unless their size comes again and there is memory of its own
for it. Four of one size, type and kind may be in flight, 32 of the largest pieces; one more waits for the first. Memory is
kept until the group ends: for sizes of their own 1 GiB in all. Tensors on a GPU are not cut: each of their sizes has memory of
its own, without a bound.
"""

from __future__ import annotations

import datetime
import inspect
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from mercurystack._calls import Call
from mercurystack._errors import MercuryError
from mercurystack._exchange import ALL, SUM, from_root
from mercurystack._pieces import Key
from mercurystack._group import Group, Lists, Tensors, also, checked, copy, dense, listed, lists, only, reduction_of, same, split
from mercurystack._sparse import sum_of
from mercurystack._staging import DEVICES
from mercurystack._tensors import bytes_of
from mercurystack._work import Work, timed_out


class ProcessGroup(Group):
    """A job of Mercury's. Made by torch.distributed."""

    # ---- by Mercury's operations ---------------------------------------------------------------

    @also(tensor="tensors", op="opts")
    def allreduce(self, tensors: Union[torch.Tensor, Tensors], opts: Any = None, timeout: Any = None) -> Work:
        tensors = listed(tensors)
        if len(tensors) == 1 and tensors[0].is_sparse:
            return self._all_reduce_sparse(tensors[0], reduction_of(opts))
        tensor = only(tensors, "all_reduce")
        return self._reduce("all_reduce", [tensor], reduction_of(opts), {0: tensor}, tensors)

    def _all_reduce_sparse(self, tensor: torch.Tensor, reduction: Any) -> Work:
        """Has ended when it returns."""
        if reduction != dist.ReduceOp.SUM:
            raise NotImplementedError(f"the mercury backend has of sparse tensors the SUM alone, not {reduction}")
        total = sum_of(tensor, self._size, self.allgather)
        with torch.no_grad():
            tensor.copy_(total)
        work = self._collectives.work("all_reduce of a sparse tensor", device=tensor.device)
        work.end(None, [tensor])
        return work

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        dense(tensors, "all_reduce_coalesced")
        return self._reduce("all_reduce_coalesced", tensors, reduction_of(opts), dict(enumerate(tensors)), tensors)

    @also(tensor="tensors", root="opts")
    def reduce(self, tensors: Union[torch.Tensor, Tensors], opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        tensors = listed(tensors)
        tensor = only(tensors, "reduce")
        return self._reduce("reduce", [tensor], reduction_of(opts if hasattr(opts, "reduceOp") else op), {0: tensor} if self._root_of(opts) == self._rank else {}, tensors,
                            f", root {self._root_of(opts)}")

    @also(output="output_tensors", input="input_tensors", input_tensor="input_tensors", op="opts")
    def reduce_scatter(self, output_tensors: Union[torch.Tensor, Tensors], input_tensors: Union[Tensors, Lists], opts: Any = None,
                       timeout: Any = None) -> Work:
        output_tensors, input_tensors = listed(output_tensors), lists(input_tensors, isinstance(output_tensors, torch.Tensor))
        output = only(output_tensors, "reduce_scatter")
        parts = dense(input_tensors[0], "reduce_scatter")
        same("reduce_scatter", [output], parts, self._size)
        rows = torch.stack([part.detach().reshape(-1) for part in parts])
        return self._reduce_scatter("reduce_scatter", [rows], reduction_of(opts), [output], output_tensors)

    @also(outputTensor="output", inputTensor="input")
    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        rows = self._rows("reduce_scatter", only([output], "reduce_scatter"), only([input], "reduce_scatter"))
        return self._reduce_scatter("reduce_scatter", [rows], reduction_of(opts), [output], [output])

    @also(outputTensors="outputs", inputTensors="inputs")
    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Of PyTorch 2's functional collectives."""
        rows = [self._rows("reduce_scatter_tensor", output, one) for output, one in zip(outputs, dense(inputs, "reduce_scatter_tensor"))]
        return self._reduce_scatter("reduce_scatter_tensor", rows, reduction_of(opts), outputs, outputs)

    def _rows(self, what: str, output: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        """Of a tensor, one for each rank, each as long as the output."""
        same(what, [output], data.detach().reshape(-1).tensor_split(self._size), self._size)
        return data.detach().reshape(self._size, -1) if data.numel() else data.new_empty((self._size, 0))

    @also(tensor="tensors", root="opts")
    def broadcast(self, tensors: Union[torch.Tensor, Tensors], opts: Any = None, timeout: Any = None) -> Work:
        tensors = listed(tensors)
        tensor = only(tensors, "broadcast")
        data = bytes_of(tensor)

        def finish(parts: Tensors) -> Tensors:
            copy(tensor, parts[0])
            return [tensor]
        return self._exchange(Call("broadcast", tensor.numel(), tensor.dtype, f"root {self._root_of(opts)}"), Key("broadcast", "uint8", data.numel(), 1), ALL, data[None],
                              from_root(self._root_of(opts)), ALL, finish, tensors)

    @also(input_tensor="input_tensors")
    def allgather(self, output_tensors: Union[Tensors, Lists], input_tensors: Union[torch.Tensor, Tensors], opts: Any = None,
                  timeout: Any = None) -> Work:
        output_tensors, input_tensors = lists(output_tensors, isinstance(input_tensors, torch.Tensor)), listed(input_tensors)
        tensor, outputs = only(input_tensors, "all_gather"), output_tensors[0]
        same("all_gather", [tensor], outputs, self._size)
        return self._all_gather("all_gather", [tensor], [[output] for output in outputs], output_tensors)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        if output.numel() != input.numel() * self._size or output.dtype != input.dtype or output.device != input.device:
            raise ValueError(f"all_gather_into_tensor: the output has {output.numel()} elements of {output.dtype} on {output.device}; expected "
                             f"{self._size} times the input's {input.numel()} of {input.dtype} on {input.device}")
        # Parts of a tensor that is not contiguous lie apart: they come to a copy.
        whole = output.detach() if output.is_contiguous() else output.detach().contiguous()
        parts = [[part] for part in whole.view(-1).chunk(self._size)] if output.numel() else []
        return self._all_gather("all_gather_into_tensor", [only([input], "all_gather_into_tensor")], parts, output,
                                None if output.is_contiguous() else lambda: output.detach().copy_(whole))

    @also(output_lists="outputs", input_list="inputs")
    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Of PyTorch 2's functional collectives, whose outputs are contiguous."""
        whole = [output.detach().view(-1).chunk(self._size) for output in outputs]
        for parts, one in zip(whole, dense(inputs, "all_gather_into_tensor")):
            same("all_gather_into_tensor", [one], parts, self._size)
        return self._all_gather("all_gather_into_tensor", inputs, list(zip(*whole)), outputs)

    @also(output_lists="output_tensor_lists", input_list="input_tensors")
    def allgather_coalesced(self, output_tensor_lists: Lists, input_tensors: Tensors, opts: Any = None) -> Work:
        return self._all_gather("all_gather_coalesced", dense(input_tensors, "all_gather_coalesced"), output_tensor_lists, output_tensor_lists)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """It has no elements: what all ranks say of it is all of it."""
        return self._exchange(Call("barrier"), Key("sum", "int32", 0, 1, urgent=False), ALL, torch.zeros(1, 0, dtype=torch.int32), SUM, ALL, lambda parts: None, None)

    # ---- by messages ---------------------------------------------------------------------------

    @also(dstRank="dst")
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        tensor = only(tensors, "send")
        return self._swap(f"send to rank {dst}", checked(tag), {self._peer(dst, "send"): tensor}, {}, tensors)

    @also(srcRank="src")
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        tensor = only(tensors, "recv")
        return self._swap(f"recv from rank {src}", checked(tag), {}, {self._peer(src, "recv"): tensor}, tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self._swap("recv from any rank", checked(tag), {}, {None: only(tensors, "recv")}, tensors)

    @also(input_tensor="input_tensors", root="opts")
    def gather(self, output_tensors: Union[Tensors, Lists], input_tensors: Union[torch.Tensor, Tensors], opts: Any = None, timeout: Any = None) -> Work:
        output_tensors, input_tensors = lists(output_tensors, isinstance(input_tensors, torch.Tensor)), listed(input_tensors)
        tensor, root = only(input_tensors, "gather"), self._root_of(opts)
        call = Call("gather", tensor.numel(), tensor.dtype, f"root {root}")
        if root != self._rank:
            return self._collect(call, {root: tensor}, {}, output_tensors)
        same("gather", [tensor], output_tensors[0], self._size)
        copy(output_tensors[0][self._rank], tensor)
        return self._collect(call, {}, dict(enumerate(output_tensors[0])), output_tensors)

    @also(output_tensor="output_tensors", root="opts")
    def scatter(self, output_tensors: Union[torch.Tensor, Tensors], input_tensors: Union[Tensors, Lists], opts: Any = None, timeout: Any = None) -> Work:
        output_tensors, input_tensors = listed(output_tensors), lists(input_tensors, isinstance(output_tensors, torch.Tensor))
        tensor, root = only(output_tensors, "scatter"), self._root_of(opts)
        call = Call("scatter", tensor.numel(), tensor.dtype, f"root {root}")
        if root != self._rank:
            return self._collect(call, {}, {root: tensor}, output_tensors)
        same("scatter", [tensor], input_tensors[0], self._size)
        copy(tensor, input_tensors[0][self._rank])
        return self._collect(call, dict(enumerate(input_tensors[0])), {}, output_tensors)

    @also(output="output_tensors", input="input_tensors", output_tensor="output_tensors", input_tensor="input_tensors")
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: Any = None) -> Work:
        outputs, inputs = dense(output_tensors, "all_to_all"), dense(input_tensors, "all_to_all")
        if len(outputs) != self._size or len(inputs) != self._size:
            raise ValueError(f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs; expected one of each for {self._size} ranks")
        copy(outputs[self._rank], inputs[self._rank])
        return self._collect(Call("all_to_all", None, inputs[0].dtype), dict(enumerate(inputs)), dict(enumerate(outputs)), output_tensors)

    @also(output_tensor="output", input_tensor="input")
    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: list[int], input_split_sizes: list[int],
                      opts: Any = None, timeout: Any = None) -> Work:
        return self.alltoall(split(output.detach(), output_split_sizes, self._size), split(input.detach(), input_split_sizes, self._size))

    def monitored_barrier(self, timeout: Union[datetime.timedelta, float] = -1., wait_all_ranks: bool = False) -> None:
        """Returns once all ranks are in it, else says on rank 0 who is not. Of this object: torch.distributed's function
        of the name refuses all backends but Gloo."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if seconds < 0:
            seconds = self._timeout
        tag, word = self._next_tag(), torch.zeros(1, dtype=torch.uint8)
        if self._rank == 0:
            self._await_all(tag, seconds, wait_all_ranks)
            self._swap("monitored_barrier", tag, {rank: word for rank in range(1, self._size)}, {}, None).wait()
            return
        try:
            self._swap("monitored_barrier", tag, {0: word}, {}, None).wait()
            self._swap("monitored_barrier", tag, {}, {0: word.clone()}, None, seconds).wait()
        except MercuryError as error:
            raise timed_out(f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                            f"rank 0, which says who did not: {error.strerror}") from error

    def _await_all(self, tag: int, seconds: float, all_late: bool) -> None:
        if seconds == 0:
            raise timed_out("Rank 0 timed out in monitoredBarrier after 0 ms")
        late = []
        asked = {rank: self._swap("monitored_barrier", tag, {}, {rank: torch.zeros(1, dtype=torch.uint8)}, None, seconds)
                 for rank in range(1, self._size)}
        for rank, work in asked.items():
            try:
                work.wait()
            except MercuryError as error:
                late.append(str(rank))
                if not all_late:
                    raise timed_out(f"Rank {rank} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms") from error
        if late:
            raise timed_out(f"Ranks {', '.join(late)} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms")

    # ---- by the names that PyTorch's newer versions have for them (2.15 calls no other) --------

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """The root's output has all ranks' inputs in a row; the others' outputs have no meaning."""
        if self._root_of(opts) != self._rank:
            return self.gather([], [input], opts)
        if not output.is_contiguous() or output.numel() != input.numel() * self._size:
            raise ValueError(f"gather_single: the output has {output.numel()} elements, {'' if output.is_contiguous() else 'not '}contiguous; "
                             f"expected {self._size} times the input's {input.numel()}, contiguous")
        return self.gather([output.detach().view(self._size, *input.shape).unbind()], [input], opts)

    # ---- about the group -----------------------------------------------------------------------

    def _start_coalescing(self, device: Optional[torch.device] = None) -> None:
        """Messages leave at once, in a batch too."""

    def _end_coalescing(self, works: Any) -> None:
        """Each has its own end."""

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        """By which PyTorch 2's functional collectives find it; PyTorch's own one is of groups made of backends."""
        return self._group_name

    def getBackendName(self) -> str:
        return "mercury"

    # PyTorch 2 asks a group for the backend of a device: it is the group.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in _devices()]

    def _get_backend(self, device: Union[str, torch.device]) -> ProcessGroup:
        if torch.device(device).type not in _devices():
            raise RuntimeError(f"the mercury backend takes tensors on {' and '.join(_devices())}, not on {device}")
        return self

    get_backend = _get_backend


def _devices() -> list[str]:
    return [name for name in DEVICES if name != "cuda" or torch.cuda.is_available()]


def _register() -> None:
    takes = inspect.signature(dist.Backend.register_backend).parameters
    devices = {"devices": ["cpu", "cuda"]} if "devices" in takes else {}  # PyTorch 1 asks for none
    dist.Backend.register_backend("mercury", ProcessGroup, **devices)  # type: ignore[no-untyped-call]
    # 2.15's flight recorder takes for granted that a group with devices is made of backends, unless its backend records for itself.
    recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("mercury")


_register()
