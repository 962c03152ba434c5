"""A signal's handler raises at every point of an iteration where one may run, and the program catches that and goes on: what follows is
right, or refused.

usage: [MERCURY_EACH=N] torch_interrupts_test.py PACKAGE_FOLDER LIBRARY
N: each N-th point, 7 unless it is given; with 1 it takes ten minutes.
"""
import copy
import linecache
import os
import queue
import select
import sys
import threading
import unittest
import unittest.mock

from torch_lab import Cluster, ScheduledOptimizer, batches, each_alone, loss_of, net, sgd

import numpy as np
import torch

import mercurystack
from mercurystack import MercuryError, _agreement

FOLDER = os.path.dirname(mercurystack.__file__)
EACH = int(os.environ.get("MERCURY_EACH", "7"))  # no multiple of two, as each KINDS comes at each fourth
KINDS = (KeyboardInterrupt, lambda: ValueError("a handler's"), lambda: RuntimeError("a handler's"), lambda: MercuryError(5, "a handler's"))
CUT_OFF = "was cut off by (KeyboardInterrupt|(ValueError|RuntimeError|MercuryError): .*a handler's); how much of it was done is not known"
sys.unraisablehook = lambda _: None  # nobody is told of what a handler raises as a generator is closed


def is_here(frame):
    return frame is not None and frame.f_code.co_filename.startswith(FOLDER)


def is_with(frame):
    """A line that is told of again before the block is left, where no handler runs: a lock would be kept."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def is_whole(frame):
    """Whether it is within what does all or nothing; None: at its edge."""
    if frame.f_code.co_name in ("whole", "_update"):
        return None
    while frame is not None:
        if frame.f_code.co_name == "_take_step" or frame.f_back is not None and is_here(frame.f_back) and frame.f_back.f_code.co_name == "whole":
            return True
        frame = frame.f_back
    return False


class Interrupt:
    """An exception at the place-th point of Mercury's code: where a function begins or ends, at each line, behind each call of C's. A
    handler may run at most of them. A context, which suppresses it; `came` says whether there are so many points, `refuses` whether what
    follows is to be refused."""

    def __init__(self, place):
        self.left, self.came, self.refuses = place, False, False
        self.failure = KINDS[place % len(KINDS)]()

    def __enter__(self):
        sys.settrace(self.trace)
        sys.setprofile(self.profile)
        return self

    def __exit__(self, kind, error, trace):
        sys.settrace(None)
        sys.setprofile(None)
        torch.set_grad_enabled(True)  # PyTorch's no_grad() may be cut off as it begins
        if error is not self.failure:
            self.refuses = False
        return error is self.failure

    def trace(self, frame, event, _):
        if not is_here(frame):
            return None
        if event != "exception" and not (event == "line" and is_with(frame)):
            self.pass_by(frame)
        return self.trace

    def profile(self, frame, event, _):
        if event == "c_return" and is_here(frame):
            self.pass_by(frame)

    def pass_by(self, frame):
        self.left -= 1
        if self.left < 0 and not self.came:
            self.came, self.refuses = True, is_whole(frame)
            raise self.failure


class Handler(Interrupt):
    """Calls something there instead."""

    def __init__(self, place, call):
        super().__init__(place)
        self.call = call

    def pass_by(self, frame):
        self.left -= 1
        if self.left < 0 and not self.came:
            self.came = True
            self.call()


class Puppet(threading.Thread):
    """Worker 1: adds zeros to each of worker 0's gradients, each time again. So an average is another than worker 0's own gradient."""

    def __init__(self, context, job):
        super().__init__()
        self.context, self.job, self.told = context, job, queue.Queue()
        self.wakes, self.wake = os.pipe()
        self.start()

    def follow(self, optimizer):
        for one in optimizer._parameters:
            array = self.context.zeros(one.parameter.numel(), one.mercury_type)
            self.told.put(self.job.declare(one.tensor.id, array, op="average", dtype=one.mercury_type))
        os.write(self.wake, b".")

    def run(self):
        under_way, poller = {}, select.poll()
        poller.register(self.job.fileno(), select.POLLIN)
        poller.register(self.wakes, select.POLLIN)
        while True:
            if self.wakes in dict(poller.poll()) and os.read(self.wakes, 1) == b"":
                return
            self.job.poll()
            while ended := [tensor for tensor, operation in under_way.items() if operation.done()]:  # which may collect others' ends
                for tensor in ended:
                    np.asarray(tensor.array).view(np.uint8).fill(0)
                    under_way[tensor] = tensor.push_pull()
            while not self.told.empty():
                tensor = self.told.get()
                under_way[tensor] = tensor.push_pull()

    def stop(self):
        os.close(self.wake)
        self.join()
        os.close(self.wakes)


class Training:
    """Worker 0, in rounds of two iterations, which begin where they all begin."""

    def __init__(self, cluster, puppet, **options):
        self.cluster, self.puppet, self.options, self.made = cluster, puppet, options, 0
        self.model = net()
        self.batches = batches(2, 0)
        self.make()
        self.start = copy.deepcopy((self.model.state_dict(), self.inner.state_dict()))
        operations = self.operations()
        self.begin()
        self.optimizer.flush()
        self.middle = self.values()
        for phase in self.PHASES:
            phase(self)
        self.optimizer.flush()
        self.end = self.values()
        self.sent = self.operations() - operations

    def make(self):
        self.inner = sgd(self.model.parameters())
        with unittest.mock.patch.object(_agreement, "agree"):  # which the other one takes no part in
            self.optimizer = ScheduledOptimizer(self.inner, self.model, self.cluster.contexts[1], self.cluster.workers[0], broadcast=False,
                                                first_number=100 * self.made, **self.options)
        self.made += 1
        self.puppet.follow(self.optimizer)

    def begin(self):
        """Up to the step that is due as the second iteration begins."""
        self.model.load_state_dict(self.start[0])
        self.inner.load_state_dict(copy.deepcopy(self.start[1]))
        self.number = 0
        for phase in self.PHASES:
            phase(self)
        self.number = 1

    def whole(self):
        self.begin()
        for phase in self.PHASES:
            phase(self)
        self.optimizer.flush()
        return same(self.values(), self.end)

    def values(self):
        """Of parameters, and what the optimizer keeps of them."""
        parameters = list(self.model.parameters())
        kept = [self.inner.state[one][key] for one in parameters for key in sorted(self.inner.state.get(one, ()))]
        return [torch.as_tensor(one).detach().clone() for one in [*parameters, *kept]]

    def operations(self):
        return self.cluster.workers[0].stats().operations

    def zero(self):
        self.optimizer.zero_grad()

    def forward(self):
        self.loss = loss_of(self.model, self.batches[self.number])

    def backward(self):
        self.loss.backward()

    def step(self):
        self.optimizer.step()

    PHASES = (zero, forward, backward, step)


class TakingAway(Training):
    """A gradient, so that its parameter does not move."""

    def backward(self):
        super().backward()
        self.model.scale.grad = None
        self.optimizer.synchronize()

    PHASES = (Training.zero, Training.forward, backward, Training.step)


class Replacing(Training):
    """A gradient, which is copied as it is sent."""

    def backward(self):
        with self.optimizer.no_sync():
            super().backward()
        self.model.scale.grad = torch.ones(8)

    PHASES = (Training.zero, Training.forward, backward, Training.step)


class TakingAllAway(Training):
    """To zero them."""

    def zero(self):
        for parameter in self.model.parameters():
            parameter.grad = None

    PHASES = (zero, Training.forward, Training.backward, Training.step)


class ZeroingByModel(Training):
    """Behind the step, not before it is taken."""

    def zero(self):
        self.optimizer.flush()
        self.model.zero_grad(set_to_none=False)

    PHASES = (zero, Training.forward, Training.backward, Training.step)


class Unsent(Training):
    """Until the step."""

    def backward(self):
        with self.optimizer.no_sync():
            super().backward()

    PHASES = (Training.zero, Training.forward, backward, Training.step)


class Clipping(Training):
    """By the norm of all averages."""

    def backward(self):
        super().backward()
        self.optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)

    PHASES = (Training.zero, Training.forward, backward, Training.step)


def same(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


class Everywhere(unittest.TestCase):
    """In the second of two iterations, whose first one's step is due as it begins."""

    def setUp(self):
        cluster = Cluster(2)
        self.addCleanup(cluster.close)
        puppet = Puppet(cluster.contexts[2], cluster.workers[1])
        self.addCleanup(puppet.stop)
        self.of_worker_0 = cluster, puppet

    def interrupt(self, phase, then, kind=Training, phases=None, rounds=2, **options):
        """At points of it, behind `phases`. then(training) goes on, and returns whether what has become of it is right."""
        training = kind(*self.of_worker_0, **options)
        place = 0
        came = True
        while came:
            before = training.operations()
            training.begin()
            for earlier in phases or training.PHASES[:training.PHASES.index(phase)]:
                earlier(training)
            with Interrupt(place) as interrupt:
                phase(training)
            came = interrupt.came
            try:
                self.assertTrue(then(training), f"interrupted at point {place}: the weights are others")
                self.assertEqual(training.operations() - before, training.sent * rounds // 2, f"interrupted at point {place}")
                self.assertTrue(training.whole(), f"interrupted at point {place}: what comes behind it is another")
                self.assertIsNot(interrupt.refuses, True, f"interrupted at point {place}: goes on")
            except RuntimeError as failure:
                self.assertRegex(str(failure), CUT_OFF, f"interrupted at point {place}")
                self.assertIsNot(interrupt.refuses, False, f"interrupted at point {place}: {failure}")
                self.go_on_from_a_checkpoint(training)
            place += EACH
        self.assertGreater(place, 20)

    def go_on_from_a_checkpoint(self, training):
        """As the error says, but that the other worker here takes all that comes."""
        with self.assertRaisesRegex(RuntimeError, CUT_OFF):
            training.optimizer.close()
        training.make()
        self.assertTrue(training.whole())

    def goes_on_with(self, *phases):
        def then(training):
            for phase in phases:
                phase(training)
            training.optimizer.flush()
            return same(training.values(), training.end)
        return then

    def test_zero_grad(self):
        self.interrupt(Training.zero, self.goes_on_with(*Training.PHASES))

    def test_zero_grad_behind_a_step_that_was_skipped(self):
        """As a scaler of losses does."""
        def synchronize(training):
            training.optimizer.synchronize()
        self.interrupt(Training.zero, self.goes_on_with(*Training.PHASES), phases=(*Training.PHASES[:3], synchronize), rounds=3)

    def test_the_forward_pass(self):
        self.interrupt(Training.forward, self.goes_on_with(Training.forward, Training.backward, Training.step))

    def test_the_forward_pass_where_each_module_waits(self):
        with each_alone():
            self.interrupt(Training.forward, self.goes_on_with(Training.forward, Training.backward, Training.step))

    def test_the_forward_pass_where_gradients_are_converted_and_watched(self):
        with each_alone():
            self.interrupt(Training.forward, self.goes_on_with(Training.forward, Training.backward, Training.step),
                           wire_dtype=torch.bfloat16, timeline=1000, finite=True)

    def test_the_forward_pass_with_a_quorum(self):
        """And who was in each step is said once all of it was taken, however often it was begun."""
        def then(training):
            right = self.goes_on_with(Training.forward, Training.backward, Training.step)(training)
            return right and training.optimizer.last_step().iteration == training.optimizer._steps - 1
        cluster = Cluster(1, quorum=1, patience_ms=100)
        self.addCleanup(cluster.close)
        self.of_worker_0 = cluster, unittest.mock.Mock()
        with each_alone():
            self.interrupt(Training.forward, then, quorum=1)

    def test_the_backward_pass(self):
        """step() ends the round, with the gradients that there are."""
        def then(training):
            training.step()
            training.optimizer.flush()
            return True
        self.interrupt(Training.backward, then)

    def test_step(self):
        self.interrupt(Training.step, self.steps_unless_it_has)

    def test_step_behind_a_gradient_that_was_taken_away(self):
        self.interrupt(Training.step, self.steps_unless_it_has, TakingAway)

    def test_step_behind_a_gradient_that_was_replaced(self):
        self.interrupt(Training.step, self.steps_unless_it_has, Replacing)

    def test_step_behind_clipping(self):
        self.interrupt(Training.step, self.steps_unless_it_has, Clipping)

    def test_step_behind_clipping_that_is_not_called_again(self):
        """As by who takes it for granted: if nothing is refused it was taken, or had not begun."""
        def then(training):
            training.optimizer.flush()
            values = training.values()
            training.zero()
            training.forward()
            return same(values, training.end) or same(values, training.middle)
        self.interrupt(Training.step, then, Clipping)

    def test_synchronize(self):
        def synchronize(training):
            training.optimizer.synchronize()
        self.interrupt(synchronize, self.goes_on_with(synchronize, Training.step), phases=Training.PHASES[:3])

    def handle(self, training, call):
        """At points of all phases. Nothing is refused, and what becomes of it is the same."""
        for phase in training.PHASES:
            place, came = 0, True
            while came:
                training.begin()
                for each in training.PHASES:
                    if each is phase:
                        with Handler(place, call) as handler:
                            each(training)
                    else:
                        each(training)
                training.optimizer.flush()
                self.assertTrue(same(training.values(), training.end), f"at point {place} of {phase.__name__}()")
                self.assertTrue(training.whole(), f"behind point {place} of {phase.__name__}()")
                came = handler.came
                place += EACH

    def test_a_handler_that_raises_nothing_and_flushes(self):
        training = Training(*self.of_worker_0)
        self.handle(training, training.optimizer.flush)

    def test_a_handler_that_flushes_where_gradients_are_converted(self):
        with each_alone():
            training = Training(*self.of_worker_0, wire_dtype=torch.bfloat16)
            self.handle(training, training.optimizer.flush)

    def test_a_handler_that_flushes_where_gradients_are_taken_away_to_zero_them(self):
        with each_alone():
            training = TakingAllAway(*self.of_worker_0)
            self.handle(training, training.optimizer.flush)

    def test_a_handler_that_saves(self):
        training = Training(*self.of_worker_0)

        def save():
            training.model.state_dict()
            groups = training.optimizer.state_dict()["param_groups"]
            self.assertEqual([len(group["params"]) for group in groups], [len(list(training.model.parameters()))])
        self.handle(training, save)

    def test_a_handler_that_reads_gradients_while_they_are_sent(self):
        """What it does is right, or it is told, and with it the program."""
        training = Unsent(*self.of_worker_0)
        place, came, told = 0, True, 0
        while came:
            training.begin()
            for earlier in training.PHASES[:3]:
                earlier(training)
            try:
                with Handler(place, lambda: training.model.scale.grad.sum()) as handler:
                    training.step()
            except RuntimeError as failure:
                if "gradients were read, and none has been sent" in str(failure):  # before step() has looked for that
                    training.optimizer.synchronize()
                    training.step()
                else:
                    self.assertRegex(str(failure), "gradients are read while they are sent", f"at point {place}")
                    told += 1
                    with self.assertRaisesRegex(RuntimeError, "was cut off by RuntimeError: gradients are read while they are sent"):
                        training.optimizer.close()
                    training.make()
                    training.whole()
            came = handler.came
            training.optimizer.flush()
            self.assertTrue(same(training.values(), training.end), f"at point {place}")
            place += EACH
        self.assertGreater(told, 0)

    def test_the_models_own_zero_grad(self):
        """Called again, it zeroes gradients once: what they are after the step stays for who wants it."""
        def then(training):
            for phase in training.PHASES:
                phase(training)
            training.optimizer.flush()
            return same(training.values(), training.end) and bool(training.model.scale.grad.any())
        self.interrupt(ZeroingByModel.zero, then, kind=ZeroingByModel)

    @staticmethod
    def steps_unless_it_has(training):
        """Where nothing is refused it was taken, or had not begun."""
        training.optimizer.flush()
        if same(training.values(), training.middle):
            training.step()
            training.optimizer.flush()
        return same(training.values(), training.end)


class ElasticTraining:
    """Of one worker."""

    def __init__(self, cluster):
        self.model = net()
        self.inner = sgd(self.model.parameters())
        self.optimizer = ScheduledOptimizer(self.inner, self.model, cluster.contexts[1], cluster.workers[0], elastic=True)
        self.numbers = self.optimizer.iterations(1_000_000)
        self.batch = batches(1, 0)[0]

    def compute(self):
        """Up to the step. What the weights are then."""
        self.number = next(self.numbers)
        self.optimizer.zero_grad()
        loss_of(self.model, self.batch).backward()
        return self.values()

    def values(self):
        return [one.detach().clone() for one in self.model.parameters()]


class ElasticEverywhere(unittest.TestCase):
    def test_step(self):
        """The iteration behind it is the next, with other weights, or the same one with the same; or it is refused."""
        right, place, came, cluster = 0, 0, True, None
        while came:
            if cluster is None:
                cluster = Cluster(1, rejoin_ms=60_000)
                training = ElasticTraining(cluster)
            before = training.compute()
            number = training.number
            with Interrupt(place) as interrupt:
                training.optimizer.step()
            came = interrupt.came
            try:
                after = training.compute()
                self.assertEqual(training.number, number + (not same(before, after)), f"interrupted at point {place}")
                training.optimizer.step()
                right += 1
            except RuntimeError as failure:
                self.assertRegex(str(failure), rf"{CUT_OFF}|iteration \d+ of worker 0 ended without a step", f"interrupted at point {place}")
                cluster.close()
                cluster = None
            place += EACH
        self.assertGreater(right, 0)


class FailsOnce(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise IndexError
        return super().step(closure)


class CutOff(unittest.TestCase):
    """The wrapped optimizer's step raises, where a module waits for its own sum."""

    def setUp(self):
        cluster = Cluster(1)
        self.addCleanup(cluster.close)
        self.model, self.batch = net(), batches(1, 0)[0]
        self.inner = FailsOnce(self.model.parameters(), lr=0.1)
        self.optimizer = ScheduledOptimizer(self.inner, self.model, cluster.contexts[1], cluster.workers[0])
        older = loss_of(self.model, self.batch)
        loss_of(self.model, self.batch).backward()
        self.optimizer.step()
        self.inner.fails = True
        with each_alone(), self.assertRaises(IndexError):
            loss_of(self.model, self.batch)
        self.whatever_uses_it = [lambda: self.model(self.batch[0]), older.backward, self.optimizer.step, self.optimizer.flush,
                                 self.optimizer.synchronize, self.model.state_dict, self.optimizer.state_dict, self.inner.state_dict,
                                 self.model.norm.state_dict, lambda: self.model.words.weight.grad.norm(), self.optimizer.close]

    def test_all_that_follows_is_refused_by_the_parameters_names(self):
        for use in self.whatever_uses_it:
            with self.subTest(use=use), self.assertRaisesRegex(RuntimeError, "^the step for scale was cut off by IndexError; .* from a checkpoint"):
                use()

    def test_the_model_is_its_own_again_behind_the_block(self):
        with self.assertRaisesRegex(RuntimeError, "was cut off by IndexError"), self.optimizer:
            self.optimizer.step()
        loss_of(self.model, self.batch).backward()
        self.inner.step()


if __name__ == "__main__":
    unittest.main()
