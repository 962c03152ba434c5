"""ScheduledOptimizer and what a program does with gradients: it reads them in each way that PyTorch has, zeroes them, puts others in
their place, and goes on behind a backward pass that failed.

usage: torch_gradients_test.py PACKAGE_FOLDER LIBRARY
"""
import threading
import unittest
import warnings

from torch_lab import WORKERS, AveragedByHand, ScheduledOptimizer, Workers, batches, loss_of, net, seeded, sgd, waits

import torch
from torch import nn

warnings.filterwarnings("ignore", message="gradients are read before the next forward pass")


def clip(model):
    return nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def log(model):
    return float(model.first.weight.grad.norm())


def average_of(model, loss):
    """`model`, with the workers' averages of loss(model, rank) as its gradients."""
    gradients = []
    for rank in range(WORKERS):
        model.zero_grad(set_to_none=True)
        loss(model, rank).backward()
        gradients.append([one.grad for one in model.parameters() if one.requires_grad])
    for one, mine, others in zip((one for one in model.parameters() if one.requires_grad), *gradients):
        one.grad = (mine + others) / WORKERS
    return model


class Branches(nn.Module):
    """Whose gradients come in the order that the forward pass says."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, values, first, second):
        return getattr(self, first)(values) + getattr(self, second)(values)


class Reads(Workers):
    def read_in(self, number, model_of, loss, play):
        """What play(model, loss, read) has read on worker 0, by `read` around it. Worker 1 sends nothing before worker 0 waits there, or has
        read."""
        reader, has_read, found = [], threading.Event(), []

        def read(what):
            reader.append(threading.get_ident())
            found.append(what())
            has_read.set()

        def work(rank, context, job):
            model, pause = model_of(), threading.Event()
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, first_number=number)
            own = loss(model, rank)
            if rank == 0:
                play(model, own, read)
            else:
                while not (has_read.is_set() or reader and waits(reader[0])):
                    pause.wait(0.001)
                own.backward()
            optimizer.step()
            optimizer.flush()
            return model
        self.same(*self.on_each(work))
        return found[0]

    def test_in_lists_and_by_the_names_of_arguments(self):
        reads = {
            "list": lambda one, other: torch.cat([one, other]),
            "tuple": lambda one, other: torch.cat((one, other)),
            "name": lambda one, other: torch.add(input=one, other=torch.zeros(8, 8)),
            "list by its name": lambda one, other: torch.stack(tensors=[one, other]),
        }

        def loss(model, rank):
            return loss_of(model, batches(1, rank)[0])
        expected = average_of(net(0), loss)
        for place, (way, read_of) in enumerate(reads.items()):
            def of(model):
                return read_of(model.first.weight.grad, model.side.weight.grad)

            def play(model, own, read):
                own.backward()
                read(lambda: of(model))
            with self.subTest(way):
                self.assertTrue(torch.equal(self.read_in(100 * place, lambda: net(0), loss, play), of(expected)))

    def test_of_others_within_the_backward_pass(self):
        """Of those that the pass has come by they are averages there, too; the rest are sent as they come."""
        def make():
            return seeded(0, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))

        def loss(model, rank):
            return model[2](hidden(model, rank)).square().sum()

        def hidden(model, rank):
            values = model[1](model[0](torch.full((2, 8), 0.1 + rank)))
            values.register_hook(lambda _: seen[0]())
            return values
        seen = [lambda: None]
        expected = average_of(make(), loss)[2].weight.grad

        def play(model, own, read):
            seen[0] = lambda: read(model[2].weight.grad.clone) if threading.get_ident() == mine else None
            mine = threading.get_ident()
            own.backward()
        self.assertTrue(torch.equal(self.read_in(0, make, loss, play), expected))

    def test_by_hooks_in_another_order_on_each_worker(self):
        """Of what is not sent: whoever waited for the others there would wait for ever."""
        def work(rank, context, job):
            model, seen = seeded(0, Branches), []
            nodes = []
            for one in model.parameters():
                nodes.append(one.expand_as(one).grad_fn.next_functions[0][0])
                register = getattr(one, "register_post_accumulate_grad_hook", nodes[-1].register_hook)
                register(lambda *_, one=one: seen.append(float(one.grad.norm())))
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            for i in range(3):
                optimizer.zero_grad()
                model(torch.full((2, 8), 0.1 * i + rank), *("left", "right")[::1 if rank else -1]).square().sum().backward()
                optimizer.step()
            optimizer.flush()
            self.assertEqual(len(seen), 12)
            return model
        self.same(*self.on_each(work))


class Logs(Workers):
    """Of gradients that nobody has averaged, and may be in no average: they do no harm to the step."""

    def test_before_a_pass_without_a_forward_pass_between(self):
        """Also where a pass has failed. Each has its own way back to a pass that is heard of."""
        def fail(model, loss):
            handle = model.first.weight.register_hook(lambda _: 1 / 0)
            with self.assertRaises(ZeroDivisionError):
                loss.backward()
            handle.remove()

        def whole(model, optimizer, losses):
            first, second = losses(), losses()
            first.backward()
            log(model)
            second.backward()

        def failed(model, optimizer, losses):
            fail(model, losses())
            log(model)
            losses().backward()

        def failed_and_zeroed(model, optimizer, losses):
            first, second, third = losses(), losses(), losses()
            fail(model, first)
            optimizer.zero_grad()
            log(model)
            second.backward()
            third.backward()

        def failed_in_no_sync(model, optimizer, losses):
            first, second = losses(), losses()
            with optimizer.no_sync():
                fail(model, first)
            log(model)
            second.backward()

        def failed_before_a_step(model, optimizer, losses):
            fail(model, losses())
            optimizer.step()
            log(model)
            losses(model.forward).backward()  # without a call of the model
        for place, (play, passes) in enumerate(((whole, 2), (failed, 2), (failed_and_zeroed, 2), (failed_in_no_sync, 1), (failed_before_a_step, 1))):
            def work(rank, context, job):
                model, given = net(0), iter(batches(3, rank))
                optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, first_number=100 * place, backward_passes_per_step=passes)

                def losses(call=model):
                    words, targets = next(given)
                    return nn.functional.cross_entropy(call(words), targets)
                play(model, optimizer, losses)
                optimizer.step()
                optimizer.flush()
                return model
            with self.subTest(play.__name__):
                self.same(*self.on_each(work))

    def test_behind_a_step_and_then_no_backward_pass(self):
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(5, rank)):
                if not (i == 2 and rank == 1):
                    loss_of(model, batch).backward()
                optimizer.step()
                log(model)
                optimizer.zero_grad()
        self.compare(loop)

    def test_before_synchronize(self):
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                optimizer.zero_grad()
                with optimizer.no_sync():
                    loss_of(model, batch).backward()
                log(model)
                optimizer.synchronize()
                clip(model)
                optimizer.step()
        self.compare(loop)

    def test_by_one_worker_behind_the_step(self):
        """There is nothing that others would have a part in, nor once they are zeroed."""
        def loop(rank, model, optimizer):
            def look():
                if rank == 0 and isinstance(optimizer, ScheduledOptimizer):
                    log(model)
            for batch in batches(4, rank):
                model.zero_grad(set_to_none=False)
                loss_of(model, batch).backward()
                optimizer.step()
                if rank == 0 and isinstance(optimizer, ScheduledOptimizer):
                    optimizer.synchronize()
                look()
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                look()
        self.compare(loop)


class Zeroed(Workers):
    def test_in_each_way_when_a_step_is_due(self):
        """It stays due: nobody waits."""
        def each(change):
            def zero(model, _):
                for one in model.parameters():
                    if one.grad is not None:
                        change(one)
            return zero

        def take(one):
            one.grad = None
        ways = {
            "optimizer": lambda model, optimizer: optimizer.zero_grad(),
            "model": lambda model, optimizer: model.zero_grad(set_to_none=False),
            "at once": lambda model, optimizer: torch._foreach_zero_([one.grad for one in model.parameters() if one.grad is not None]),
            "detached": each(lambda one: one.grad.detach_().zero_()),
            "without a gradient": each(lambda one: one.grad.requires_grad_(False).zero_()),
            "none": each(take),
        }
        for place, (way, zero) in enumerate(ways.items()):
            def loop(rank, model, optimizer):
                for batch in batches(4, rank):
                    loss_of(model, batch).backward()
                    before = model.first.weight.detach().clone()
                    optimizer.step()
                    zero(model, optimizer)
                    self.assertEqual(torch.equal(model.first.weight, before), isinstance(optimizer, ScheduledOptimizer))
            with self.subTest(way):
                self.compare(loop, first_number=100 * place)

    def test_by_none_without_a_backward_pass(self):
        """On a worker that has no batch: the others' gradients count."""
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(4, rank)):
                if not (i == 2 and rank == 1):
                    loss_of(model, batch).backward()
                optimizer.step()
                optimizer.flush()
                for one in model.parameters():
                    if one.requires_grad and (rank == 0 or isinstance(optimizer, ScheduledOptimizer)):
                        one.grad = None
                    elif one.grad is not None:
                        one.grad = torch.zeros_like(one)
        self.compare(loop)

    def test_where_every_second_step_is_skipped(self):
        """Of two passes each. What is left of the averages is added to, in Mercury's memory, where it is not zeroed; clipping waits for all."""
        def to_none(model, _):
            for one in model.parameters():
                one.grad = None
        ways = {"optimizer": lambda model, optimizer: optimizer.zero_grad(), "none": to_none, "not": lambda model, optimizer: None}
        for place, (way, zero) in enumerate(ways.items()):
            def loop(rank, model, optimizer):
                shares = batches(12, rank)
                for i in range(6):
                    for batch in shares[2 * i:2 * i + 2]:
                        loss_of(model, batch).backward()
                    if isinstance(optimizer, AveragedByHand):
                        optimizer.synchronize()
                    clip(model)
                    if i % 2:
                        optimizer.step()
                    zero(model, optimizer)
                self.assertEqual(getattr(optimizer, "copied", 0), 0)
            with self.subTest(way):
                self.compare(loop, backward_passes_per_step=2, first_number=100 * place)

    def test_not_at_all(self):
        """The averages decay, and the next pass adds to them; also those of layers that it leaves out are averages when they are read."""
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(6, rank)):
                loss_of(model, batch, with_side=(i + rank) % 2 > 0).backward()
                optimizer.synchronize()
                clip(model)
                optimizer.step()
        self.compare(loop)


class Moves(Workers):
    """Whether a step is for a parameter."""

    def test_those_that_were_taken_away_once_move_again(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            values = []
            for i, batch in enumerate(batches(2, rank)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                if i == 0:
                    model.side.weight.grad = None
                log(model)
                optimizer.step()
                optimizer.flush()
                values.append(model.side.weight.detach().clone())
            return values
        for first, second in self.on_each(work):
            self.assertTrue(torch.equal(first, net(0).side.weight))
            self.assertFalse(torch.equal(first, second))

    def test_those_that_are_frozen_do_not(self):
        """Nor by what the optimizer remembers of them."""
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            for i, batch in enumerate(batches(4, rank)):
                if i == 2:
                    optimizer.flush()
                    model.norm.requires_grad_(False)
                    before = model.norm.weight.clone()
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            optimizer.flush()
            self.assertTrue(torch.equal(model.norm.weight, before))
        self.on_each(work)

    def test_those_whose_averages_are_back_move_together(self):
        steps = {}

        class Counts(torch.optim.SGD):
            def step(self, closure=None):
                super().step()
                steps[self] = steps.get(self, 0) + 1

        def work(rank, context, job):
            model = net(0)
            inner = Counts(model.parameters(), lr=0.1)
            optimizer = ScheduledOptimizer(inner, model, context, job)
            first, second = batches(2, rank)
            loss_of(model, first).backward()
            optimizer.step()
            for one in optimizer._parameters:
                while not one.operation.done():
                    pass
            before = steps.get(inner, 0)
            loss_of(model, second)
            return steps[inner] - before
        self.assertEqual(self.on_each(work), [1] * WORKERS)


class Elsewhere(Workers):
    """Gradients that a program puts there."""

    def test_before_the_backward_pass(self):
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                for one in model.parameters():
                    if one.requires_grad:
                        one.grad = torch.zeros_like(one)
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.flush()
        self.compare(loop)

    def test_the_tensor_of_the_average_before(self):
        """It is Mercury's memory already."""
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                loss_of(model, batch).backward()
                optimizer.synchronize()
                kept = model.first.weight.grad
                optimizer.step()
                optimizer.zero_grad()
                model.first.weight.grad = kept
            self.assertEqual(getattr(optimizer, "copied", 0), 0)
        self.compare(loop)

    def test_a_copy_of_anothers(self):
        """Which is that of its average."""
        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                optimizer.zero_grad()
                loss_of(model, batch, with_side=rank > 0).backward()
                if isinstance(optimizer, AveragedByHand):
                    optimizer.synchronize()
                model.side.weight.grad = model.first.weight.grad.clone()
                optimizer.step()
        self.compare(loop)

    def test_in_the_same_tensor(self):
        """By its data, and by sharing its memory; zeroed or not before the pass that adds to them."""
        def data(gradient):
            gradient.data = torch.full_like(gradient, 0.5)
        for place, move in enumerate((data, lambda gradient: gradient.share_memory_())):
            for zeroes in (True, False):
                def loop(rank, model, optimizer):
                    for batch in batches(4, rank):
                        optimizer.zero_grad()
                        loss_of(model, batch).backward()
                        optimizer.step()
                        optimizer.flush()
                        optimizer.zero_grad()
                        move(model.first.weight.grad)
                        if zeroes:
                            optimizer.zero_grad()
                        loss_of(model, batch).backward()
                        optimizer.step()
                        optimizer.flush()
                    if isinstance(optimizer, ScheduledOptimizer):
                        self.assertEqual(optimizer.copied, 0 if zeroes else 4)  # zeroed, it lies in Mercury's memory again
                with self.subTest(move=place, zeroes=zeroes):
                    self.compare(loop, first_number=200 * place + 100 * zeroes)


if __name__ == "__main__":
    unittest.main()
