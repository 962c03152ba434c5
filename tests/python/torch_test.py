"""ScheduledOptimizer: two workers, each a thread with a model of its own, against one process that computes both workers'
gradients itself: the same weights, bit for bit.

usage: torch_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import sys
import threading
import unittest
import warnings

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [PACKAGE, os.path.dirname(os.path.abspath(__file__))]
os.environ["MERCURY_LIBRARY"] = LIBRARY
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from cluster import FOREVER_S, Cluster  # noqa: E402
from mercurystack import JobFailedError, MercuryError  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

torch.set_num_threads(1)
WORKERS = 2


class Net(nn.Module):
    """With what optimizers stumble over: a tied weight, one that some passes leave out, one that is frozen, a bare
    parameter, a layer that normalises."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.side = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(8))
        self.last = nn.Linear(8, 20, bias=False)
        self.last.weight = self.words.weight

    def forward(self, words, with_side=True):
        hidden = torch.tanh(self.first(self.words(words)))
        if with_side:
            hidden = hidden + self.side(hidden)
        return self.last(self.frozen(self.norm(hidden)) * self.scale)


ONE_AT_A_TIME = threading.Lock()  # of what draws from PyTorch's one generator


def net(seed=0):
    with ONE_AT_A_TIME:
        torch.manual_seed(seed)
        return Net()


def batches(count, worker):
    random = torch.Generator().manual_seed(100 + worker)
    return [(torch.randint(20, (6,), generator=random), torch.randint(20, (6,), generator=random)) for _ in range(count)]


def loss_of(model, batch, **how):
    return nn.functional.cross_entropy(model(batch[0], **how), batch[1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def together(model, make, rounds, step=None):
    """One process: both workers' gradients for each round, their average, a step. `rounds` has for each round for each
    worker the losses to add up, as functions of the model."""
    optimizer = make(model.parameters())
    for losses in rounds:
        averages = None
        for mine in losses:
            optimizer.zero_grad(set_to_none=False)
            for loss in mine:
                loss(model).backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
            averages = gradients if averages is None else [a + b for a, b in zip(averages, gradients)]
        for parameter, gradient in zip(model.parameters(), averages):
            if parameter.requires_grad:
                parameter.grad = gradient / WORKERS
        if step is not None:
            step(model, optimizer)
        optimizer.step()
    return model


class Training(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(WORKERS, deterministic=True)
        self.addCleanup(self.cluster.close)

    def on_each(self, work):
        """work(rank, context, job) on a thread for each worker; what they return."""
        results, failures = [None] * WORKERS, []

        def run(rank):
            try:
                results[rank] = work(rank, self.cluster.contexts[rank + 1], self.cluster.workers[rank])
            except BaseException as failure:  # of a thread, to be raised here
                failures.append(failure)
                self.cluster.workers[rank].close()  # the other one waits for it

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FOREVER_S)
        if failures:
            raise failures[0]
        return results

    def same(self, model, reference):
        for (name, one), other in zip(model.named_parameters(), reference.parameters()):
            self.assertTrue(torch.equal(one, other), f"{name}: {one} is not {other}")

    def train(self, rounds, make=sgd, step=None, **options):
        """Each worker's share of `rounds`, with the wrapped optimizer, in the order of a common training loop."""
        def work(rank, context, job):
            model = net(seed=rank)  # worker 0's weights are to be everybody's
            optimizer = ScheduledOptimizer(make(model.parameters()), model, context, job, **options)
            for losses in rounds:
                optimizer.zero_grad()
                for loss in losses[rank]:
                    loss(model).backward()
                if step is not None:
                    step(model, optimizer)
                optimizer.step()
            optimizer.flush()
            return model
        reference = together(net(), make, rounds, step)
        for model in self.on_each(work):
            self.same(model, reference)

    def rounds(self, count, losses=lambda batch: [lambda model: loss_of(model, batch)]):
        shares = [batches(count, worker) for worker in range(WORKERS)]
        return [[losses(shares[worker][i]) for worker in range(WORKERS)] for i in range(count)]

    def test_weights_are_those_of_one_process(self):
        for make in (sgd, adam):
            with self.subTest(make=make.__name__):
                self.cluster.close()
                self.cluster = Cluster(WORKERS, deterministic=True)
                self.addCleanup(self.cluster.close)
                self.train(self.rounds(20), make)

    def test_layers_that_some_passes_leave_out(self):
        shares = [batches(12, worker) for worker in range(WORKERS)]
        self.train([[[lambda model, batch=shares[worker][i], with_side=(i + worker) % 3 != 0:
                      loss_of(model, batch, with_side=with_side)] for worker in range(WORKERS)] for i in range(12)])

    def test_gradients_of_several_passes(self):
        shares = [batches(12, worker) for worker in range(WORKERS)]
        self.train([[[lambda model, batch=batch: loss_of(model, batch) for batch in shares[worker][3 * i:3 * i + 3]]
                     for worker in range(WORKERS)] for i in range(4)], backward_passes_per_step=3)

    def test_no_sync(self):
        shares = [batches(4, worker) for worker in range(WORKERS)]

        def work(rank, context, job):
            model = net(rank)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            for i in (0, 2):
                with optimizer.no_sync():
                    loss_of(model, shares[rank][i]).backward()
                loss_of(model, shares[rank][i + 1]).backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.flush()
            return model
        reference = together(net(), sgd, [[[lambda model, batch=batch: loss_of(model, batch)
                                            for batch in shares[worker][i:i + 2]] for worker in range(WORKERS)]
                                          for i in (0, 2)])
        for model in self.on_each(work):
            self.same(model, reference)

    def test_clipping_by_the_global_norm_waits_for_all_sums_and_warns_once(self):
        def clip(model, optimizer):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.train(self.rounds(6), step=clip)
        said = [str(one.message) for one in said if "waited for" in str(one.message)]
        self.assertEqual(len(said), WORKERS)

    def test_learning_rates_of_a_scheduler(self):
        def train(rank, context, job):
            model = net(rank)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            for i in range(6):
                loss_of(model, shares[rank][i]).backward()
                optimizer.step()
                optimizer.zero_grad()
                rates.step()
            optimizer.flush()
            return model
        shares = [batches(6, worker) for worker in range(WORKERS)]
        model = net()
        optimizer = sgd(model.parameters())
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for i in range(6):
            gradients = None
            for rank in range(WORKERS):
                optimizer.zero_grad(set_to_none=False)
                loss_of(model, shares[rank][i]).backward()
                mine = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
                gradients = mine if gradients is None else [a + b for a, b in zip(gradients, mine)]
            for parameter, gradient in zip(model.parameters(), gradients):
                if parameter.requires_grad:
                    parameter.grad = gradient / WORKERS
            optimizer.step()
            rates.step()
        for trained in self.on_each(train):
            self.same(trained, model)


class Refusals(unittest.TestCase):
    """Each names the parameter, and leaves the job as it was."""

    def setUp(self):
        self.cluster = Cluster(1)
        self.addCleanup(self.cluster.close)
        self.context, self.job = self.cluster.contexts[1], self.cluster.workers[0]

    def wrapped(self, model, optimizer=None, **options):
        return ScheduledOptimizer(optimizer or sgd(model.parameters()), model, self.context, self.job, **options)

    def test_what_cannot_be_had(self):
        model = net()
        with self.assertRaisesRegex(ValueError, "LBFGS"):
            self.wrapped(model, torch.optim.LBFGS(model.parameters()))
        with self.assertRaisesRegex(ValueError, "expected 1 or more, got 0"):
            self.wrapped(model, backward_passes_per_step=0)
        with self.assertRaisesRegex(ValueError, "shape .3,. is the optimizer's and not the model's"):
            self.wrapped(model, sgd([*model.parameters(), nn.Parameter(torch.ones(3))]))
        model.scale = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        with self.assertRaisesRegex(ValueError, "scale: expected floating point on the CPU, got torch.complex64"):
            self.wrapped(model)

    def test_misuse_between_two_steps(self):
        model = net()
        optimizer = self.wrapped(model)
        batch = batches(1, 0)[0]
        loss_of(model, batch).backward()
        with self.assertRaisesRegex(RuntimeError, "its gradient was computed again before step"):
            loss_of(model, batch).backward()
        with self.assertRaisesRegex(RuntimeError, "its gradient is on its way"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(ValueError, "closure"):
            optimizer.step(lambda: None)
        with self.assertRaisesRegex(RuntimeError, "cannot be added"):
            optimizer.add_param_group({"params": []})
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "scale: it was used without a call of the module"):
            (model.scale * 2).sum().backward()

    def test_a_parameter_that_is_thawed(self):
        model = net()
        self.wrapped(model)
        model.frozen.requires_grad_(True)
        with self.assertRaisesRegex(RuntimeError, r"a parameter of Linear, of shape \(8, 8\), wants a gradient"):
            loss_of(model, batches(1, 0)[0])

    def test_state_of_the_optimizer_and_of_the_model(self):
        model, batch = net(), batches(1, 0)[0]
        optimizer = self.wrapped(model)
        loss_of(model, batch).backward()
        before = model.scale.detach().clone()
        optimizer.step()
        self.assertTrue(torch.equal(model.scale, before))  # not yet
        saved = model.state_dict()
        self.assertFalse(torch.equal(saved["scale"], before))
        state = optimizer.state_dict()
        self.assertEqual(state["param_groups"][0]["lr"], 0.1)
        self.assertIn("momentum_buffer", state["state"][0])
        optimizer.load_state_dict(state)
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.flush()
        self.assertFalse(torch.equal(model.scale, before))


class Disagreement(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(WORKERS)
        self.addCleanup(self.cluster.close)

    def test_models_that_differ_are_refused_by_the_parameters_name(self):
        failures = []

        def make(rank):
            with ONE_AT_A_TIME:
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 + rank))
            try:
                ScheduledOptimizer(sgd(model.parameters()), model, self.cluster.contexts[rank + 1], self.cluster.workers[rank],
                                   broadcast=False)
            except MercuryError as failure:
                failures.append(str(failure))

        threads = [threading.Thread(target=make, args=(rank,)) for rank in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FOREVER_S)
        self.assertEqual(len(failures), 1, failures)  # the second to come
        self.assertRegex(failures[0], r"the gradient of 1\.(weight|bias)")

    def test_a_worker_that_is_lost_fails_the_others_by_the_parameters_name(self):
        def work(rank):
            model = net()
            return model, ScheduledOptimizer(sgd(model.parameters()), model, self.cluster.contexts[rank + 1],
                                             self.cluster.workers[rank], broadcast=False)
        (model, optimizer), _ = work(0), work(1)
        batch = batches(1, 0)[0]
        loss_of(model, batch).backward()
        optimizer.step()
        self.cluster.workers[1].close()
        with self.assertRaisesRegex(JobFailedError, "the gradient of scale: .*worker 1 of 2"):
            loss_of(model, batch)


if __name__ == "__main__":
    unittest.main()
