"""PyTorch: gradients go out as they are ready, and the next forward pass waits for each layer's own sum alone.

    optimizer = ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, context, job)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()   # each gradient is sent from here as it is complete
        optimizer.step()                          # returns at once

A parameter is updated when its own sum is back and the forward pass begins, or comes to its module. Gradients lie in memory of
Mercury's; their priority is the place of their parameter in the forward pass, so that what the next pass needs first
comes back first (Duan et al., TPDS 2023, sections II and IV).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from operator import is_
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Union

import torch

from mercurystack import _agreement, _making, _trace
from mercurystack._attendance import Attendance, give, refuse_next_life
from mercurystack._context import Context
from mercurystack._errors import MercuryError
from mercurystack._gradient import LEAST_URGENT, ManagedParameter, zero_all
from mercurystack._job import Job
from mercurystack._meeting import STATE, Elastic, Meeting, Step
from mercurystack._operation import Operation
from mercurystack._staging import Leaving, Stages
from mercurystack._state import State
from mercurystack._state_tensor import StateTensor
from mercurystack._stepping import Stepper, options_of, parameters_of, refuse_trace, trace_state
from mercurystack._timeline import Summary, Timeline
from mercurystack._torn import Iterations, Torn, is_own, refuse, tears, tears_backward
from mercurystack._watching import Place, Watch, at_end_of_backward, is_backward
from mercurystack._wrapping import WrappedOptimizer

__all__ = ["Elastic", "ScheduledOptimizer", "Step", "Summary"]

# Calls of the inner optimizer that read or set what its updates use.
_STATES = ("state_dict", "load_state_dict")


class ScheduledOptimizer(WrappedOptimizer):
    """An optimizer around `optimizer`, for the parameters of `model` that it has.

    context, job: this worker's. Both are the caller's to close, after the last use of this. The end of the job's `with` block takes the step
        that is due.
    backward_passes_per_step: gradients are sent with the last of so many. See also no_sync().
    first_number: of the tensors that it declares, one for each parameter; for a second optimizer in the same job.
    wire_dtype: torch.float16 or torch.bfloat16 halves what float32 gradients take of the network, and costs a conversion
        at each end. Each gradient is rounded once, sums are added in float32 and rounded once.
    timeline: how many spans are kept, the newest, for summary(), write_timeline() and
        write_trace(); 0: none are recorded.
    broadcast: workers compare their models, and worker 0's parameters and buffers go to all. That takes 4 MiB, as long as
        the job lasts.
    elastic: True, or an Elastic: a worker that was lost and is started again takes its place, and the weights become those
        of a run without losses (docs/pytorch.md). The job has rejoin_ms. Training goes by iterations(), and each step()
        waits for all sums.
    quorum: that of the job, which goes on without workers that are slow or lost. last_step() says who was in a step.
    finite: an average that has a NaN or an infinity is a FloatingPointError where it is waited for, which names the parameter and the
        iteration. All workers get the same averages, so it is each one's. Reads every average once more. Without it they pass, as
        scalers of losses need it; with elastic= it is refused.

    All workers make it with the same model. From step() until the forward pass comes by, a parameter has its old
    value: flush() updates all of them now, and state_dict() of both does so by itself. `copied` counts gradients that
    somebody had put elsewhere, so that they had to be copied into Mercury's memory.

    Errors: ValueError names the parameter that cannot be had (neither on the CPU nor on a GPU of CUDA's, no floating-point type, not in the
    model, another than worker 0's) or the optimizer; MercuryError as in docs/api.md, with the parameter's name where
    it is about one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, context: Context, job: Job, *,
                 backward_passes_per_step: int = 1, first_number: int = 0, broadcast: bool = True,
                 wire_dtype: Optional[torch.dtype] = None, timeline: int = 0,
                 elastic: Union[bool, Elastic] = False, quorum: int = 0, finite: bool = False) -> None:
        # The base's initialiser would make groups and state of its own; both are the optimizer's.
        if isinstance(optimizer, ScheduledOptimizer):
            raise ValueError("expected an optimizer of torch.optim, got a ScheduledOptimizer")
        _making.check_kinds(optimizer, model, context, job)
        _making.refuse(optimizer, model)
        _making.check_numbers(backward_passes_per_step, first_number, wire_dtype)
        _making.check_job(job, bool(elastic), quorum, broadcast, finite)
        self._optimizer = optimizer
        self._stepper = Stepper(optimizer, parameters_of(optimizer))
        self._job = job
        self._passes = backward_passes_per_step
        self._sends = True
        self._warned, self._finite, self._steps = False, finite, 0  # steps that were made due
        self._is_plain = timeline <= 0 and not quorum and not finite  # a sum is taken, and nothing else is done with it
        self._next_priority = 0
        self._is_due = False  # whether any update may be, or something is torn: every module's state_dict() asks
        self._torn: Optional[Torn] = None
        self._hears_end = False  # whether the backward pass will say when it has ended
        # Since the last step(): has anything come of a round, and were this worker's own gradients read behind a backward pass?
        self._has_begun, self._read_alone = True, False
        self._lock = threading.RLock()  # around updates, which change the optimizer's groups: several threads may evaluate the model
        self._optimized = parameters_of(optimizer)
        self.copied = 0
        self._timeline: Optional[Timeline] = None
        self._tensors: list[_trace.TraceTensor] = []  # of the timeline, once this is closed
        self._stages = Stages()
        self._parameters = _making.manage(optimizer, model, context, self._on_read, wire_dtype, self._stages)
        self._meeting: Optional[Meeting] = None
        self._attendance: Optional[Attendance] = None
        kinds = f"optimizer is {type(optimizer).__name__}, sends {wire_dtype or 'gradients as they are'}"
        lines = _agreement.describe(model, (one.name for one in self._parameters), kinds)
        if elastic:
            self._begin_elastic(Elastic() if elastic is True else elastic, model, context, lines, first_number)
        elif quorum:
            _making.declare(self._parameters, job, first_number)
            refuse_next_life((one.tensor for one in self._parameters if one.tensor is not None), job)
            if broadcast:
                states = StateTensor(context, job, STATE + first_number)
                refuse_next_life([states.tensor], job)
                give(State(model, optimizer, (), lines), states, job)
            self._attendance = Attendance(job, sum(one.tensor is not None for one in self._parameters))
        else:
            lines[-1] += f", {_agreement.state_of(optimizer)}" if broadcast else ""
            _agreement.agree(lines, model, context, job, first_number, broadcast)
            _making.declare(self._parameters, job, first_number)
            if broadcast:
                _agreement.broadcast(model, context, job, first_number)
        for one in self._parameters:
            one.to_use()
        self._begin_watch(model)
        self.defaults = optimizer.defaults
        if timeline > 0:
            self._timeline = Timeline(job, timeline)

    def _begin_watch(self, model: torch.nn.Module) -> None:
        self._is_closed, self._is_sending = False, False
        self._job._before_end.append(self._flush_at_end)
        self._watch = Watch(model, self._parameters, set(self._optimized), self)
        for name in _STATES:
            setattr(self._optimizer, name, self._behind_flush(getattr(self._optimizer, name)))

    def _begin_elastic(self, options: Any, model: torch.nn.Module, context: Context, lines: list[str], first_number: int) -> None:
        _making.check_elastic(self._parameters)
        _making.declare(self._parameters, self._job, first_number)
        self._meeting = Meeting(self._parameters, State(model, self._optimizer, options.carried, lines), context, self._job, options)
        self._meeting.enter()

    # ---- an iteration --------------------------------------------------------------------------

    def _on_forward(self, place: Place, *_: Any) -> None:
        """The forward pass has come to a module."""
        if not place.called:
            for one in place.parameters:
                self._rank(one)
            place.called = True
        if place.frozen:
            place.check_frozen()
        timeline = self._timeline
        if timeline is not None:
            timeline.pause()
        if not place.name:
            self._hears_end = False  # of a pass that failed
        if self._is_due:
            with self._lock:
                self._update_at(place)
        else:
            for one in place.parameters:
                if not one.sent and one.parameter.grad is None:  # as `parameter.grad = None` zeroes
                    one.zero_later()
            if not place.name:
                self._watch.come_first()
        if timeline is not None:
            timeline.forward(place.name or "model")

    def _update_at(self, place: Place) -> None:
        if self._torn is not None:
            refuse(self._torn)
        due = []
        for one in place.parameters:
            if one.due is not None:
                due.append(one)
            elif not one.sent and one.parameter.grad is None:
                one.zero_later()
        if due:
            place.check_first()
        is_training = torch.is_grad_enabled()
        if not place.name:
            self._watch.come_first()
            take = self._update_arrived if is_training else self.flush
            take()
        if not (is_training and place.name):
            # A transformer's encoder that evaluates reads the parameters of its layers without calling them.
            due = [one for one in (place.parameters if is_training else place.all()) if one.due is not None]
        if due:
            self._update(due)

    def _on_forward_end(self) -> None:
        if self._timeline is not None:
            self._timeline.pause()

    def _rank(self, one: ManagedParameter) -> None:
        if one.priority is None:
            one.priority = min(self._next_priority, LEAST_URGENT)
            self._next_priority += 1

    @tears("the backward pass")
    def _on_gradient_again(self, one: ManagedParameter) -> None:
        """Before the backward pass adds to a gradient that was sent."""
        if self._is_skipped():
            self._begin_round()
            return
        if one.due is not None:
            raise RuntimeError(f"{one.name}: it was used without a call of the module that it belongs to, so that its last "
                               "step was not taken yet. Call the module, or flush() before the forward pass")
        raise RuntimeError(f"{one.name}: its gradient was computed again before step(), when the first was on its way. "
                           "To add gradients up, use no_sync() or backward_passes_per_step; reentrant checkpoints that "
                           "share parameters, use_reentrant=False; after a backward pass that failed, step()")

    @tears_backward
    def _on_gradient(self, one: ManagedParameter) -> None:
        """The backward pass has added to it."""
        if self._timeline is not None:
            self._timeline.gradient(one.name)
        if one.priority is None:
            place = self._watch.place_of(one)
            if place is not None:
                place.parameters.append(one)
                self._rank(one)
        if not self._hears_end:
            self._hears_end, self._has_begun, self._read_alone = True, True, False
            at_end_of_backward(self._on_backward_end)
        one.passes += 1
        if self._sends and one.passes >= self._passes:
            self._send(one)

    @tears("the backward pass")
    def _on_backward_end(self) -> None:
        """Whoever reads gradients now is to find those that this pass left out: others may have sent them."""
        self._hears_end = False
        for one in self._parameters:
            if not one.sent and one.parameter.grad is None:  # as `parameter.grad = None` zeroes
                one.zero()

    def _send(self, one: ManagedParameter) -> None:
        self.copied += one.collect()
        if one.tensor is None:  # it has no elements
            one.sent = True
            one.to_read()
            return
        one.push()
        one.sent = True
        if self._timeline is not None:
            self._timeline.sent(one)

    @tears("the sending of gradients")
    def _send_rest(self) -> None:
        """The others wait for ours of those, too, that took no part in the loss."""
        if self._is_sending:
            raise RuntimeError("gradients are read while they are sent, as by a signal's handler: it may flush(), and not read them")
        self._is_sending = True
        try:
            for one in self._parameters:
                if not one.sent:
                    self._send(one)
        finally:
            self._is_sending = False

    def _is_skipped(self) -> bool:
        """Whether all sums are back, and no step was made of them: as by a scaler of losses, if one is not finite."""
        return all(one.sent and one.due is None and one.operation is None for one in self._parameters)

    def _begin_round(self) -> None:
        for one in self._parameters:
            one.sent, one.passes, one.taken_away = False, 0, False
            if one.parameter.grad is None:
                one.zero()
            elif one.parameter.grad is one.gradient:
                one.to_use()

    def _take(self, one: ManagedParameter) -> None:
        """Waits for its sum, if one is on its way."""
        operation = one.operation
        if operation is not None:
            if operation._status != 0:  # it is not known to be back
                self._await(one, operation)
            if self._timeline is not None:
                self._timeline.taken()
            if one.operation is not operation:  # a signal's handler has called flush() meanwhile
                return
            if self._attendance is not None and one.tensor is not None:
                self._attendance.note(one.tensor)
            one.arrive()
        if self._finite and one.sent:  # each time that somebody wants it
            self._check_finite(one)

    def _await(self, one: ManagedParameter, operation: Union[Operation, Leaving]) -> None:
        try:
            # Asking collects all that have ended: of those that come next nobody has to ask then.
            if operation.done() or self._timeline is None:
                operation.wait()
            else:
                with self._timeline.span("wait", one.name):
                    operation.wait()
        except MercuryError as failure:
            if not is_own(failure):
                raise
            raise one.named(failure) from None
        except ValueError as failure:
            if not is_own(failure):
                raise
            raise ValueError(f"{one.name}: its job was closed before its last step was taken: close the optimizer first "
                             "(ScheduledOptimizer.close(), or its `with` block)") from None

    def _check_finite(self, one: ManagedParameter) -> None:
        if not bool(torch.isfinite(one.gradient).all()):
            iteration = self._steps - (one.due is not None)  # step() has come since it was sent, or not yet
            raise FloatingPointError(f"the gradient of {one.name} is not finite in iteration {iteration}: a worker's has a NaN or an "
                                     "infinity in it, or their sum is beyond what it is sent as")

    def _update_arrived(self) -> None:
        """What nobody has to wait for, together: a step of the optimizer costs more than what it does for one parameter."""
        try:
            self._job.poll()
        except (MercuryError, ValueError) as failure:
            if not is_own(failure):
                raise  # else whoever waits for a sum says of which parameter it is
        due = [one for one in self._parameters if one.due is not None]
        arrived = [one for one in due if one.operation is None or one.operation._status is not None]
        if arrived:
            self._update(arrived)
        self._is_due = len(arrived) < len(due) or self._torn is not None

    def _update(self, due: list[ManagedParameter]) -> None:
        if trace_state() is not None:
            refuse_trace()
        for one in due:
            operation = one.operation
            if self._is_plain and operation is not None and operation._status == 0:
                one.arrive()
            else:
                self._take(one)
            if one.parameter._version != one.version and one.due is not None:
                raise RuntimeError(f"{one.name}: it was changed between step() and the forward pass, when its update was still to come: flush() first")
        try:
            self._take_step(due)
        except BaseException as failure:
            self._torn, self._is_due = self._torn or ("the step", due, failure), True
            raise

    def _take_step(self, due: list[ManagedParameter]) -> None:
        groups: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # and copies, as a signal's handler may call flush() for others
        zeroed: list[torch.Tensor] = []
        for one in due:
            options, one.due = one.due, None
            if options is None:  # a signal's handler has called flush() meanwhile
                continue
            one.sent, one.passes, one.taken_away = False, 0, False
            if one.moves:
                found = groups.get(id(options))
                if found is None:
                    groups[id(options)] = found = options, {**options, "params": []}
                found[1]["params"].append(one.parameter)
            if one.to_zero:
                zeroed.append(one.gradient)
        if groups:
            copies = [copy for _, copy in groups.values()]
            if self._timeline is None:
                self._stepper.step(copies)
            else:
                with self._timeline.update([one.name for one in due if one.moves]):
                    self._stepper.step(copies)
        if zeroed:
            zero_all(zeroed)
        for one in due:
            one.take_back()

    def _on_read(self, read: ManagedParameter) -> None:
        if self._stepper.reads(read, self._lock):
            return
        is_in_backward = is_backward()
        if is_in_backward and not read.sent:  # by a hook, before it is sent
            return
        if not self._warned and any(one.sent for one in self._parameters):
            self._warned = True
            warnings.warn("gradients are read before the next forward pass: all of them are waited for there, and nothing overlaps it", stacklevel=4)
        self.flush()
        if not any(one.sent for one in self._parameters):
            self._read_alone = True
            return
        if is_in_backward:
            self._take_all()  # of those that the pass has come by
        else:
            self.synchronize()

    # ---- for the training loop -----------------------------------------------------------------

    @tears("step()")
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Makes the step due. It is taken in the next forward pass, at its beginning or module by module; now for gradients
        that were waited for already, and for parameters that no forward pass has come by."""
        if closure is not None:
            raise ValueError("a closure would evaluate the model within the step: that is not supported")
        if self._is_closed:
            raise RuntimeError("the ScheduledOptimizer is closed")
        with self._lock:
            self._check_optimized()
            self._check_read()
            if self._meeting is not None:
                self._meeting.check_inside()
            self.flush()  # of modules that were not called since
            self._make_due()
            if self._watch.is_late():
                self.flush()

    def _make_due(self) -> None:
        if self._timeline is not None:
            self._timeline.step()
        self._hears_end = self._has_begun = False  # of a pass that failed it has not
        # Frozen ones stay as they are, but for gradients of before; and whose gradient the program has taken away.
        for one in self._parameters:
            one.moves = (one.passes > 0 or one.parameter.requires_grad) and not (one.sent and (one.taken_away or one.parameter.grad is None))
        self._send_rest()
        # A scheduler of the inner one looks for its steps, by what it has put around them: a counter, in PyTorch 2 a flag.
        if getattr(self._optimizer.step, "_with_counter", False):
            self._optimizer._step_count += 1  # type: ignore[attr-defined]
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        groups = [options_of(group) for group in self._optimizer.param_groups]  # a scheduler may change them meanwhile
        if self._meeting is not None and not self._agree(self._meeting):
            return
        now = []
        for one in self._parameters:
            one.zeroed = False
            one.due = groups[one.group]
            one.version = one.parameter._version
            if one.operation is None or one.priority is None:
                now.append(one)
        self._is_due = True
        self._steps += 1
        if self._meeting is not None:
            self.flush()
        elif now:
            self._update(now)

    def _check_optimized(self) -> None:
        found = parameters_of(self._optimizer)
        if len(found) == len(self._optimized) and all(map(is_, found, self._optimized)):
            return
        raise RuntimeError(f"{_making.difference(found, self._optimized, self._watch.model)} since the ScheduledOptimizer was made: "
                           "close() that, and make another with another first_number")

    def _check_read(self) -> None:
        """Whoever has read gradients that nobody has averaged (to clip them, say) has found others than the other workers have."""
        if self._read_alone and self._job.workers > 1:
            raise RuntimeError("gradients were read, and none has been sent since the step before: their averages are not known, as the last "
                               "backward passes were in no_sync(), or fewer than backward_passes_per_step, or there was none. synchronize() "
                               "before they are read")

    def _agree(self, meeting: Meeting) -> bool:
        """Whether every worker's gradients are in the step. Until that is known it is not due: whoever saves the model has the old values."""
        self._take_all()
        votes = meeting.vote()
        if not any(votes):
            return True
        for one in self._parameters:
            one.drop()
        meeting.begin_again(votes)
        return False

    @tears("zero_grad()")
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Gradients are zero when the next backward pass begins. They keep their memory: set_to_none is as False."""
        with self._lock:
            if self._is_skipped():
                self._begin_round()
            self._has_begun, self._read_alone, self._hears_end = True, False, False
            for one in self._parameters:
                one.zero_later()
                if not one.sent:
                    one.passes = 0

    def synchronize(self) -> None:
        """Sends the gradients that were not sent yet, and waits for the averages of all: they can be read, and changed, until step().
        All workers call it, or read gradients. Before anything has come of the next step (a backward pass, zero_grad()) it is
        as flush()."""
        begins = self._has_begun or any(one.zeroed or one.parameter.grad is None or not one.sent and one.parameter.grad is not one.watched
                                        for one in self._parameters)
        self.flush()
        if begins:
            self._read_alone = False
            self._send_rest()
        self._take_all()

    def _take_all(self) -> None:
        for one in self._parameters:
            self._take(one)

    def flush(self) -> None:
        """Takes the step that is due, for all parameters."""
        if self._is_due:
            with self._lock:
                if self._torn is not None:
                    refuse(self._torn)
                due = [one for one in self._parameters if one.due is not None]
                if due:
                    self._update(due)
                self._is_due = self._torn is not None  # by a step within this one

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in it add to gradients without sending them."""
        before, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = before
            self._hears_end = False  # of a pass in it that failed: it has not

    def close(self) -> None:
        """Takes the step that is due, and leaves the model as it found it, without gradients, also where that step cannot be taken
        (its error is raised). Nothing happens if it is closed. The job and the context stay open. After an exception of a signal's
        handler it can be called again."""
        try:
            self.flush()
            if any(one.sent for one in self._parameters):  # of a round without step(): the others wait for the rest
                self._send_rest()
            self._take_all()
        except BaseException as failure:
            if self._torn is not None or is_own(failure):
                self._leave()
            raise
        self._leave()

    def _leave(self) -> None:
        self._watch.remove()
        self._job._before_end = [call for call in self._job._before_end if call != self._flush_at_end]
        self._is_closed = True
        for name in _STATES:
            vars(self._optimizer).pop(name, None)
        if self._timeline is not None:
            self._timeline.close()
            self._tensors = self._tensors or _trace.tensors_of(self._parameters, self._watch)
        self._stages.close()
        for one in self._parameters:
            one.parameter.grad = None
        self._parameters = []
        self._torn, self._is_due = None, False

    def __enter__(self) -> ScheduledOptimizer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if error is None:
            self.close()
        else:  # sums that never come are not to hold it up
            self._leave()

    # ---- workers that are lost, and come back --------------------------------------------------

    def iterations(self, until: int) -> Iterator[int]:
        """For elastic=: the numbers of the iterations to do, up to `until`, which does not come. Each takes one step(). The
        number comes again after an iteration in which a worker was lost: all workers compute it again, from where it began,
        with the batch of that number. A worker that has come back begins with the others' number."""
        if self._meeting is None:
            raise RuntimeError("iterations() is for an elastic ScheduledOptimizer: make it with elastic=True")
        return Iterations(self, self._meeting.iterations(until))

    def last_step(self) -> Optional[Step]:
        """The newest one that was taken for all parameters, None before there is one: who was in it. With quorum=, where the
        forward pass takes steps, that of the iteration before until flush(). RuntimeError: neither elastic= nor quorum= was given."""
        found = self._meeting or self._attendance
        if found is None:
            raise RuntimeError("all workers are in each step: make the ScheduledOptimizer with elastic= or quorum=")
        return found.last

    # ---- what happened when --------------------------------------------------------------------

    def summary(self) -> Summary:
        """How long iterations took, and which sums the forward pass waited for. RuntimeError: timeline= was not given."""
        return self._recorded().summary()

    def write_timeline(self, path: str) -> None:
        """For ui.perfetto.dev (Chrome's trace format): the passes, waits and updates, and a row for each gradient from
        its sending to its sum, with its update. Of several workers of one host times agree. RuntimeError: timeline= was not given."""
        self._recorded().write(path)

    def write_trace(self, path: str) -> None:
        """For mercury-sim and mercury-replay (docs/trace.md): what this run computed when, so that the prediction is of the
        same computing. Its comment says what an iteration took. RuntimeError: timeline= was not given, or no iteration is
        recorded as a whole yet."""
        text = _trace.text_of(self._recorded(), self._tensors or _trace.tensors_of(self._parameters, self._watch))
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    def _recorded(self) -> Timeline:
        if self._timeline is None:
            raise RuntimeError("nothing is recorded: make the ScheduledOptimizer with timeline=, how many spans to keep")
        return self._timeline
