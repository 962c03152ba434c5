"""ScheduledOptimizer: two workers, each a thread with a model of its own, against one process that computes both workers'
gradients itself: the same weights, bit for bit.

usage: torch_test.py PACKAGE_FOLDER LIBRARY
"""
import threading
import unittest
import unittest.mock
import warnings

from torch_lab import FOREVER_S, WORKERS, Cluster, ScheduledOptimizer, Workers, adam, batches, loss_of, net, seeded, sgd, together

import torch
from torch import nn

from mercurystack import Job
from mercurystack._agreement import PIECE_BYTES


class Training(Workers):
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

    def test_clipping_where_each_worker_leaves_out_another_layer(self):
        """A norm is of averages, so also of those of layers that this worker did not use."""
        def clip(model, optimizer):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        def zeroed(model, batch, side, to_none):
            if to_none:  # as zero_grad() does in PyTorch 2
                for parameter in model.parameters():
                    parameter.grad = None
            return loss_of(model, batch, with_side=side)
        shares = [batches(6, worker) for worker in range(WORKERS)]
        for place, to_none in enumerate((False, True)):
            rounds = [[[lambda model, batch=shares[worker][i], side=(i + worker) % 3 > 0, to_none=to_none: zeroed(model, batch, side, to_none)]
                       for worker in range(WORKERS)] for i in range(6)]
            with self.subTest(to_none=to_none), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.train(rounds, step=clip, first_number=100 * place)

    def test_the_first_values_come_in_pieces(self):
        """Of a model that is larger than a piece, also those that are not contiguous; memory for one piece is taken."""
        def model(seed):
            made = seeded(seed, lambda: nn.Sequential(nn.Linear(1500, 1500), nn.BatchNorm1d(1500), nn.Linear(1500, 3)))
            made[2].weight = nn.Parameter(made[2].weight.detach().t().contiguous().t())
            made.register_buffer("seed", torch.tensor(seed))
            return made

        def work(rank, context, job):
            made, taken, zeros = model(rank), [], context.zeros

            def counted(shape, dtype="float32"):
                array = zeros(shape, dtype)
                taken.append(array.nbytes)
                return array
            with unittest.mock.patch.object(context, "zeros", counted):
                ScheduledOptimizer(sgd(made.parameters()), made, context, job).close()
            return made.state_dict(), sum(taken)
        first = model(0).state_dict()
        gradients = 4 * sum(one.numel() for one in model(0).parameters())
        self.assertGreater(gradients, 2 * PIECE_BYTES)
        for values, taken in self.on_each(work):
            for name, value in first.items():
                self.assertTrue(torch.equal(values[name], value), name)
            self.assertLess(taken, gradients + PIECE_BYTES + 4096)

    def test_learning_rates_of_a_scheduler(self):
        def loop(rank, model, optimizer):
            rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            for batch in batches(6, rank):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                rates.step()
        self.compare(loop)


class UsedBackwards(nn.Module):
    """Its parameters are in another order than the forward pass comes by them."""

    def __init__(self):
        super().__init__()
        self.third, self.second, self.first = nn.Linear(8, 4), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, values):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(values)))))


class Order(Workers):
    def test_priorities_are_places_in_the_forward_pass(self):
        asked, submit = [], Job._submit

        def noted(job, tensor, kind, priority, *root):
            asked.append((tensor, priority))
            return submit(job, tensor, kind, priority, *root)

        def work(rank, context, job):
            model = seeded(0, UsedBackwards)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            for _ in range(3):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
            optimizer.flush()
            return {one.tensor: one.name for one in optimizer._parameters}
        with unittest.mock.patch.object(Job, "_submit", noted):
            found = self.on_each(work)
        forward = [f"{layer}.{kind}" for layer in ("first", "second", "third") for kind in ("weight", "bias")]
        for names in found:
            mine = [(names[tensor], priority) for tensor, priority in asked if tensor in names]
            self.assertEqual(sorted(mine), sorted(3 * [(name, place) for place, name in enumerate(forward)]))

    def test_the_forward_pass_waits_for_no_later_layer(self):
        """Worker 1 sends the last one's gradient when worker 0's second forward pass has come by those before."""
        came_by = threading.Event()

        def work(rank, context, job):
            model = seeded(0, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            values = torch.ones(4, 8)
            if rank == 0:
                model(values).sum().backward()
                optimizer.step()
                model[3].register_forward_hook(lambda *_: came_by.set())
                model(values)
            else:
                model[:4](values).sum().backward()  # the last layer has no part in it, so step() sends zeros for it
                self.assertTrue(came_by.wait(FOREVER_S), "worker 0 waits for the last layer first")
                optimizer.step()
            optimizer.flush()
        self.on_each(work)


if __name__ == "__main__":
    unittest.main()
