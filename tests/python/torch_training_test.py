"""ScheduledOptimizer under training loops as they are written: each over two workers, and with gradients averaged by hand.
The same weights, bit for bit.

usage: torch_training_test.py PACKAGE_FOLDER LIBRARY
"""
import copy
import functools
import io
import unittest
import unittest.mock
import warnings

from torch_lab import FOREVER_S, WORKERS, AveragedByHand, ScheduledOptimizer, Workers, adam, batches, loss_of, net, seeded, sgd

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from mercurystack import _agreement

OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "Adadelta": torch.optim.Adadelta, "Adamax": torch.optim.Adamax, "ASGD": torch.optim.ASGD, "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam, "Rprop": torch.optim.Rprop,
}


def trained(count=5, **how):
    """A common training loop."""
    def loop(rank, model, optimizer):
        for batch in batches(count, rank):
            optimizer.zero_grad()
            loss_of(model, batch, **how).backward()
            optimizer.step()
    return loop


class Optimizers(Workers):
    def test_each_of_torch_optim(self):
        for place, (name, make) in enumerate(OPTIMIZERS.items()):
            with self.subTest(name):
                self.compare(trained(), make, first_number=100 * place)

    def test_parameter_groups(self):
        def make(parameters):
            parameters = list(parameters)
            return torch.optim.SGD([{"params": [one for one in parameters if one.ndim == 1], "lr": 0.3},
                                    {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1}],
                                   lr=0.1, momentum=0.9)
        self.compare(trained(), make)

    def test_schedulers_by_step_and_by_epoch(self):
        """The rate of an update is that of its step(), though it comes later. Without a warning of their order."""
        made = {
            "step": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=9),
            "epoch": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
        }
        for place, (kind, make) in enumerate(made.items()):
            for inner in (False, True):
                def loop(rank, model, optimizer):
                    rates = make(getattr(optimizer, "_optimizer", getattr(optimizer, "optimizer", None)) if inner else optimizer)
                    for i, batch in enumerate(batches(8, rank)):
                        loss_of(model, batch).backward()
                        optimizer.step()
                        if isinstance(optimizer, AveragedByHand) and inner:
                            optimizer.optimizer._step_count, optimizer.optimizer._opt_called = i + 2, True
                        optimizer.zero_grad()
                        if kind == "step" or i % 4 == 3:
                            rates.step()
                with self.subTest(kind=kind, inner=inner), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    self.compare(loop, first_number=1000 * place + 100 * inner)

    def test_a_step_that_says_it_is_another_one(self):
        """As a decorator leaves it, around the step of the class above, which PyTorch has wrapped by then."""
        sgd([nn.Parameter(torch.ones(1))])

        class Halves(torch.optim.SGD):
            @functools.wraps(torch.optim.SGD.step)
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.grad.mul_(0.5)
                super().step()
        self.compare(trained(), lambda parameters: Halves(parameters, lr=0.1, momentum=0.9))

    def test_a_profiler_sees_each_step(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            trained(2)(rank, model, optimizer)
            with torch.autograd.profiler.profile(enabled=rank == 0) as seen:
                optimizer.flush()
            return [one.count for one in seen.key_averages() if one.key == "Optimizer.step#SGD.step"] if rank == 0 else [1]
        self.assertEqual(self.on_each(work), [[1]] * WORKERS)

    def test_without_a_profiler_no_step_is_recorded(self):
        """A record costs as much as the update of a small tensor."""
        recorded, record = [], torch.autograd.profiler.record_function

        def noted(name, *arguments):
            recorded.append(name)
            return record(name, *arguments)

        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            trained(2)(rank, model, optimizer)
            optimizer.flush()
        with unittest.mock.patch.object(torch.autograd.profiler, "record_function", noted):
            self.on_each(work)
            self.assertEqual(recorded, [])
            plain = sgd(net(0).parameters())
            plain.step()
            self.assertEqual(recorded, ["Optimizer.step#SGD.step"])

    @unittest.skipUnless(hasattr(torch.optim.Optimizer, "register_step_pre_hook"), "PyTorch 1 has no hooks of steps")
    def test_hooks_of_the_inner_optimizers_steps(self):
        def work(rank, context, job):
            model, seen = net(0), []
            inner = sgd(model.parameters())
            optimizer = ScheduledOptimizer(inner, model, context, job)
            trained(2)(rank, model, optimizer)
            inner.register_step_pre_hook(lambda *_: seen.append("before"))
            inner.register_step_post_hook(lambda *_: seen.append("behind"))
            optimizer.flush()
            return seen
        self.assertEqual(self.on_each(work), [["before", "behind"]] * WORKERS)

    def test_two_that_fight(self):
        """A generator and what tells its works from real ones, in one job."""
        def play(rank, wrap):
            torch_random = torch.Generator().manual_seed(rank)
            forger, judge = seeded(0, lambda: nn.Linear(4, 4)), seeded(1, lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
            of_forger, of_judge = wrap(adam(forger.parameters()), forger, 0), wrap(sgd(judge.parameters()), judge, 100)
            for _ in range(6):
                real, noise = torch.randn(5, 4, generator=torch_random), torch.randn(5, 4, generator=torch_random)
                of_judge.zero_grad()
                (judge(forger(noise).detach()).mean() - judge(real).mean()).backward()
                of_judge.step()
                of_forger.zero_grad()
                with of_judge.no_sync():
                    (-judge(forger(noise)).mean()).backward()
                of_forger.step()
            of_forger.flush()
            of_judge.flush()
            return nn.ModuleList([forger, judge])
        self.compare_two(play)

    def test_two_on_parts_of_one_model(self):
        def play(rank, wrap):
            model = net(0)
            firsts = [model.words.weight, *model.first.parameters()]
            others = [one for one in model.parameters() if all(one is not first for first in firsts)]
            both = wrap(adam(firsts), model, 0), wrap(sgd(others), model, 100)
            for batch in batches(6, rank):
                model.zero_grad(set_to_none=False)
                loss_of(model, batch).backward()
                for one in both:
                    one.step()
            for one in both:
                one.flush()
            return model
        self.compare_two(play)


class Twice(nn.Module):
    """One module called twice, and one whose values are computed again in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.words, self.twice, self.again, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 20)
        self.reentrant = reentrant

    def forward(self, words):
        hidden = torch.tanh(self.twice(torch.tanh(self.twice(self.words(words)))))
        return self.last(checkpoint(lambda values: torch.tanh(self.again(values)), hidden, use_reentrant=self.reentrant))


class Attending(nn.Module):
    """Parameters that are read without a call of their modules: the output projection of attention, those of a list."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))])
        self.last = nn.Linear(8, 20)

    def forward(self, words, with_block=True):
        hidden = self.words(words)
        if with_block:
            hidden = self.block(hidden.unsqueeze(0)).squeeze(0) * self.scales[0]
        return self.last(hidden * self.scales[1])


class Doubling(nn.Module):
    """What its last layer computes is multiplied by a factor that a hook, which somebody else puts there, computes of a parameter, the
    layer's or the model's own."""

    def __init__(self, of_its_own=False):
        super().__init__()
        self.words, self.last = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.owner = () if of_its_own else (self.last,)
        (self if of_its_own else self.last).small = nn.Parameter(torch.randn(()))

    def forward(self, words):
        found = self.last(self.words(words))
        return found * (self.owner or (self,))[0].factor

    @staticmethod
    def hook(module, values):
        if hasattr(module, "small"):
            module.__dict__["factor"] = module.small * 2


def normed(by):
    def make(seed):
        model = net(seed)
        by(model.first)
        by(model.side)
        return model
    return make


class Models(Workers):
    def test_modules_called_twice_and_checkpoints(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.compare(trained(), first_number=100 * reentrant, model=lambda seed: seeded(seed, lambda: Twice(reentrant)))

    def test_parameters_that_are_read_without_a_call_of_their_module(self):
        self.compare(trained(), model=lambda seed: seeded(seed, Attending))

        def from_the_third(rank, model, optimizer):
            for i, batch in enumerate(batches(6, rank)):
                optimizer.zero_grad()
                loss_of(model, batch, with_block=i >= 2 + rank).backward()
                optimizer.step()
        self.compare(from_the_third, model=lambda seed: seeded(seed, Attending), first_number=100)

    def test_weights_that_are_computed_of_parameters(self):
        self.compare(trained(), model=normed(nn.utils.weight_norm))
        self.compare(trained(), model=normed(nn.utils.parametrizations.orthogonal), first_number=100)

    def test_hooks_that_somebody_puts_before_ours(self):
        def before_others(rank, model, optimizer):
            hook = model.last.register_forward_pre_hook(Doubling.hook)
            model.last._forward_pre_hooks.move_to_end(hook.id, last=False)  # as PyTorch 2's prepend=True
            trained()(rank, model, optimizer)
        self.compare(before_others, model=lambda seed: seeded(seed, Doubling))

        def without_hooks(rank, model, optimizer):
            trained(1)(rank, model, optimizer)
            model.words._forward_pre_hooks.clear()
            with torch.no_grad():
                model(batches(1, rank)[0][0])  # which takes the step
        self.compare(without_hooks, first_number=300)
        hook = register_module_forward_pre_hook(Doubling.hook)
        self.addCleanup(hook.remove)
        self.compare(trained(), model=lambda seed: seeded(seed, Doubling), first_number=100)
        self.compare(trained(), model=lambda seed: seeded(seed, lambda: Doubling(of_its_own=True)), first_number=400)

        hook.remove()

        def parts(rank, model, optimizer):
            trained(1)(rank, model, optimizer)
            hook = model.words.register_forward_pre_hook(Doubling.hook)
            model.words._forward_pre_hooks.move_to_end(hook.id, last=False)
            model.words(batches(1, rank)[0][0])
        with self.assertRaisesRegex(RuntimeError, "^words: a forward pre-hook comes before ScheduledOptimizer's"):
            self.compare(parts, first_number=200)

    def test_bfloat16_by_autocast_and_a_scaler_that_is_off(self):
        def loop(rank, model, optimizer):
            scaler = torch.cuda.amp.GradScaler(enabled=False)
            for batch in batches(5, rank):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        self.compare(loop, model=lambda seed: seeded(seed, lambda: nn.Sequential(
            nn.Embedding(20, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 20))))

    def test_a_scaler_written_by_hand_and_gradients_read_after_the_step(self):
        seen = {}

        def loop(rank, model, optimizer):
            for batch in batches(5, rank):
                model.zero_grad(set_to_none=False)
                (loss_of(model, batch) * 64).backward()
                optimizer.synchronize()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(64)
                optimizer.step()
                seen.setdefault(type(optimizer).__name__, {}).setdefault(rank, []).append(model.first.weight.grad.clone())
        self.compare(loop)
        for mine, reference in zip(seen["ScheduledOptimizer"][1], seen["AveragedByHand"][1]):
            self.assertTrue(torch.equal(mine, reference))

    @unittest.skipUnless(hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"), "PyTorch 1 has scalers for GPUs alone")
    def test_a_scaler_that_skips_steps(self):
        skipped = []

        def loop(rank, model, optimizer):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 127, growth_interval=2)
            for batch in batches(9, rank):
                optimizer.zero_grad()
                scaler.scale(loss_of(model, batch)).backward()
                if isinstance(optimizer, AveragedByHand):
                    optimizer.synchronize()
                before, was = model.scale.detach().clone(), scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.flush()
                skipped.append(scaler.get_scale() < was)
                self.assertEqual(torch.equal(before, model.scale), skipped[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.compare(loop)
        self.assertIn(True, skipped)
        self.assertIn(False, skipped)

    def test_steps_that_are_skipped(self):
        """As scalers of losses do when an average is not finite. Gradients are zeroed then, in each way."""
        ways = {
            "optimizer": lambda model, optimizer: optimizer.zero_grad(),
            "model": lambda model, optimizer: model.zero_grad(set_to_none=False),
            "none": lambda model, optimizer: model.zero_grad(set_to_none=True),
            "not": lambda model, optimizer: None,  # the next ones are added to the averages
        }
        for place, (way, zero) in enumerate(ways.items()):
            def loop(rank, model, optimizer):
                for i, batch in enumerate(batches(7, rank)):
                    loss_of(model, batch, with_side=(i + rank) % 3 > 0).backward()
                    optimizer.synchronize()
                    if i % 3 != 1:
                        optimizer.step()
                    zero(model, optimizer)
            with self.subTest(way):
                self.compare(loop, first_number=100 * place)

    def test_gradients_that_are_read_or_zeroed_when_the_step_is_due(self):
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(6, rank)):
                loss_of(model, batch).backward()
                optimizer.step()
                if i % 3 == 0:
                    torch._foreach_zero_([one.grad for one in model.parameters() if one.grad is not None])
                elif i % 3 == 1:
                    float(model.side.weight.grad.norm())
                    model.zero_grad(set_to_none=False)
                else:
                    optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.compare(loop)

    def test_evaluation_between_two_steps(self):
        said = {}

        def loop(rank, model, optimizer):
            for batch in batches(4, rank):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    said.setdefault((type(optimizer).__name__, rank), []).append(float(loss_of(model, batch)))
                model.train()
        self.compare(loop)
        for rank in range(WORKERS):
            self.assertEqual(said["ScheduledOptimizer", rank], said["AveragedByHand", rank])

    def test_evaluation_of_a_module_that_reads_others_in_it_without_calling_them(self):
        """As PyTorch's encoder does where nobody wants gradients."""
        said = {}

        def loop(rank, model, optimizer):
            values = torch.randn(16, 1, 8, generator=torch.Generator().manual_seed(rank))
            for _ in range(4):
                optimizer.zero_grad()
                model(values).square().mean().backward()
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    said.setdefault((type(optimizer).__name__, rank), []).append(float(model[0](values).sum()))  # without a call of the whole
                model.train()
        self.compare(loop, model=lambda seed: seeded(seed, lambda: nn.Sequential(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2), nn.Linear(8, 4))))
        for rank in range(WORKERS):
            self.assertEqual(said["ScheduledOptimizer", rank], said["AveragedByHand", rank])

    def test_layers_that_are_frozen_behind_a_step_that_is_due(self):
        """The step is taken all the same; the next ones are not for them."""
        for place, (way, when) in enumerate({"before": 2, "last": 5}.items()):
            def loop(rank, model, optimizer):
                for i, batch in enumerate(batches(6, rank)):
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    if i == when:
                        if isinstance(optimizer, AveragedByHand):
                            optimizer.synchronize()
                        model.norm.requires_grad_(False)
                    optimizer.step()
                    if i == when:
                        model.first.requires_grad_(False)
            with self.subTest(way):
                self.compare(loop, lambda parameters: torch.optim.SGD(parameters, lr=0.1), first_number=100 * place)

    def test_gradients_that_are_taken_away_before_the_step(self):
        """Whose gradient is None has no step, as with every optimizer: in flight, and when sums are back."""
        for place, waits in enumerate((False, True)):
            def loop(rank, model, optimizer):
                for i, batch in enumerate(batches(6, rank)):
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    if waits or isinstance(optimizer, AveragedByHand):
                        optimizer.synchronize()
                    if i % 2:
                        model.first.weight.grad = None
                    optimizer.step()
            with self.subTest(waits=waits):
                self.compare(loop, adam, first_number=100 * place)

    def test_a_nan_is_everybodys_and_nothing_stops(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            for i, batch in enumerate(batches(3, rank)):
                optimizer.zero_grad()
                (loss_of(model, batch) * (float("nan") if rank == 1 and i == 1 else 1)).backward()
                optimizer.step()
            optimizer.flush()
            return model
        for model in self.on_each(work):
            self.assertTrue(model.first.weight.isnan().all())

    def told_of_an_infinity(self, read, number, **options):
        """What each worker is told when worker 1 makes one in the second iteration; read(model): between two passes."""
        def work(rank, context, job):
            model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, finite=True, first_number=number, **options)
            try:
                for i in range(4):
                    optimizer.zero_grad()
                    out = model(torch.ones(2, 8))
                    if rank == 1 and i == 1:  # in one parameter's alone
                        model[1].bias.register_hook(lambda gradient: gradient * float("inf"))
                    out.sum().backward()
                    read(optimizer)
                    optimizer.step()
            except FloatingPointError as failure:
                return str(failure)
            return "nothing"
        return self.on_each(work)

    def test_a_sum_that_is_not_finite_is_refused_on_every_worker(self):
        for place, (way, read) in enumerate({"forward": lambda optimizer: None, "read": lambda optimizer: optimizer.synchronize()}.items()):
            for dtype in (None, torch.bfloat16):
                with self.subTest(way=way, dtype=dtype):
                    for told in self.told_of_an_infinity(read, 100 * place + (10 if dtype else 0), wire_dtype=dtype):
                        self.assertRegex(told, "^the gradient of 1.bias is not finite in iteration 1:")

    def test_finite_sums_pass(self):
        self.compare(trained(), finite=True)


class Values(Workers):
    def test_a_checkpoint_in_the_middle(self):
        """Saved when steps are due, and loaded into a model of one process: it goes on in the same way."""
        saved = {}

        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(8, rank)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if i == 3 and isinstance(optimizer, ScheduledOptimizer):
                    file = io.BytesIO()
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                    saved[rank] = file
                elif i == 5 and isinstance(optimizer, ScheduledOptimizer):  # what was due is not to change what is loaded
                    saved[rank].seek(0)
                    state = torch.load(saved[rank])
                    model.load_state_dict(state["model"])
                    optimizer.load_state_dict(state["optimizer"])
                    for again in batches(8, rank)[4:6]:
                        optimizer.zero_grad()
                        loss_of(model, again).backward()
                        optimizer.step()
        self.compare(loop, adam)

    def test_the_inner_optimizers_state_in_the_middle(self):
        """Behind a step that is due, saved before the model's."""
        def loop(rank, model, optimizer):
            inner = getattr(optimizer, "_optimizer", getattr(optimizer, "optimizer", None))
            for i, batch in enumerate(batches(8, rank)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if i == 2:
                    saved = copy.deepcopy((inner.state_dict(), model.state_dict()))
                elif i == 5:
                    inner.load_state_dict(saved[0])
                    model.load_state_dict(saved[1])
        self.compare(loop, adam)

    def test_the_inner_optimizer_is_as_it_was_when_it_is_closed(self):
        def work(rank, context, job):
            model = net(0)
            inner = sgd(model.parameters())
            before = set(vars(inner))
            ScheduledOptimizer(inner, model, context, job).close()
            return before, set(vars(inner))
        for before, after in self.on_each(work):
            self.assertEqual(before | {"_opt_called"}, after | {"_opt_called"})

    def test_the_state_of_a_part_of_the_model(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            loss_of(model, batches(1, rank)[0]).backward()
            optimizer.step()
            part = copy.deepcopy(model.first.state_dict())
            optimizer.flush()
            return part, model.first.state_dict()
        for part, values in self.on_each(work):
            self.assertTrue(torch.equal(part["weight"], values["weight"]))

    def copies_of(self, model):
        """One in memory, one that was saved and loaded."""
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return copy.deepcopy(model), torch.load(file, weights_only=False)

    def test_copies_of_the_model_are_nobodys(self):
        def loop(rank, model, optimizer):
            trained(2)(rank, model, optimizer)
            optimizer.flush()
            for other in self.copies_of(model):
                loss_of(other, batches(1, rank)[0]).backward()
                before = model.first.weight.clone()
                with torch.no_grad():
                    other.first.weight.zero_()
                self.assertFalse(other.state_dict()["first.weight"].any())
                self.assertTrue(torch.equal(model.first.weight, before))
            trained(2)(rank, model, optimizer)
        self.compare(loop)

    def test_copies_behind_a_step_have_old_values_and_keep_them(self):
        def loop(rank, model, optimizer):
            trained(2)(rank, model, optimizer)
            if isinstance(optimizer, ScheduledOptimizer):
                old, copies = model.first.weight.detach().clone(), self.copies_of(model)
                optimizer.flush()
                self.assertFalse(torch.equal(model.first.weight, old))
                for other in copies:
                    loss_of(other, batches(1, rank)[0])
                    self.assertTrue(torch.equal(other.first.weight, old))
            trained(2)(rank, model, optimizer)
        self.compare(loop)

    def test_gradients_are_not_copied(self):
        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            trained(4)(rank, model, optimizer)
            usual = optimizer.copied
            optimizer.zero_grad()
            optimizer.flush()
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            loss_of(model, batches(1, rank)[0]).backward()
            optimizer.step()
            optimizer.flush()
            return usual, optimizer.copied, sum(one.requires_grad for one in model.parameters())
        for usual, copied, count in self.on_each(work):
            self.assertEqual((usual, copied), (0, count))


class OnTheWire(Workers):
    def test_each_gradient_and_each_sum_is_rounded_once(self):
        def loop(rank, model, optimizer):
            trained(6)(rank, model, optimizer)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss_of(model, batches(1, rank)[0]).backward()
                if isinstance(optimizer, AveragedByHand):
                    optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        for place, dtype in enumerate((torch.float16, torch.bfloat16)):
            with self.subTest(dtype=dtype):
                self.compare(loop, adam, wire_dtype=dtype, first_number=100 * place)

    def test_half_of_the_bytes_and_none_of_what_is_half_already(self):
        def model(seed):
            return seeded(seed, lambda: nn.Sequential(nn.Embedding(20, 50), nn.Linear(50, 20, dtype=torch.float64)))

        def sent(rank, context, job, number=0, **options):
            mine = model(rank)
            before = job.stats().bytes_pushed
            with ScheduledOptimizer(sgd(mine.parameters()), mine, context, job, broadcast=False, first_number=number,
                                    **options) as optimizer:
                nn.functional.cross_entropy(mine[1](mine[0](batches(1, rank)[0][0]).double()), batches(1, rank)[0][1]).backward()
                optimizer.step()
            job._terms.wait(FOREVER_S)  # of the workers' terms, which nobody waits for without broadcast=
            return job.stats().bytes_pushed - before - _agreement._TERM.size
        whole, half = (self.on_each(lambda *of: sent(*of, number=number, wire_dtype=dtype))
                       for number, dtype in ((0, None), (100, torch.bfloat16)))
        self.assertEqual(whole, [4 * 1000 + 8 * 1020] * WORKERS)
        self.assertEqual(half, [2 * 1000 + 2 * 1020] * WORKERS)

    def test_what_float16_cannot_hold_is_infinite(self):
        def work(rank, context, job):
            model = nn.Linear(2, 1, bias=False)
            optimizer = ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, context, job,
                                           wire_dtype=torch.float16)
            model(torch.tensor([7e4, 1.0])).backward()
            optimizer.step()
            optimizer.flush()
            return model.weight.grad
        for gradient in self.on_each(work):
            self.assertTrue(torch.equal(gradient, torch.tensor([[float("inf"), 1.0]])))


class Failures(Workers):
    """An exception in the middle of an iteration that the program catches."""

    def test_in_the_forward_pass(self):
        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(6, rank)):
                optimizer.zero_grad()
                if i == 3 and rank == 1:
                    handle = model.norm.register_forward_pre_hook(fail)
                    with self.assertRaises(IndexError):
                        loss_of(model, batch)
                    handle.remove()
                loss_of(model, batch).backward()
                optimizer.step()

        def fail(*_):
            raise IndexError
        self.compare(loop)

    def test_in_the_backward_pass(self):
        """On one worker: its round ends with the gradients that there are."""
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values):
                return values.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise IndexError

        def fail(_, inputs):
            return (Fails.apply(inputs[0]),)

        def loop(rank, model, optimizer):
            for i, batch in enumerate(batches(6, rank)):
                optimizer.zero_grad()
                if i == 3 and rank == 1:
                    handle = model.norm.register_forward_pre_hook(fail)
                    loss = loss_of(model, batch)
                    handle.remove()
                    with self.assertRaises(IndexError):
                        loss.backward()
                    if isinstance(optimizer, ScheduledOptimizer):
                        with self.assertRaisesRegex(RuntimeError, r"step\(\) ends the round"):
                            optimizer.zero_grad()
                        with self.assertRaisesRegex(RuntimeError, r"after a backward pass that failed, step\(\)"):
                            loss_of(model, batch).backward()
                else:
                    loss_of(model, batch).backward()
                optimizer.step()

        def work(rank, context, job):
            model = net(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            loop(rank, model, optimizer)
            optimizer.flush()
            return model
        self.same(*self.on_each(work))


if __name__ == "__main__":
    unittest.main()
