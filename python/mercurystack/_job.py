"""A job, its tensors, and who waits for what of it."""

from __future__ import annotations

import ctypes
import errno
import logging
import select
import threading
import time
import weakref
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from mercurystack import _native
from mercurystack._flight import Flight, Use
from mercurystack._memory import ArrayLike, View, view_of
from mercurystack._operation import OWN_PRIORITY, How, Operation

if TYPE_CHECKING:
    from mercurystack._context import Attachment, _Server

# Until a user of a terminal wonders. A job whose members have all been started opens in less.
FIRST_TOLD_S = 5.0
_MOST_PAUSE_MS = 100  # between two tries to submit

_ROLES = {"worker": _native.ROLE_WORKER, "server": _native.ROLE_SERVER}
_MOST = 2**31 - 1  # of C's int
_BOUNDS = {"rank": (-1, 1023), "workers": (1, 1024), "servers": (1, 1024), "weight": (1, 1000), "quorum": (0, 1024), "deterministic": (0, 1)}
_TEXTS = ("name", "secret", "rendezvous", "policy")
_MOST_MS = (-1, _MOST)  # for the others, which are times
_MOST_NUMBER = 2**31 - 2
_MOST_PRIORITY = 65535
_OPS = {"sum": _native.SUM, "average": _native.AVERAGE, "min": _native.MIN, "max": _native.MAX}


@dataclass(frozen=True)
class JobOptions:
    """What a member says of its job (docs/api.md, "Opening a job"). None: as the launcher says, else the default.

    name: 1 to 63 letters, digits, "_", "." and "-", the same on all members. secret: the same on all members, if it has one.
    role: "worker" or "server". rank: 0 to 1023 within the role, or -1, any free one. workers, servers: how many there are, 1
    to 1024 of each. rendezvous: "HOST[:PORT][,...]", server 0's first. timeout_ms: milliseconds for everyone to be there (default
    30,000). deterministic: sums are the same bits whatever the order of arrival. weight: the job's share among those on a
    link, 1 to 1000 (default 1). rejoin_ms: milliseconds that the job waits for a worker that was lost to be started again (default 0: it
    fails at once). quorum: how many workers' contributions are enough for a sum, once patience_ms, milliseconds, have passed since the
    first (default 0: all workers'). policy: how gradients are exchanged (docs/simulator.md). stall_timeout_ms: milliseconds after
    which a worker that has not pushed what others have counts as lost (default 1,800,000).
    """

    name: Optional[str] = None
    secret: Optional[str] = None
    role: Optional[str] = None
    rank: Optional[int] = None
    workers: Optional[int] = None
    servers: Optional[int] = None
    rendezvous: Optional[str] = None
    timeout_ms: Optional[int] = None
    deterministic: Optional[bool] = None
    weight: Optional[int] = None
    rejoin_ms: Optional[int] = None
    quorum: Optional[int] = None
    patience_ms: Optional[int] = None
    policy: Optional[str] = None
    stall_timeout_ms: Optional[int] = None

    def native(self) -> _native.JobOptions:
        """As the library takes them, with what the launcher says."""
        options = _native.JobOptions.initial()
        _native.read_environment(options)
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name == "role":
                if value not in _ROLES:
                    raise ValueError(f"role: expected one of {', '.join(_ROLES)}, got {value!r}")
                options.role = _ROLES[value]
            elif field.name in _TEXTS:
                setattr(options, field.name, _native.text(value))
            else:
                setattr(options, field.name, _native.whole(field.name, value, *_BOUNDS.get(field.name, _MOST_MS)))
        return options


class Contributors(NamedTuple):
    """Whose contributions are in a tensor's last complete round.

    round: its number, from 1; 0: none is complete yet. in_all: ranks of the workers that are in every element's sum. in_any:
    of those that are in some element's."""

    round: int
    in_all: frozenset[int]
    in_any: frozenset[int]


class JobStats(NamedTuple):
    """What this program has exchanged in the job so far.

    operations: how many have completed. bytes_pushed, bytes_pulled: bytes of tensors, without headers and what was sent again,
    that went to servers and came back in rounds that are complete."""

    operations: int
    bytes_pushed: int
    bytes_pulled: int


class Tensor:
    """An array that every worker has declared under the same number. From a push until that round's sum is there,
    the array's memory is Mercury's: it is not to be written, and what is read may be half a sum.

    id: the number that it was declared under, 0 to 2^31-2. array: what was declared."""

    __slots__ = ("id", "array", "_job", "_view", "_asked")

    def __init__(self, job: Job, number: int, array: ArrayLike, view: View) -> None:
        self.id = _native.whole("number", number, 0, _MOST_NUMBER)
        self.array = array
        self._job = job
        self._view = view
        self._asked = _native.SubmittedOperation.initial()  # of its operations, one at a time
        self._asked.tensor = self.id

    def push_pull(self, priority: Optional[int] = None) -> Operation:
        """Sends the array; done when it holds the sum over all workers. priority: 0 (most urgent) to 65535, None:
        the tensor's own."""
        return self._job._submit(self, _native.PUSH_PULL, _priority_of(priority))

    def push(self, priority: Optional[int] = None) -> Operation:
        """Done when the servers have all of it. The sum still arrives in the array: pull() is done when it is there."""
        return self._job._submit(self, _native.PUSH, _priority_of(priority))

    def pull(self, priority: Optional[int] = None) -> Operation:
        """Done when the array holds the sum of the round that was pushed last. One pull for each push."""
        return self._job._submit(self, _native.PULL, _priority_of(priority))

    def broadcast(self, root: int, priority: Optional[int] = None) -> Operation:
        """Done when the array holds worker `root`'s elements; the others send none."""
        return self._job._submit(self, _native.BROADCAST, _priority_of(priority), self._rank_of("root", root))

    def all_gather(self, priority: Optional[int] = None) -> Operation:
        """Worker r has the r-th of as many equal parts as there are workers; done when the array holds all parts. Of a
        tensor of integers with op "sum", which may stand for any type's bytes."""
        return self._job._submit(self, _native.ALL_GATHER, _priority_of(priority))

    def reduce_scatter(self, priority: Optional[int] = None) -> Operation:
        """Sends the array; done when its part() holds that part of the sum over all workers. The rest has no meaning then."""
        return self._job._submit(self, _native.REDUCE_SCATTER, _priority_of(priority))

    def part(self, rank: Optional[int] = None) -> slice:
        """Of the array's elements in a row, those that worker `rank` (None: this one) has of a reduce_scatter()."""
        begin, numel = ctypes.c_uint64(), ctypes.c_uint64()
        place = self._job.rank if rank is None else self._rank_of("rank", rank)
        with self._job._use as job:
            _native.check(_native.library.mercury_tensor_get_part(job, self.id, place, ctypes.byref(begin), ctypes.byref(numel)))
        return slice(begin.value, begin.value + numel.value)

    def _rank_of(self, name: str, rank: int) -> int:
        return _native.whole(name, rank, 0, self._job.workers - 1)

    @property
    def round(self) -> int:
        """The round that the next push belongs to: 1 first; in a worker that came back, the one that the others are in."""
        number = ctypes.c_uint32()
        with self._job._use as job:
            _native.check(_native.library.mercury_tensor_get_round(job, self.id, ctypes.byref(number)))
        return number.value

    def contributors(self) -> Contributors:
        """Who is in the last complete round: all workers, but for a job with a quorum."""
        found = _native.Contributors.initial()
        with self._job._use as job:
            _native.check(_native.library.mercury_tensor_get_contributors(job, self.id, ctypes.byref(found)))

        def members(*sets: ctypes.Array[ctypes.c_uint64]) -> frozenset[int]:
            words = [word for words in sets for word in words]
            return frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1)
        return Contributors(found.round, members(found.in_all, found.in_all_above),
                            members(found.in_any, found.in_any_above))

    def __repr__(self) -> str:
        return f"<Tensor {self.id} of {self._view.elements} elements>"


class _Opening(threading.Thread):
    """mercury_job_open, which no signal interrupts, on a thread of its own, so that its caller can be."""

    def __init__(self, attachment: Attachment, options: _native.JobOptions, tells: bool) -> None:
        super().__init__(name="mercury-open", daemon=True)
        self._attachment, self._options, self._tells = attachment, options, tells
        self._pointer = ctypes.c_void_p()
        self._failure: Optional[BaseException] = None
        self._lock = threading.Lock()
        self._is_open = self._is_left = False

    def run(self) -> None:
        try:
            with self._attachment.use() as context:
                code = _native.library.mercury_job_open(context, ctypes.byref(self._options), ctypes.byref(self._pointer))
                if code == -errno.ESHUTDOWN:
                    self._attachment.check_open()
                _native.check(code)
                with self._lock:
                    self._is_open = True
                    if self._is_left:
                        _native.library.mercury_job_close(self._pointer)
        except BaseException as failure:  # the caller's
            self._failure = failure

    def result(self) -> ctypes.c_void_p:
        """The job. What comes of an interrupted call is closed as soon as it is there; closing the context ends the call."""
        self.start()
        try:
            self._await()
        except BaseException:
            with self._lock:
                self._is_left = True
                if self._is_open:
                    _native.library.mercury_job_close(self._pointer)
            raise
        if self._failure is not None:
            raise self._failure
        return self._pointer

    def _await(self) -> None:
        """Says what it waits for while that lasts, less often as it goes on."""
        seconds = FIRST_TOLD_S
        while self._tells:
            self.join(seconds)
            if not self.is_alive():
                return
            logging.getLogger("mercurystack").warning("%s", self._what_it_waits_for())
            seconds *= 2
        self.join()

    def _what_it_waits_for(self) -> str:
        asked, rendezvous = self._options, (self._options.rendezvous or b"").decode()
        servers = asked.servers or rendezvous.count(",") + 1
        who, total = ("worker", asked.workers) if asked.role == _native.ROLE_WORKER else ("server", servers)
        rank = f"{who} {asked.rank} of {total}" if asked.rank >= 0 else f"one {who} of {total}"
        limit = f"; after {asked.timeout_ms / 1000:g} s it fails, and says which are missing" if asked.timeout_ms > 0 else ""
        return (f"{rank} waits for the members of job {(asked.name or b'').decode()!r} (workers: {asked.workers}, servers: {servers}, "
                f"rendezvous: {rendezvous}){limit}")


class Job:
    """Workers that sum tensors with each other, and the servers that add them up. Opened by Context.open_job().

    Any thread may call. Closing it ends what is in flight, other threads' waits, and what event loops await: they raise ValueError."""

    def __init__(self, attachment: Attachment, options: JobOptions, server: Optional[_Server] = None, tells: bool = True) -> None:
        native = options.native()
        self._attachment = attachment  # lives as long as its jobs
        with attachment.use():
            pointer = _Opening(attachment, native, tells).result()
            self._rank: int = _native.library.mercury_job_get_rank(pointer)
            self._workers: int = _native.library.mercury_job_get_workers(pointer)
            self._servers: int = _native.library.mercury_job_get_servers(pointer)
            self._use: Use = Use(pointer)
            self._flight: Flight = Flight(self._use)
            self._server = server
            self._finalizer = weakref.finalize(self, _leave, attachment, self._use, server)
            attachment.join(self, self._use)
        self._role = next(name for name, value in _ROLES.items() if value == native.role)
        self._rejoin_ms: int = native.rejoin_ms
        self._quorum: int = native.quorum
        self._tensors: dict[int, Tensor] = {}
        self._before_end: list[Callable[[], None]] = []  # what those who use it have to do before a `with` block of it ends in order
        self._terms: Optional[Operation] = None  # of the newest ScheduledOptimizer, if nobody has waited for it

    # ---- about this member, also when the job is closed ----------------------------------------

    @property
    def role(self) -> str:
        """ "worker" or "server"."""
        return self._role

    @property
    def rank(self) -> int:
        """0 up to the number of members of its role, less one."""
        return self._rank

    @property
    def workers(self) -> int:
        """How many workers the job has, 1 to 1024: with those that are lost."""
        return self._workers

    @property
    def servers(self) -> int:
        """How many servers the job has, 1 to 1024."""
        return self._servers

    @property
    def rejoin_ms(self) -> int:
        """Milliseconds that the job waits for a worker that was lost to be started again; 0: it fails at once; -1: 24 days."""
        return self._rejoin_ms

    @property
    def quorum(self) -> int:
        """How many workers' contributions are enough for a sum (JobOptions); 0: all workers'."""
        return self._quorum

    # ---- tensors -------------------------------------------------------------------------------

    def declare(self, number: int, array: ArrayLike, *, op: str = "sum", priority: int = 0,
                dtype: Optional[str] = None) -> Tensor:
        """Declares one tensor (see declare_all)."""
        return self.declare_all({number: array}, op=op, priorities={number: priority}, dtype=dtype)[number]

    def declare_all(self, arrays: Mapping[int, ArrayLike], *, op: str = "sum",
                    priorities: Optional[Mapping[int, int]] = None, dtype: Optional[str] = None) -> dict[int, Tensor]:
        """Declares arrays by their numbers, in one round trip to the servers; every worker declares the same. They lie
        in memory of Context.zeros() or Context.register(), and are C-contiguous, of any shape. priorities: 0, the
        most urgent, for each that it does not have. dtype: "bfloat16" for arrays of elements of two bytes."""
        if op not in _OPS:
            raise ValueError(f"op: expected one of {', '.join(_OPS)}, got {op!r}")
        tensors = {number: Tensor(self, number, array, view_of(array, dtype)) for number, array in arrays.items()}
        options = _native.array_of(_native.TensorOptions, len(tensors))
        for one, tensor in zip(options, tensors.values()):
            one.id, one.numel, one.dtype = tensor.id, tensor._view.elements, tensor._view.dtype
            one.op, one.data = _OPS[op], tensor._view.address
            one.priority = _priority_of((priorities or {}).get(tensor.id, 0))
        with self._use as job:
            _native.check(_native.library.mercury_declare(job, options, len(tensors)))
            self._tensors.update(tensors)  # their arrays stay as long as the job
        return tensors

    def push_pull_all(self, tensors: Iterable[Tensor], priority: Optional[int] = None) -> list[Operation]:
        """Tensor.push_pull() of each, in this order, in one call: all of them, or none if it fails. At most 1,024."""
        how = How(_native.PUSH_PULL, None if priority is None else _priority_of(priority))
        return self._submit_all([(tensor, how) for tensor in tensors])

    # ---- completions ---------------------------------------------------------------------------

    def poll(self) -> int:
        """Marks operations that have ended as done; returns how many. Never waits."""
        with self._use as job:
            return self._flight.collect(job)

    def wait_all(self, operations: Iterable[Operation], timeout: Optional[float] = None) -> None:
        """Waits for each, at most `timeout` seconds for all; raises the first one's failure, once all have ended."""
        due = None if timeout is None else time.monotonic() + timeout
        waited = list(operations)
        for operation in waited:
            self._flight.wait(self._use, operation, None if due is None else max(0.0, due - time.monotonic()))
        for operation in waited:
            operation._raise_failure()

    def fileno(self) -> int:
        """For select and its like: readable while there is something to poll()."""
        with self._use as job:
            return _native.check(_native.library.mercury_job_get_fd(job))

    # ---- the job as a whole --------------------------------------------------------------------

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Blocks until every worker is in it, at most `timeout` seconds (None: for ever). MercuryTimeoutError: not yet; the next call goes on with the same one."""
        _native.check(self._use.wait(_native.library.mercury_barrier, (), timeout))

    def wait_end(self, timeout: Optional[float] = None) -> None:
        """Servers: blocks until the job has ended, at most `timeout` seconds (None: for ever). JobFailedError: it failed.
        MercuryTimeoutError: it goes on."""
        _native.check(self._use.wait(_native.library.mercury_job_wait_end, (), timeout))

    def set_policy(self, policy: str) -> None:
        """All members exchange gradients by another policy from now on (docs/simulator.md)."""
        with self._use as job:
            _native.check(_native.library.mercury_job_set_policy(job, _native.text(policy)))

    def stats(self) -> JobStats:
        """Operations, and bytes of tensors, that this program has completed in the job so far. ValueError: the job is closed."""
        found = _native.JobStats.initial()
        with self._use as job:
            _native.check(_native.library.mercury_job_get_stats(job, ctypes.byref(found)))
        return JobStats(found.operations, found.bytes_pushed, found.bytes_pulled)

    def close(self) -> None:
        """Leaves the job in order. Nothing happens if it is closed. With a server here (Context.open_job, serve) it
        waits until all workers have left; abandon() does not."""
        self._finalizer()

    def _leave(self) -> Optional[_Server]:
        """As close(), without waiting for anybody: returns the server that is here, which goes on until all have left."""
        self._finalizer.detach()
        self._attachment.end_job(self._use)
        return self._server

    def abandon(self) -> None:
        """Leaves, and takes a server that is here with it: the job fails for those who have not left."""
        self._attachment.end_job(self._use)
        if self._server is not None:
            self._server.abandon()
        self._finalizer()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if error is None:
            try:
                for call in self._before_end:
                    call()
            except BaseException:  # Ctrl-C, while it waits for others
                self.abandon()
                raise
            self.close()
        else:
            self.abandon()

    def __repr__(self) -> str:
        return f"<Job, {self.role} {self.rank}>"

    # ---- for tensors and operations ------------------------------------------------------------

    def _submit(self, tensor: Tensor, kind: int, priority: int, root: int = 0) -> Operation:
        """priority: as _priority_of() has it."""
        operation = Operation(tensor)
        pause_ms = 1
        while not self._flight.submit_one(operation, kind, priority, root):
            pause_ms = self._await_room(pause_ms)
        return operation

    def _submit_all(self, asked: Sequence[tuple[Tensor, How]]) -> list[Operation]:
        """In one call: all of them, or none if it fails."""
        operations = [Operation(tensor) for tensor, _ in asked]
        pause_ms = 1
        while True:
            with self._use as job:
                if self._flight.submit(job, operations, [how for _, how in asked]):
                    return operations
            pause_ms = self._await_room(pause_ms)

    def _await_room(self, pause_ms: int) -> int:
        """Until an operation has ended, as more than 65,536 are not in flight, or for a pause: an engine takes 1,024 at a time, and says
        nothing when it has. Returns the next pause. The library refuses what is submitted once the job has failed."""
        if not self.poll():
            poller = select.poll()
            poller.register(self.fileno(), select.POLLIN)
            poller.poll(pause_ms)
        return min(2 * pause_ms, _MOST_PAUSE_MS)

    def _wait(self, operation: Operation, timeout: Optional[float]) -> None:
        self._flight.wait(self._use, operation, timeout)

    async def _awaited(self, operation: Operation) -> None:
        await self._flight.until_ended(self.fileno(), operation)


def _priority_of(priority: Optional[int]) -> int:
    return OWN_PRIORITY if priority is None else _native.whole("priority", priority, 0, _MOST_PRIORITY)


def _leave(attachment: Attachment, use: Use, server: Optional[_Server]) -> None:
    attachment.end_job(use)
    if server is not None:
        server.join()
