"""A program's attachment to an engine."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Iterator, Optional, Union

from mercurystack import _native
from mercurystack._errors import MercuryError
from mercurystack._flight import Use
from mercurystack._job import Job, JobOptions
from mercurystack._memory import AnyArray, ArrayLike, allocate, view_of

_UDP_PORT = 7470  # of a rendezvous that names none
_served: set[str] = set()  # where jobs have met that their workers serve
_MODES = {"auto": _native.MODE_AUTO, "daemon": _native.MODE_DAEMON, "embedded": _native.MODE_EMBEDDED}


class Attachment:
    """The library's context. It ends when it is closed, its jobs too, and no array is left in its memory: so an array
    that outlives its context can still be read.

    The garbage collector may call free() and end_job() at any point of any thread, within the other calls too: they take
    no lock that the thread may hold. Other threads may be in a call when it is closed, or about to make one: the library's
    context stays until they are not.

    In a process that was forked nothing is closed or freed: its end does that, and the parent goes on with all of it.
    """

    def __init__(self, mode: str, socket: Optional[str], listen: Optional[str], rate: Optional[str],
                 daemon_timeout_ms: Optional[int]) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode: expected one of {', '.join(_MODES)}, got {mode!r}")
        options = _native.AttachOptions.initial()
        options.mode = _MODES[mode]
        options.socket = _native.text(socket)
        options.listen = _native.text(listen)
        options.rate = _native.text(rate)
        if daemon_timeout_ms is not None:
            options.daemon_timeout_ms = _native.whole("daemon_timeout_ms", daemon_timeout_ms, -1, 2**31 - 1)
        self.pointer = ctypes.c_void_p()
        _native.check(_native.library.mercury_attach(ctypes.byref(options), ctypes.byref(self.pointer)))
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._arrays: set[int] = set()
        self._users: set[object] = set()  # of `use` and `kept`
        self._uses: set[Use] = set()  # of the jobs that are not ended, also when the program has dropped them
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self._to_detach = [self.pointer]  # taken by whoever ends it

    def allocate(self, size: int) -> int:
        memory = ctypes.c_void_p()
        with self._lock:
            self.check_open()
            _native.check(_native.library.mercury_alloc(self.pointer, size, ctypes.byref(memory)))
            assert memory.value is not None
            self._arrays.add(memory.value)
        return memory.value

    @contextlib.contextmanager
    def use(self) -> Iterator[ctypes.c_void_p]:
        """The context, for a call that another thread's close() may overtake: it ends what blocks then."""
        with self.kept():  # before it looks: close() looks in the other order
            self.check_open()
            yield self.pointer

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within it the library's context is there, if it was."""
        user = object()
        self._users.add(user)
        try:
            yield
        finally:
            self._users.discard(user)
            self._end_if_unused()

    def join(self, job: Job, use: Use) -> None:
        """Closing ends the job that was opened, from now on. ValueError: it was closed meanwhile, and so is the job."""
        self._jobs.add(job)
        self._uses.add(use)  # before it looks: close() looks in the other order
        if self._closed:
            self.end_job(use)
            self.check_open()

    def end_job(self, use: Use) -> None:
        """Returns when it has ended, whoever ends it."""
        if self._is_forked():
            return
        with self.kept():
            use.close(_native.library.mercury_job_close)
            self._uses.discard(use)

    def jobs(self) -> list[Job]:
        return list(self._jobs)

    def free(self, address: int) -> None:
        if self._is_forked():
            return
        # A failure leaves the memory to the end of the attachment: a finalizer has nobody to tell.
        _native.library.mercury_free(self.pointer, address)
        self._arrays.discard(address)
        self._end_if_unused()

    def close(self) -> None:
        """Any number of times, by any threads. An exception of a signal's handler leaves to the next, or to the jobs'
        own ends, what it keeps from being waited for."""
        if self._is_forked():
            return
        with self.kept():
            with self._lock:
                self._closed = True
            try:
                for job in self.jobs():
                    job.close()
                for use in self._uses.copy():  # of jobs that other threads close, or the garbage collector
                    self.end_job(use)
            finally:
                if self._to_detach:
                    _native.library.mercury_context_close(self.pointer)

    def check_open(self) -> None:
        if self._closed:
            raise ValueError("the context is closed")

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _end_if_unused(self) -> None:
        while not self._is_forked() and self._to_detach and self._is_unused():
            try:
                pointer = self._to_detach.pop()
            except IndexError:
                return
            if self._is_unused():  # nobody has come who found it there
                _native.library.mercury_detach(pointer)
            else:
                self._to_detach.append(pointer)

    def _is_unused(self) -> bool:
        return self._closed and not self._users and not self._arrays and not self._uses


class Context:
    """This program's attachment to an engine: the host's daemon, or a thread of this process.

    mode: "daemon"; "embedded": the engine on a thread of this process, over io_uring; "auto": the daemon if its
    socket answers, else embedded. socket: the daemon's (default $MERCURY_SOCKET, then /run/mercury/stackd.sock).
    listen: "ADDRESS[:PORT]" of an embedded engine (default $MERCURY_LISTEN). rate: what its link carries, such as
    "10Gbps" (default $MERCURY_RATE, then not known): then the most urgent gradient overtakes what waits for the link.
    This process's engines at one address share it; where several processes use a link, say each one's part.
    daemon_timeout_ms: milliseconds, 200 or more, after which a daemon that answers nothing is given up (default
    $MERCURY_DAEMON_TIMEOUT_MS, then 10,000); docs/operations.md says what a short one costs.

    MercuryError with errno EPIPE: there is no daemon; EPERM: its socket may not be opened; EINVAL: `listen`, `rate` or
    `daemon_timeout_ms` cannot be read, or is out of range.
    """

    def __init__(self, mode: str = "auto", *, socket: Optional[str] = None, listen: Optional[str] = None,
                 rate: Optional[str] = None, daemon_timeout_ms: Optional[int] = None) -> None:
        self._attachment = Attachment(mode, socket, listen, rate, daemon_timeout_ms)
        self._rate = rate
        # Without a close the end of the object, or of the interpreter, is one.
        self._finalizer = weakref.finalize(self, self._attachment.close)

    @property
    def mode(self) -> str:
        """ "daemon" or "embedded"."""
        with self._attachment.use() as context:
            mode = _native.library.mercury_context_get_mode(context)
        return next(name for name, value in _MODES.items() if value == mode)

    def zeros(self, shape: Union[int, tuple[int, ...]], dtype: str = "float32") -> AnyArray:
        """An array of zeros in memory of Mercury's: tensors that lie there travel without a copy. It may outlive
        the context. bfloat16 arrays are of uint16, as NumPy has no such type."""
        return allocate(self._attachment, shape, dtype)

    def register(self, array: ArrayLike) -> None:
        """Lets tensors lie in an array that is somebody else's. With a daemon each exchange then costs a copy at each
        end. Keep the array until it is deregistered, or the context closed."""
        view = view_of(array, None)
        with self._attachment.use() as context:
            _native.check(_native.library.mercury_register(context, view.address, view.bytes))

    def deregister(self, array: ArrayLike) -> None:
        """MercuryError (EBUSY): a tensor of an open job lies in it."""
        view = view_of(array, None)
        with self._attachment.use() as context:
            _native.check(_native.library.mercury_deregister(context, view.address))

    def open_job(self, name: Optional[str] = None, *, serve: bool = False, **options: object) -> Job:
        """Opens a job, and returns when all its members are there. What is not given comes from the launcher's
        environment (torchrun, mpirun, srun, ps-lite's, MERCURY_*), if there is one, else is the default: see
        JobOptions. While it waits it says for what, on the logger "mercurystack", from the fifth second on.

        serve: each worker's process runs a server too, on an engine of its own, so that neither daemons nor processes
        for servers are needed. All workers say so. Closing the job then waits until all have closed it. With more
        `servers` than workers the ranks behind the workers' are those of processes that open the job as servers, on
        hosts of their own: they relieve the workers' links."""
        self._attachment.check_open()
        asked = JobOptions(name=name, **options)  # type: ignore[arg-type]
        server = None
        if serve:
            asked, server = _start_server(asked, self._rate)
        try:
            job = Job(self._attachment, asked, server)
            if serve:
                _served.add(with_port(asked.rendezvous or ""))
            return job
        except BaseException as error:
            failure = None
            if server is not None:
                failure = server.failure  # of its own accord: abandoned, it fails of that
                server.abandon()
            if not isinstance(error, MercuryError):  # a signal's handler, perhaps
                raise
            # What its server failed of the worker waited for in vain.
            raise _with_hint(failure or error, serve, "timeout_ms" in options) from None

    def close(self) -> None:
        """Closes the jobs that are open, and detaches. Whoever is opening one in another thread gets a ValueError."""
        self._attachment.close()
        self._finalizer.detach()  # an exception of a signal's handler leaves it to the end of the interpreter

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if error is not None:
            for job in self._attachment.jobs():
                job.abandon()
        self.close()


class _Server:
    """A server of a job in a worker's process. Its thread waits for the job's end."""

    def __init__(self, options: JobOptions, listen: Optional[str], rate: Optional[str]) -> None:
        self.failure: Optional[MercuryError] = None  # of opening the job
        self._context = Context("embedded", listen=listen, rate=rate)
        self._context._finalizer.atexit = False  # it ends behind the worker, at exit too
        self._options = options
        self._thread = threading.Thread(target=self._run, name="mercury-server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._context:
            try:
                job = Job(self._context._attachment, self._options, tells=False)  # the worker does
                job._finalizer.atexit = False
            except MercuryError as failure:
                self.failure = failure
                return
            except ValueError:  # abandoned meanwhile
                return
            # What a job fails of its workers know, from this server among others.
            with contextlib.suppress(MercuryError, ValueError):
                job.wait_end()

    def join(self, timeout: Optional[float] = None) -> bool:
        """Until all workers have closed the job, at most `timeout` seconds; whether they have."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """The job's other members fail, if they have not closed it."""
        self._context.close()
        self._thread.join()


def _start_server(asked: JobOptions, rate: Optional[str]) -> tuple[JobOptions, _Server]:
    """The server of a worker's process, and what the worker itself asks for."""
    known = asked.native()
    rendezvous = (known.rendezvous or b"").decode()
    if known.role != _native.ROLE_WORKER:
        raise ValueError("serve: it is a worker's process that serves, too: the role must be worker")
    lacks = [what for what, there in (("rank", known.rank >= 0), ("workers", known.workers >= 1), ("rendezvous", rendezvous)) if not there]
    if lacks:
        raise ValueError(f"serve: neither the call nor a launcher's environment says {' or '.join(lacks)}: every worker needs a rank, how many "
                         "workers there are, and a rendezvous, which is worker 0's address: start it with torchrun or mpirun, set MERCURY_RANK, "
                         "MERCURY_WORKERS and MERCURY_RENDEZVOUS, or pass them as rank=, workers= and rendezvous=")
    # Where nobody says how many, the library counts the rendezvous: several of them would be daemons, which do not serve here.
    servers = asked.servers or (known.servers if "," not in rendezvous else 0)
    asked = replace(asked, rank=known.rank, workers=known.workers, servers=max(known.workers, servers),
                    rendezvous=rendezvous.split(",", 1)[0])
    # The library has the server of rank 0 listen at the rendezvous, unless the environment names a place for the worker.
    listen = with_port(rendezvous.split(",", 1)[0]) if known.rank == 0 and os.environ.get("MERCURY_LISTEN") else None
    server = _Server(replace(asked, role="server"), listen, rate)
    return asked, server


def has_served(rendezvous: str) -> bool:
    """Whether this program has opened a job there that its workers serve."""
    return with_port(rendezvous.split(",", 1)[0]) in _served


def with_port(rendezvous: str) -> str:
    """As the library reads it: HOST, HOST:PORT, [IPV6], [IPV6]:PORT."""
    has_port = rendezvous.rpartition("]")[2].startswith(":") if "]" in rendezvous else rendezvous.count(":") == 1
    return rendezvous if has_port else f"{rendezvous}:{_UDP_PORT}"


def _with_hint(error: MercuryError, serve: bool, told_how_long: bool) -> MercuryError:
    """With what can be done where members did not come, unless the program has chosen how long it waits."""
    if error.errno != errno.ETIME or told_how_long:
        return error
    hint = "timeout_ms= lets it wait longer"
    if not serve and "server" in (error.strerror or ""):
        hint = f"with serve=True each worker's process serves, else start daemons or processes for servers; {hint}"
    return type(error)(error.errno, f"{error.strerror}; {hint}")
