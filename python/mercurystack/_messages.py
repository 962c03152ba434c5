"""Messages between two ranks of a group: send, recv, and the collectives in which not all have the same to do.

A message goes to whoever asks its source for its tag, in order for each source and tag; it may come before it is asked for, and
is kept then. Streams are the kernel's TCP. One thread has all of them: the calls leave it what to do, so that nothing is
locked. A rank that is gone ends its streams, and what it owes or is owed fails with its number; one whose host is silent fails with
the job.
"""

from __future__ import annotations

import datetime
import os
import selectors
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Optional

from mercurystack._links import HEADER, Ended, Incoming, Outgoing, Posted, Sent, hello_of
from mercurystack._place import place_of, tell_place
from mercurystack._work import gone, timed_out


class Messages(threading.Thread):
    """Those of one rank. Any thread may call."""

    def __init__(self, store: Any, rank: int, size: int, host: str, timeout: datetime.timedelta) -> None:
        """Returns once all ranks are there. GroupError: which one did not come within the time-out."""
        super().__init__(name="mercury-messages", daemon=True)
        self._group, self._rank, self._size = b"", rank, size
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=size)
        self._listener.setblocking(False)
        tell_place(store, rank, host, self._listener.getsockname()[1])
        self._places = [place_of(store, peer, size, timeout) for peer in range(size)]
        self._asked: deque[Callable[[], None]] = deque()
        self._wake, self._woken = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._outgoing: dict[int, Outgoing] = {}
        self._posted: list[Posted] = []
        self._arrived: deque[tuple[int, int, memoryview]] = deque()  # before it was asked for
        self._arriving: dict[int, tuple[int, memoryview, Optional[Posted]]] = {}  # by rank: tag, and where it goes
        self._gone: dict[int, Exception] = {}
        self._failure: Optional[Exception] = None
        self._ends = False

    def begin(self, group: str) -> None:
        """The group's name is what tells its ranks from strangers."""
        self._group = group.encode()
        self.start()

    def send(self, rank: int, tag: int, memory: memoryview, ended: Ended, timeout: float) -> None:
        """The memory is not to be written until it has ended."""
        sent = Sent(HEADER.pack(tag, memory.nbytes), memory, ended, time.monotonic() + timeout)
        self._ask(lambda: self._send(rank, sent))

    def recv(self, what: str, source: Optional[int], tag: int, memory: memoryview, ended: Ended, timeout: float) -> None:
        """A message of as many bytes as the memory has. source: None for any. what: the call, for who reads of a failure."""
        posted = Posted(what, source, tag, memory, ended, time.monotonic() + timeout)
        self._ask(lambda: self._post(posted))

    def fail(self, failure: Exception) -> None:
        """The group has failed."""
        if self._failure is None:
            self._ask(lambda: self._fail(failure))

    def stop(self) -> None:
        self._ask(self._end)
        self.join()
        os.close(self._wake)  # not by the thread, which may end before the call above has written
        os.close(self._woken)

    def _ask(self, call: Callable[[], None]) -> None:
        if self._ends:
            raise ValueError("the process group was destroyed")
        self._asked.append(call)
        os.write(self._woken, b"x")

    # ---- on the thread -------------------------------------------------------------------------

    def run(self) -> None:
        while not self._ends:
            try:
                self._turn()
            except Exception as error:  # who waits would wait for ever
                self._fail(error)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._until_due()):
            if key.fileobj == self._wake:
                os.read(self._wake, 4096)
            elif key.fileobj == self._listener:
                self._accept()
            elif isinstance(key.data, Incoming):
                self._read(key.data)
            else:
                self._move(key.data, events)
        while self._asked:
            self._asked.popleft()()
        self._expire()

    def _send(self, rank: int, sent: Sent) -> None:
        failure = self._failure or self._gone.get(rank)
        if failure is not None:
            assert sent.ended is not None
            sent.ended(failure, -1)
            return
        link = self._reach(rank)
        link.waiting.append(sent)
        self._move(link, selectors.EVENT_WRITE)

    def _post(self, posted: Posted) -> None:
        for place, (source, tag, memory) in enumerate(self._arrived):
            if posted.fits(source, tag):
                del self._arrived[place]
                self._deliver(posted, source, memory)
                return
        failure = self._failure or (self._gone.get(posted.source) if posted.source is not None else self._all_gone())
        if failure is not None:
            posted.ended(failure, -1)
            return
        self._posted.append(posted)
        if posted.source is not None:
            self._reach(posted.source)  # whose end is seen by this
        else:
            for rank in range(self._size):
                if rank != self._rank and rank not in self._gone:
                    self._reach(rank)

    def _reach(self, rank: int) -> Outgoing:
        link = self._outgoing.get(rank)
        if link is None:
            link = self._outgoing[rank] = Outgoing(rank, self._places[rank], hello_of(self._group, self._rank))
            self._selector.register(link.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, link)
        return link

    def _move(self, link: Outgoing, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and link.socket.recv(1) == b"":
                raise ConnectionResetError("it ended its streams")
            drained = link.write()
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(link.rank, error)
            return
        if link.socket.fileno() < 0:  # lost by what the other stream said
            return
        self._selector.modify(link.socket, selectors.EVENT_READ | (0 if drained else selectors.EVENT_WRITE), link)

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:  # who came has gone
            return
        self._selector.register(stream, selectors.EVENT_READ, Incoming(stream, self._group, self._size))

    def _read(self, link: Incoming) -> None:
        try:
            if link.read(self._begin, self._complete):
                return
            failure: OSError = ConnectionResetError("it ended its streams")
        except ValueError:
            failure = ConnectionAbortedError()
        except OSError as error:
            failure = error
        self._selector.unregister(link.socket)
        link.socket.close()
        if link.rank >= 0:
            self._lose(link.rank, failure)

    def _begin(self, link: Incoming, tag: int, size: int) -> memoryview:
        posted = self._take_posted(link.rank, tag)
        memory = posted.memory if posted is not None and posted.memory.nbytes == size else memoryview(bytearray(size))
        self._arriving[link.rank] = (tag, memory, posted)
        return memory

    def _complete(self, link: Incoming) -> None:
        tag, memory, posted = self._arriving.pop(link.rank)
        posted = posted or self._take_posted(link.rank, tag)  # which may have been asked for meanwhile
        if posted is None:
            self._arrived.append((link.rank, tag, memory))
        else:
            self._deliver(posted, link.rank, memory)

    def _take_posted(self, source: int, tag: int) -> Optional[Posted]:
        """Who waits for it the longest."""
        place = next((place for place, one in enumerate(self._posted) if one.fits(source, tag)), None)
        return None if place is None else self._posted.pop(place)

    def _deliver(self, posted: Posted, source: int, memory: memoryview) -> None:
        failure: Optional[Exception] = None
        if memory.nbytes != posted.memory.nbytes:
            failure = RuntimeError(f"rank {source} sent {memory.nbytes} bytes {posted.said()}, and rank {self._rank} receives "
                                   f"{posted.memory.nbytes}: both need tensors of the same number of elements and type")
        elif memory is not posted.memory:
            posted.memory[:] = memory
        posted.ended(failure, source)

    # ---- failures ------------------------------------------------------------------------------

    def _lose(self, rank: int, error: OSError) -> None:
        """What has come from it stays; what has not never will."""
        failure = self._gone.setdefault(rank, gone(f"rank {rank} of {self._size} is gone: {error.strerror or error}"))
        link = self._outgoing.get(rank)
        if link is not None and link.socket.fileno() >= 0:
            self._selector.unregister(link.socket)
            link.socket.close()
            link.drop(failure)
        # Its own stream may still have messages, behind whose end this is called again.
        if any(isinstance(key.data, Incoming) and key.data.rank == rank for key in self._selector.get_map().values()):
            return
        _, _, posted = self._arriving.pop(rank, (0, None, None))
        if posted is not None:
            posted.ended(failure, -1)
        self._drop(lambda one: one.source == rank or (one.source is None and self._all_gone() is not None), failure)

    def _all_gone(self) -> Optional[Exception]:
        return next(iter(self._gone.values())) if len(self._gone) == self._size - 1 else None

    def _drop(self, which: Callable[[Posted], bool], failure: Exception) -> None:
        dropped = [one for one in self._posted if which(one)]
        self._posted = [one for one in self._posted if not which(one)]
        for one in dropped:
            one.ended(failure, -1)

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        for link in self._outgoing.values():
            link.drop(failure)
        arriving = [posted for _, _, posted in self._arriving.values() if posted is not None]
        self._arriving = {rank: (tag, memory, None) for rank, (tag, memory, _) in self._arriving.items()}
        for one in arriving:
            one.ended(failure, -1)
        self._drop(lambda _: True, failure)

    def _until_due(self) -> Optional[float]:
        dues = [one.due for one in self._posted] + [sent.due for link in self._outgoing.values() for sent in link.waiting]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _expire(self) -> None:
        now = time.monotonic()
        late = [one for one in self._posted if one.due <= now]
        self._posted = [one for one in self._posted if one.due > now]
        for one in late:
            whom = "any rank" if one.source is None else f"rank {one.source} of {self._size}"
            one.ended(timed_out(f"no message {one.said()} came from {whom} in time"), -1)
        for link in list(self._outgoing.values()):
            if any(sent.due <= now for sent in link.waiting):
                self._lose(link.rank, TimeoutError("it took no message in time"))

    def _end(self) -> None:
        self._fail(gone("the process group was destroyed"))
        self._ends = True
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, (Incoming, Outgoing)):
                key.data.socket.close()
        self._selector.close()
        self._listener.close()
