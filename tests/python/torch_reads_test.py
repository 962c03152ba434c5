"""ScheduledOptimizer where gradients are read that nobody has averaged, and where the forward pass that takes a step is not a training's.

usage: torch_reads_test.py PACKAGE_FOLDER LIBRARY
"""
import copy
import pickle
import threading
import time
import unittest
import unittest.mock
import warnings
from concurrent.futures import ThreadPoolExecutor

from torch_lab import (FOREVER_S, ONE_AT_A_TIME, WORKERS, AveragedByHand, ScheduledOptimizer, Workers, adam, batches, each_alone, loss_of, net, on_threads, seeded,
                       sgd)

import torch
from torch import nn

from mercurystack import JobFailedError, _stepping

warnings.filterwarnings("ignore", message="gradients are read before the next forward pass")
UNSENT = "^gradients were read, and none has been sent since the step before"


def clip(model):
    return nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def train(model, optimizer, rank, count=4, between=lambda i: None):
    for i, batch in enumerate(batches(count, rank)):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        between(i)


class OfItsOwn(Workers):
    """Gradients of one worker's that are read."""

    def told(self, loop, **options):
        """What loop(rank, model, optimizer) raises on each worker."""
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, **options)
            try:
                loop(rank, model, optimizer)
            except (RuntimeError, JobFailedError) as failure:
                job.close()  # as a process that ends of it
                return failure
            return None
        return self.on_each(work)

    def test_without_a_backward_pass(self):
        """Of an empty batch, say."""
        def loop(first):
            def of(rank, model, optimizer):
                for i, batch in enumerate(batches(5, rank)):
                    optimizer.zero_grad()
                    if not (i == 2 and rank == 1):
                        loss_of(model, batch).backward()
                    first(optimizer)
                    clip(model)
                    optimizer.step()
            return of
        self.compare(loop(lambda optimizer: optimizer.synchronize()))
        told = self.told(loop(lambda optimizer: None), first_number=100)
        self.assertIsInstance(told[0], JobFailedError)
        self.assertRegex(str(told[1]), UNSENT)

    def test_in_a_window_that_is_not_full(self):
        def loop(rank, model, optimizer, first=lambda optimizer: optimizer.synchronize()):
            for i, batch in enumerate(batches(10, rank)):
                loss_of(model, batch).backward()
                if i % 4 == 3 or i == 9:
                    first(optimizer)
                    clip(model)
                    optimizer.step()
                    optimizer.zero_grad()
        self.compare(loop, backward_passes_per_step=4)
        for told in self.told(lambda *of: loop(*of, first=lambda optimizer: None), backward_passes_per_step=4, first_number=100):
            if not isinstance(told, JobFailedError):
                self.assertRegex(str(told), UNSENT)

    def test_for_a_log_before_the_last_pass(self):
        """They are this worker's own, and do no harm."""
        def loop(rank, model, optimizer):
            seen = []
            for i, batch in enumerate(batches(8, rank)):
                if i % 2 == 0:
                    optimizer.zero_grad()
                loss_of(model, batch).backward()
                if i % 2 == 0:
                    seen.append(float(model.first.weight.grad.norm()))
                else:
                    optimizer.step()
            self.assertTrue(all(seen))
        self.compare(loop, backward_passes_per_step=2)

    def test_by_a_hook_before_they_are_sent(self):
        """Of what each has computed itself, in whichever order: nobody waits there."""
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()

        def hooked(seed):
            model = net(seed)
            model.seen = []
            for one in (model.first.weight, model.side.weight, model.scale):
                node = one.expand_as(one).grad_fn.next_functions[0][0]
                node.register_hook(lambda *_, one=one: model.seen.append(float(one.grad.norm())))
                model.seen_by = getattr(model, "seen_by", ()) + (node,)
            return model
        self.compare(loop, model=hooked)

    def test_behind_a_backward_pass_that_failed(self):
        def fail(gradient):
            raise KeyError("on purpose")

        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            norms = []
            for i, batch in enumerate(batches(5, rank)):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                handle = model.first.weight.register_hook(fail) if i == 2 and rank == 1 else None
                try:
                    loss.backward()
                except KeyError:
                    handle.remove()
                norms.append(float(clip(model)))
                optimizer.step()
            optimizer.flush()
            return model, norms
        (one, norms), (other, others) = self.on_each(work)
        self.same(one, other)
        self.assertEqual(norms, others)

    def test_by_autograd_between_the_clipping_and_the_step(self):
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.synchronize()
                clip(model)
                if rank == 1:
                    torch.autograd.grad(loss_of(model, batch), model.first.weight)
                optimizer.step()
        self.compare(loop)

    def test_gradients_from_before_the_making_count(self):
        def work(rank, context, job):
            model = net(0)
            loss_of(model, batches(1, rank)[0]).backward()
            optimizer = ScheduledOptimizer(torch.optim.SGD(model.parameters(), 1.0), model, context, job)
            optimizer.step()
            optimizer.flush()
            return model
        gradients, expected = [], net(0)
        for rank in range(WORKERS):
            model = net(0)
            loss_of(model, batches(1, rank)[0]).backward()
            gradients.append(model.first.weight.grad)
        for model in self.on_each(work):
            self.assertTrue(torch.equal(model.first.weight, expected.first.weight - (gradients[0] + gradients[1]) / 2))

    def test_memory_that_is_shared_behind_the_making(self):
        def loop(rank, model, optimizer):
            train(model, optimizer, rank, between=lambda i: model.share_memory() if i == 1 and isinstance(optimizer, ScheduledOptimizer) else None)
        self.compare(loop)


class NoneOf(torch.autograd.Function):
    """It has a gradient for the second value alone."""

    @staticmethod
    def forward(ctx, values, others):
        return values + others

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class Odd(nn.Module):
    """A parameter without elements, and one of which a function has no gradient."""

    def __init__(self):
        super().__init__()
        self.layer, self.empty, self.none = nn.Linear(8, 4), nn.Parameter(torch.empty(0)), nn.Parameter(torch.ones(4))

    def forward(self, values):
        return NoneOf.apply(self.none, self.layer(values)) + self.empty.sum()


class Places(Workers):
    """What a program has put in a gradient's place, or has taken from there."""

    def test_parameters_without_elements_or_gradients(self):
        def loop(rank, model, optimizer):
            for i in range(4):
                optimizer.zero_grad()
                model(torch.full((2, 8), 0.1 * i + rank)).square().sum().backward()
                optimizer.step()
        for place, make in enumerate((sgd, adam)):
            self.compare(loop, make, model=lambda seed: seeded(seed, Odd), first_number=100 * place)

    def test_none_before_synchronize(self):
        """As PyTorch 2's model.zero_grad() leaves it, on a worker that has no batch."""
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(5, rank)):
                for one in model.parameters():
                    if not one.requires_grad or isinstance(optimizer, ScheduledOptimizer):
                        one.grad = None
                    elif one.grad is not None:
                        one.grad.zero_()
                loss = loss_of(model, batch)
                if not (i == 2 and rank == 1):
                    loss.backward()
                optimizer.synchronize()
                clip(model)
                optimizer.step()
        self.compare(loop)

    def test_none_before_another_is_read(self):
        """There is no step for it."""
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            loss_of(model, batches(1, rank)[0]).backward()
            model.side.weight.grad = None
            float(model.first.weight.grad.norm())
            optimizer.step()
            optimizer.flush()
            return model
        for model in self.on_each(work):
            self.assertTrue(torch.equal(model.side.weight, net(0).side.weight))
            self.assertFalse(torch.equal(model.first.weight, net(0).first.weight))

    def test_one_of_the_programs(self):
        """Also where the next pass adds to it, and where it is on its way when it is put there."""
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(5, rank)):
                loss_of(model, batch).backward()
                optimizer.synchronize()
                with torch.no_grad():
                    model.first.weight.grad = model.first.weight.grad.clamp(-0.01, 0.01)
                optimizer.step()
                if i == 2:
                    optimizer.zero_grad()
        self.compare(loop)

        def constant(rank, model, optimizer):
            for batch in batches(3, rank):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                if isinstance(optimizer, AveragedByHand):
                    optimizer.synchronize()
                model.first.weight.grad = torch.full_like(model.first.weight, 0.01)
                optimizer.step()
        self.compare(constant, first_number=100)

    def test_a_log_behind_a_pass_that_failed_in_no_sync(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            first, second = batches(2, rank)
            loss = loss_of(model, first)
            handle = model.first.weight.register_hook(lambda _: 1 / 0)
            with self.assertRaises(ZeroDivisionError), optimizer.no_sync():
                loss.backward()
            handle.remove()
            float(model.first.weight.grad.norm())
            loss_of(model, second).backward()
            optimizer.step()
            optimizer.flush()
            return model
        self.same(*self.on_each(work))

    def test_copies_are_plain_averages(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            loss_of(model, batches(1, rank)[0]).backward()
            gradient = model.first.weight.grad
            self.assertTrue(repr(gradient).startswith("tensor("))
            copied, loaded = copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))
            for one in (copied, loaded):
                self.assertIs(type(one), torch.Tensor)
                self.assertTrue(torch.equal(one, model.first.weight.grad))
            return copied
        one, other = self.on_each(work)
        self.assertTrue(torch.equal(one, other))


class Ends(Workers):
    def test_of_a_round_without_a_step(self):
        """In which workers have left out different layers."""
        def work(rank, context, job):
            model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            with ScheduledOptimizer(sgd(model.parameters()), model, context, job):
                model[rank](torch.ones(4)).sum().backward()
            return all(one.grad is None for one in model.parameters())
        self.assertEqual(self.on_each(work), [True] * WORKERS)

    def test_of_a_job_that_has_failed(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            if rank == 1:
                job.close()
                return None
            loss_of(model, batches(1, rank)[0]).backward()
            optimizer.step()
            with self.assertRaisesRegex(JobFailedError, "the gradient of"):
                optimizer.close()
            optimizer.close()
            loss_of(model, batches(1, rank)[0]).backward()
            return model.state_dict()
        on_threads(lambda rank: work(rank, self.cluster.contexts[rank + 1], self.cluster.workers[rank]))

    def test_a_sum_that_is_not_finite_is_refused_each_time(self):
        def work(rank, context, job):
            model = nn.Linear(8, 1, bias=False)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, finite=True)
            (model(torch.ones(2, 8)).sum() * (float("nan") if rank else 1)).backward()
            optimizer.step()
            def flush_zeroed():
                optimizer.zero_grad()
                optimizer.flush()
            for way in (optimizer.flush, flush_zeroed, optimizer.state_dict, model.state_dict, lambda: model(torch.ones(8)), optimizer.close):
                with self.assertRaisesRegex(FloatingPointError, "^the gradient of weight is not finite in iteration 0"):
                    way()
            return model
        for model in self.on_each(work):
            self.assertTrue(torch.isfinite(model.weight).all())

    def test_what_is_not_sent_may_be_anything(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, finite=True)
            with optimizer.no_sync():
                (loss_of(model, batches(1, rank)[0]) * float("nan")).backward()
            optimizer.close()
        self.on_each(work)


class MatrixProduct(torch.optim.SGD):
    """In its step autocast would make products of bfloat16."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    flat = parameter.grad.reshape(-1, 1)
                    parameter.add_((flat @ torch.ones(1, 1)).reshape(parameter.shape), alpha=-group["lr"])


class Delegates(torch.optim.Optimizer):
    """Hands its steps on to another one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups[0]["params"], {"lr": 0.1})

    def step(self, closure=None):
        self.optimizer.step()


class Surroundings(Workers):
    """Of the forward pass that takes a step."""

    def test_inference(self):
        def loop(rank, model, optimizer):
            def evaluate(_):
                with torch.inference_mode():
                    loss_of(model, batches(1, rank)[0])
            train(model, optimizer, rank, between=evaluate)
        for place, make in enumerate((sgd, adam)):
            self.compare(loop, make, first_number=100 * place)

    def test_autocast(self):
        def loop(rank, model, optimizer):
            for i in range(4):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(torch.full((2, 8), 0.1 * i + rank)).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.compare(loop, lambda parameters: MatrixProduct(parameters, lr=0.01), model=lambda seed: seeded(seed, lambda: nn.Linear(8, 4)))

    def test_a_trace(self):
        def trace(model):
            with ONE_AT_A_TIME:  # PyTorch names what two threads trace in one sequence, and finds its two graphs of one model to differ
                return torch.jit.trace(model, torch.ones(4))

        def work(rank, context, job):
            model = nn.Sequential(nn.Linear(4, 4))
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            model(torch.ones(4)).sum().backward()
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, r"would record it: flush\(\) first"):
                trace(model)
            optimizer.flush()
            before = copy.deepcopy(model.state_dict())
            traced = trace(model)
            traced(torch.ones(4))
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]))
        self.on_each(work)

    def test_another_thread_that_evaluates(self):
        def loop(rank, model, optimizer):
            ends, failures = threading.Event(), []

            def evaluate():
                try:
                    while not ends.is_set():
                        with torch.no_grad():
                            loss_of(model, batches(1, rank)[0])
                except BaseException as failure:  # to be raised below
                    failures.append(failure)
            thread = threading.Thread(target=evaluate)
            if isinstance(optimizer, ScheduledOptimizer):
                thread.start()
            try:
                train(model, optimizer, rank, count=40)
            finally:
                ends.set()
            if isinstance(optimizer, ScheduledOptimizer):
                thread.join()
            self.assertEqual(failures, [])
        self.compare(loop)

    def test_options_that_change_in_place_behind_the_step(self):
        class TensorRate(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.sub_(parameter.grad * group["rate"] * group["factors"][0])

        def with_rate(parameters):
            made = TensorRate(parameters, lr=0.1)
            made.param_groups[0].update(rate=torch.tensor(0.1), factors=[1.0])
            return made

        def loop(rank, model, optimizer):
            def change(_):
                group, = optimizer.param_groups
                group["rate"].mul_(0.5)
                group["factors"][0] *= 0.7
            train(model, optimizer, rank, between=change)
        self.compare(loop, with_rate)


class ReadsElsewhere(torch.optim.SGD):
    """Its step waits for a thread that reads all gradients, as one that clips by itself."""

    def __init__(self, parameters):
        self.all = list(parameters)
        super().__init__(self.all, lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        with ThreadPoolExecutor(1) as pool:
            list(pool.map(lambda one: one.grad.norm(), self.all))
        super().step()


class Slow(torch.optim.SGD):
    """Its steps take a while. `during` is called in the first."""

    step_s, during = 0.1, None

    @torch.no_grad()
    def step(self, closure=None):
        during, self.during = self.during, None
        if during is not None:
            during()
        time.sleep(self.step_s)
        super().step()


class Blends(torch.optim.SGD):
    """Updates what its groups do not have, without a gradient, as one that averages weights."""

    def __init__(self, parameters):
        self.all = list(parameters)
        super().__init__(self.all, lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for one in self.all:
            one.mul_(0.5)


class Refused(Workers):
    def made(self, make, number, wrap=lambda model: model):
        """What making one raises on each worker."""
        def work(rank, context, job):
            model = wrap(net(0))
            try:
                train(model, ScheduledOptimizer(make(model.parameters()), model, context, job, first_number=number), rank)
            except (RuntimeError, ValueError) as failure:
                job.close()  # as a process that ends of it
                return str(failure)
            except JobFailedError:
                return "the other one has ended"
            return "nothing"
        return self.on_each(work)

    def updated_alone(self, make):
        """What making it raises, where each parameter is updated alone: the other one's averages may all have been there."""
        with each_alone():
            told = self.made(make, 0)
        self.assertNotEqual(told, ["the other one has ended"] * WORKERS)
        return [one for one in told if one != "the other one has ended"]

    def test_steps_that_somebody_else_takes(self):
        for told in self.updated_alone(lambda parameters: Delegates(sgd(parameters))):
            self.assertRegex(told, "^Delegates has read the gradient of .*hands steps on to another optimizer, wrap that one")

    def test_a_step_that_waits_for_a_thread_that_reads(self):
        with unittest.mock.patch.object(_stepping, "STEP_S", 0.2):
            for told in self.updated_alone(ReadsElsewhere):
                self.assertRegex(told, "^the gradient of .* is read while ReadsElsewhere takes a step on another thread, .* for 0.2 s. If the step waits")

    def test_no_read_while_the_lock_is_held_for_long(self):
        """For steps none of which takes so long, and behind the last, as by who waits for sums."""
        steps, waits_s = 8, 0.8

        def work(rank, context, job):
            model = net(0)
            slow = Slow(model.parameters(), lr=0.1)
            optimizer = ScheduledOptimizer(slow, model, context, job)
            loss_of(model, batches(1, rank)[0]).backward()
            with ThreadPoolExecutor(1) as pool:
                with optimizer._lock:
                    reads = []
                    slow.during = lambda: reads.append(pool.submit(lambda: float(model.first.weight.grad.norm())))
                    for _ in range(steps):
                        optimizer._stepper.step([])
                    time.sleep(waits_s)
                    self.assertFalse(reads[0].done())
                return reads[0].result(FOREVER_S)

        with unittest.mock.patch.object(_stepping, "STEP_S", 0.5):
            one, other = self.on_each(work)
        self.assertEqual(one, other)

    def test_updates_without_gradients(self):
        for told in self.updated_alone(Blends):
            self.assertRegex(told, "^Blends updates parameters that are not in its groups")

    def test_a_step_that_was_replaced(self):
        def patched(parameters):
            made = sgd(parameters)
            made.step = lambda: None
            return made
        for told in self.made(patched, 100):
            self.assertRegex(told, "^SGD.step was replaced in this object")

    def test_scripted_parts(self):
        def wrap(model):
            model.side = seeded(1, lambda: torch.jit.script(nn.Linear(8, 8)))
            return model
        for told in self.made(sgd, 0, wrap):
            self.assertRegex(told, "^side: it is scripted")

    def test_copies_and_hooks_of_the_optimizer(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            with self.assertRaisesRegex(TypeError, r"its state_dict\(\) can"):
                copy.deepcopy(optimizer)
            with self.assertRaisesRegex(RuntimeError, "a step is taken in parts"):
                optimizer.register_step_post_hook(lambda *_: None)
        self.on_each(work)


if __name__ == "__main__":
    unittest.main()
