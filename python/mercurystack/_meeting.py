"""Elastic training: workers that were lost come back in the middle, and the weights become those of a run without losses.

Each iteration has as many attempts as it needs. In an attempt every worker pushes each gradient once and then, when it has all
sums, its vote. So the n-th round of each gradient and of the votes is attempt n, and whoever comes back knows from the servers
which attempt the others are in. It pushes zeros for what this lacks, and votes that it is new: the attempt is void, for all.
Those who are not new send it the state of before the iteration (the lowest rank does), and all do the iteration again.

A step is taken once all votes are there, and none says that it is void: a sum of the attempt that a next life's zeros are in
is complete only with its vote to come, as nobody votes before it has all sums.

All decide by the same sums, and so alike. Owner/thread: the training's thread."""

from __future__ import annotations

import contextlib
import errno
import select
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._gradient import ManagedParameter
from mercurystack._job import Job
from mercurystack._operation import Operation
from mercurystack._state import HasState, State
from mercurystack._state_tensor import StateTensor, Collected, Piece
from mercurystack._torn import is_own

# Numbers of tensors, behind those of gradients.
VOTES = 2 << 28
STATE = 3 << 28
_GENUINE, _NEW, _VOID = range(3)  # votes; void: zeros of a worker that has the state
_LOOK_MS = 100  # how often it is asked whether operations have ended that another thread collects


class Elastic(NamedTuple):
    """What ScheduledOptimizer(elastic=) may be told.

    carried: what else goes to a worker that comes back, and back to the iteration's begin where it is done again: learning-rate
        schedulers, and all that has state_dict() and load_state_dict().
    first_iteration: the number of the first one, in a training that goes on from a checkpoint. Worker 0's counts."""

    carried: Sequence[HasState] = ()
    first_iteration: int = 0


class Step(NamedTuple):
    """A step that was taken."""

    iteration: int  # 0 first
    workers: frozenset[int]  # whose gradients are in every element of every average
    partly: frozenset[int]  # in some; with a quorum alone
    attempts: int  # that the iteration took since this worker has the state: 1 where nobody was lost


class Meeting:
    def __init__(self, parameters: list[ManagedParameter], state: State, context: Context, job: Job, options: Elastic) -> None:
        self._parameters = [one for one in parameters if one.tensor is not None]
        self._state, self._job = state, job
        self._votes = np.asarray(context.zeros(job.workers, "uint8"))
        self._ballot = job.declare(VOTES, self._votes)
        self._state_tensor = StateTensor(context, job, STATE)
        self._collected = Collected()
        self._came: dict[int, bool] = {}  # by attempt: whether a state was sent to its end
        self._attempt = self._ballot.round
        self._tries = 0  # of this iteration
        self._is_inside = False  # of iterations()
        self._stepped = False
        self.iteration = options.first_iteration
        self.last: Optional[Step] = None
        # Worker 0 begins with what it has, and gives it to all.
        self._is_new = job.rank > 0 or self._attempt > 1

    def enter(self) -> None:
        """Returns once this worker has the state: from worker 0 at the beginning, or in the middle."""
        behind = [one for one in self._parameters if self._round_of(one) == self._attempt]
        self._settle(self._void_attempt(behind))

    def _round_of(self, one: ManagedParameter) -> int:
        assert one.tensor is not None
        found = one.tensor.round
        if found not in (self._attempt, self._attempt + 1):
            raise MercuryError(errno.EPROTO, f"{one.name}: worker {self._job.rank} is to push round {found} of its gradient, and the others "
                               f"vote on attempt {self._attempt}: not all workers have an elastic ScheduledOptimizer")
        return found

    # ---- an iteration --------------------------------------------------------------------------

    def iterations(self, until: int) -> Iterator[int]:
        """The number of each, and of some again."""
        begun = -1
        while self.iteration < until:
            if begun == self.iteration:
                self._state.restore()
            else:
                self._state.remember()
                begun = self.iteration
            self._stepped, self._is_inside = False, True
            yield self.iteration
            self._is_inside = False
            if not self._stepped:
                raise RuntimeError(f"iteration {self.iteration} of worker {self._job.rank} ended without a step(): the others wait for it")
        if self.iteration == until:
            self._end()

    def check_inside(self) -> None:
        if not self._is_inside:
            raise RuntimeError(f"step() of worker {self._job.rank}: an elastic ScheduledOptimizer trains in `for iteration in "
                               "optimizer.iterations(until)`, as an iteration may be done again")
        if self._stepped:
            raise RuntimeError(f"iteration {self.iteration} of worker {self._job.rank} has a second step(): each has one")

    def _end(self) -> None:
        """Nobody leaves while a worker that comes back lacks what the others have."""
        self._state.remember()
        while _NEW in (votes := self._void_attempt(self._parameters)):
            self._settle(votes)

    def vote(self) -> list[int]:
        """Of the attempt whose sums are all here. If any vote is not 0, no worker takes the step, and all begin_again()."""
        self._stepped = True
        self._tries += 1
        votes = self._vote(_GENUINE)
        if not any(votes):
            self.last = Step(self.iteration, frozenset(range(self._job.workers)), frozenset(), self._tries)
            self.iteration += 1
            self._tries = 0
        return votes

    def begin_again(self, votes: list[int]) -> None:
        """Gradients were dropped. Returns once the state is as the iteration began, on all workers."""
        self._state.restore()
        self._settle(votes)

    # ---- attempts ------------------------------------------------------------------------------

    def _void_attempt(self, parameters: list[ManagedParameter]) -> list[int]:
        """Zeros, for those whose sums lack this worker's. Everybody's votes."""
        if self._is_new:
            with self._named("the training's state"):
                self._state_tensor.listen()  # others may be sending
        operations = []
        for one in parameters:
            assert one.tensor is not None
            if one.sent and one.due is None:
                raise RuntimeError(f"{one.name}: worker {self._job.rank} has sent its gradient in a backward pass that no step() followed")
            np.asarray(one.array).fill(0)
            with self._named(f"the zeros that stand for the gradient of {one.name}"):
                operations.append(one.tensor.push_pull(one.priority))
        try:
            self._wait(operations)
        except MercuryError:
            for one, operation in zip(parameters, operations):
                with self._named(f"the zeros that stand for the gradient of {one.name}"):
                    operation._raise_failure()
            raise
        for one in parameters:
            np.asarray(one.array).fill(0)
        return self._vote(_NEW if self._is_new else _VOID)

    def _vote(self, mine: int) -> list[int]:
        self._votes.fill(0)
        self._votes[self._job.rank] = mine
        with self._named("the vote"):
            self._wait([self._ballot.push_pull(0)])
        self._attempt += 1
        return [int(vote) for vote in self._votes]

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """What fails within is about that: a user knows iterations and workers, and no tensors of this class's own."""
        try:
            yield
        except MercuryError as failure:
            if not is_own(failure):
                raise
            when = "before it has the training's state" if self._is_new else f"in iteration {self.iteration}"
            text = (failure.strerror or "").removeprefix(f"tensor {VOTES}: ").removeprefix(f"tensor {STATE}: ")
            raise type(failure)(failure.errno, f"{what}, of worker {self._job.rank} {when}: {text}") from None

    def _wait(self, operations: list[Operation]) -> None:
        if self._state_tensor.operation is None:
            self._job.wait_all(operations)
            return
        # Whoever is new takes part in what is sent, as the others do not come here before.
        poller = select.poll()
        poller.register(self._job.fileno(), select.POLLIN)
        while not all(operation.done() for operation in operations):
            if self._state_tensor.operation is not None and self._state_tensor.operation.done():
                piece = self._state_tensor.take()
                if self._collect(piece) is None or piece.attempt != self._attempt:
                    self._state_tensor.listen()
                continue
            poller.poll(_LOOK_MS)
        self._job.wait_all(operations)

    # ---- the state -----------------------------------------------------------------------------

    def _settle(self, votes: list[int]) -> None:
        """Until everybody who is new has the state."""
        while _NEW in votes:
            if self._send(votes, self._attempt - 1):
                if self._is_new:
                    self.iteration = self._state.unpack(self._collected.data, self._collected.sender, self._job.rank)
                    self._is_new = False
                self._collected.drop()
                return
            votes = self._void_attempt(self._parameters)

    def _send(self, votes: list[int], attempt: int) -> bool:
        """From one who is not new. False: it was lost meanwhile."""
        sender = next((rank for rank, vote in enumerate(votes) if vote != _NEW), None)
        if sender is None:
            raise MercuryError(errno.ENODATA, f"no worker has the training's state: all {len(votes)} of them are new. Start again, from a checkpoint")
        data = memoryview(self._state.pack(self.iteration) if sender == self._job.rank else b"")
        count = -(-len(data) // self._state_tensor.most)
        index = 0
        while attempt not in self._came:
            with self._named(f"the training's state, which worker {sender} sends"):
                if sender == self._job.rank:
                    self._state_tensor.send(attempt, index, count, data[index * self._state_tensor.most:][:self._state_tensor.most])
                    index += 1
                else:
                    self._state_tensor.listen(attempt)
                piece = self._state_tensor.take()
            self._collect(piece, attempt)
        return self._came[attempt]

    def _collect(self, piece: Piece, attempt: int = 0) -> Optional[bool]:
        """Whether a sending has come to its end, and well. `attempt`: whose piece it is if nobody says so, as all others are new."""
        ended = self._collected.add(piece)
        if ended is not None:
            self._came[piece.attempt or attempt] = ended
        return ended
