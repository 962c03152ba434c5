"""ScheduledOptimizer and torch.distributed with models on a GPU: two workers, against gradients averaged by hand on the same
GPU. The same weights, bit for bit. Skipped where PyTorch has no GPU.

usage: torch_gpu_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import socket
import sys
import unittest
import warnings

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # the same bits each time

from torch_lab import LIBRARY, PACKAGE, ScheduledOptimizer, Workers, adam, batches, loss_of, net, seeded, sgd  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from programs import free_port, outcomes_of, start  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 120


def on_gpu(seed):
    return net(seed).cuda()


def gpu_batches(count, rank):
    return [tuple(one.cuda() for one in batch) for batch in batches(count, rank)]


def trained(rank, model, optimizer):
    for batch in gpu_batches(8, rank):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


@unittest.skipUnless(torch.cuda.is_available(), "PyTorch has no GPU here")
class Training(Workers):
    def test_weights_are_those_of_gradients_averaged_by_hand(self):
        for place, make in enumerate((sgd, adam)):
            with self.subTest(make=make.__name__):
                self.compare(trained, make, model=on_gpu, first_number=100 * place)

    def test_half_of_the_bytes(self):
        for place, dtype in enumerate((torch.float16, torch.bfloat16)):
            with self.subTest(dtype=dtype):
                self.compare(trained, adam, model=on_gpu, wire_dtype=dtype, first_number=100 * place)

    def test_layers_that_some_passes_leave_out(self):
        def loop(rank, model, optimizer):
            for i, batch in enumerate(gpu_batches(8, rank)):
                optimizer.zero_grad()
                loss_of(model, batch, with_side=(i + rank) % 3 != 0).backward()
                optimizer.step()
        self.compare(loop, model=on_gpu)

    def test_gradients_that_are_read(self):
        self.tolerance = 1e-6  # a GPU adds up a norm in another order where gradients lie elsewhere

        def loop(rank, model, optimizer):
            for batch in gpu_batches(6, rank):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                if not isinstance(optimizer, ScheduledOptimizer):
                    optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.compare(loop, model=on_gpu)

    def test_a_large_gradient_that_is_still_being_computed(self):
        """It is copied behind the computing, of which the GPU has much to do."""
        def model(seed):
            return seeded(seed, lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))).cuda()

        def loop(rank, model, optimizer):
            random = torch.Generator().manual_seed(rank)
            for _ in range(6):
                values = torch.randn(4096, 1024, generator=random).cuda()
                optimizer.zero_grad()
                model(values).square().mean().backward()
                optimizer.step()
        self.compare(loop, model=model)

    def test_a_timeline_and_an_end_without_threads(self):
        def work(rank, context, job):
            model = on_gpu(0)
            with ScheduledOptimizer(sgd(model.parameters()), model, context, job, timeline=10_000) as optimizer:
                trained(rank, model, optimizer)
            return optimizer.summary()
        for summary in self.on_each(work):
            self.assertEqual(summary.iterations, 7)


@unittest.skipUnless(torch.cuda.is_available(), "PyTorch has no GPU here")
class Distributed(unittest.TestCase):
    def test_collectives_messages_and_ddp(self):
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(socket.SOCK_STREAM)), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, os.path.join(HERE, "distributed_program.py"), PACKAGE, "gpu"]
        outcomes = outcomes_of([start(command, LIBRARY, RANK=str(rank), **variables) for rank in range(2)], PATIENCE_S)
        for rank, (said, errors, status) in enumerate(outcomes):
            self.assertEqual((said, status), ("good\n", 0), f"rank {rank}: {errors}")


if __name__ == "__main__":
    unittest.main()
