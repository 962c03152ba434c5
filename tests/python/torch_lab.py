"""What the tests of ScheduledOptimizer have in common: a model, two workers, each a thread with a model of its own, and
one process that computes both workers' gradients itself.

A test that imports it is started with PACKAGE_FOLDER LIBRARY.
"""
import contextlib
import os
import sys
import threading
import unittest
import unittest.mock
import warnings

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [PACKAGE, os.path.dirname(os.path.abspath(__file__))]
os.environ["MERCURY_LIBRARY"] = LIBRARY
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from cluster import FOREVER_S, Cluster  # noqa: E402
from mercurystack._operation import Operation  # noqa: E402
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


def each_alone():
    """Parameters are updated where the forward pass needs them, and not before, though their averages may be back."""
    return unittest.mock.patch.object(ScheduledOptimizer, "_update_arrived", lambda _: None)


ONE_AT_A_TIME = threading.Lock()  # of what draws from PyTorch's one generator, or traces


def seeded(seed, make):
    with ONE_AT_A_TIME:
        torch.manual_seed(seed)
        return make()


def net(seed=0):
    return seeded(seed, Net)


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


def on_threads(work, failed=lambda rank: None):
    """work(rank) on a thread for each worker; what they return, or what the first of them raised."""
    results, failures = [None] * WORKERS, []

    def run(rank):
        try:
            results[rank] = work(rank)
        except BaseException as failure:  # of a thread, to be raised here
            failures.append(failure)
            failed(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER_S)
    if failures:
        raise failures[0]
    for rank, thread in enumerate(threads):
        assert not thread.is_alive(), f"worker {rank} has not ended within {FOREVER_S} s"
    return results


def waits(thread):
    """Whether it is in a wait for an operation."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Operation.wait.__code__:
        frame = frame.f_back
    return frame is not None


class Workers(unittest.TestCase):
    tolerance = 0.0  # none: the sum of two is the same in each order

    def setUp(self):
        self.cluster = Cluster(WORKERS, deterministic=True)
        self.addCleanup(self.cluster.close)

    def on_each(self, work):
        """work(rank, context, job) on a thread for each worker; what they return."""
        return on_threads(lambda rank: work(rank, self.cluster.contexts[rank + 1], self.cluster.workers[rank]),
                          failed=lambda rank: self.cluster.workers[rank].close())  # the other one waits for it

    def same(self, model, reference):
        for (name, one), other in zip(model.named_parameters(), reference.parameters()):
            same = torch.allclose(one, other, rtol=0, atol=self.tolerance) if self.tolerance else torch.equal(one, other)
            self.assertTrue(same, f"{name}: {one} is not {other}")

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

    def compare(self, loop, make=sgd, model=net, **options):
        """loop(rank, model, optimizer) over Mercury, and in this process with gradients averaged by hand: the same weights."""
        def over_mercury(rank, context, job):
            mine = model(seed=rank)
            optimizer = ScheduledOptimizer(make(mine.parameters()), mine, context, job, **options)
            loop(rank, mine, optimizer)
            optimizer.flush()
            return mine

        def by_hand(rank, *_):
            mine = model(seed=0)
            loop(rank, mine, AveragedByHand(make(mine.parameters()), meeting, rank, options.get("wire_dtype")))
            return mine
        meeting = Meeting()
        for one, reference in zip(self.on_each(over_mercury), self.on_each(by_hand)):
            self.same(one, reference)

    def compare_two(self, play):
        """As compare(), with two optimizers. play(rank, wrap) trains and returns a model; it makes them by wrap(optimizer,
        model, first_number), with 0 and 100."""
        meetings = {0: Meeting(), 100: Meeting()}
        over_mercury = self.on_each(lambda rank, context, job: play(rank, lambda optimizer, model, number: ScheduledOptimizer(
            optimizer, model, context, job, first_number=number)))
        by_hand = self.on_each(lambda rank, *_: play(rank, lambda optimizer, _, number: AveragedByHand(
            optimizer, meetings[number], rank)))
        for one, reference in zip(over_mercury, by_hand):
            self.same(one, reference)


class Meeting:
    """Where the threads of reference workers exchange gradients."""

    def __init__(self):
        self.barrier = threading.Barrier(WORKERS, timeout=FOREVER_S)
        self.gradients = [None] * WORKERS

    def average(self, rank, mine):
        self.gradients[rank] = mine
        self.barrier.wait()
        averages = [(a + b) / WORKERS for a, b in zip(*self.gradients)]
        self.barrier.wait()
        return averages


class AveragedByHand(torch.optim.Optimizer):
    """What ScheduledOptimizer is to equal: gradients are averaged, then the optimizer steps."""

    def __init__(self, optimizer, meeting, rank, wire_dtype=None):
        self.optimizer, self.meeting, self.rank, self.wire_dtype = optimizer, meeting, rank, wire_dtype
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.averaged = False

    def synchronize(self):
        parameters = [one for group in self.param_groups for one in group["params"] if one.requires_grad]
        mine = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in parameters]
        for parameter, average in zip(parameters, self.meeting.average(self.rank, [self.rounded(one) for one in mine])):
            parameter.grad = self.rounded(average)
        self.averaged = True

    def rounded(self, values):
        return values if self.wire_dtype is None else values.to(self.wire_dtype).to(values.dtype)

    def step(self, closure=None):
        if not self.averaged:
            self.synchronize()
        self.averaged = False
        type(self.optimizer).step(self.optimizer)

    def zero_grad(self, set_to_none=False):
        self.optimizer.zero_grad(set_to_none=False)

    def flush(self):
        pass

    def no_sync(self):
        return contextlib.nullcontext()
