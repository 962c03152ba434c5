"""ScheduledOptimizer where daemons serve: what each worker is told when one of them stops in the middle of an iteration.

usage: torch_daemon_test.py PACKAGE_FOLDER LIBRARY STACKD
"""
import contextlib
import os
import signal
import sys
import tempfile
import threading
import unittest

from torch_lab import FOREVER_S, WORKERS, ScheduledOptimizer, on_threads, seeded, sgd

import torch
from torch import nn

import mercurystack

STACKD = sys.argv.pop(1)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apps"))

import daemons  # noqa: E402

STOPPED = WORKERS - 1  # whose daemon it is
WITHIN = 2  # the iteration


class Daemons(unittest.TestCase):
    """A daemon for each worker. Both serve."""

    def start(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        addresses = [daemons.some_address() for _ in range(WORKERS)]
        self.daemons = []
        for rank, address in enumerate(addresses):
            self.daemons.append(daemons.Daemon(STACKD, None, folder.name, daemons.config(folder.name, address, name=f"host{rank}")))
            self.addCleanup(self.daemons[-1].stop, signal.SIGKILL)  # one of them may stand still
        self.stopped = threading.Event()
        self.rendezvous = ",".join(f"{address}:{daemons.UDP_PORT}" for address in addresses)

    @contextlib.contextmanager
    def job(self, rank, timeout_ms):
        with mercurystack.Context("daemon", socket=self.daemons[rank].socket) as context:
            yield context, context.open_job("train", role="worker", rank=rank, workers=WORKERS, servers=WORKERS,
                                            rendezvous=self.rendezvous, timeout_ms=timeout_ms)

    def stop(self, how, optimizer):
        """And returns once the library knows, as what is on its way fails: nobody has added to it yet."""
        self.daemons[STOPPED].process.send_signal(how)
        for one in optimizer._parameters:
            if one.operation is not None:
                with self.assertRaises(mercurystack.JobFailedError):
                    one.operation.wait(FOREVER_S)
        self.stopped.set()

    def train(self, rank, how):
        """Until it fails: of what. The daemon is stopped when the last layer's gradients are on their way, and those of the first
        are not computed yet."""
        with self.job(rank, FOREVER_S * 1000) as (context, job), contextlib.ExitStack() as left:
            model = seeded(0, lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job)
            left.callback(optimizer._leave)
            try:
                for iteration in range(WITHIN + 1):
                    hidden = model[1](model[0](torch.ones(4, 8)))
                    if iteration == WITHIN and rank == STOPPED:
                        hidden.register_hook(lambda _: self.stop(how, optimizer))
                    elif iteration == WITHIN:
                        self.assertTrue(self.stopped.wait(FOREVER_S))
                    model[2](hidden).sum().backward()
                    optimizer.step()
                    optimizer.flush()
            except mercurystack.JobFailedError as failure:
                return str(failure)
        return "nothing"

    def test_one_that_stops_in_the_middle_of_an_iteration(self):
        """Whichever way: its own worker is told at its next push, the other one by what it waits for."""
        for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how.name):
                self.start()
                other, its_own = on_threads(lambda rank: self.train(rank, how))
                self.assertRegex(other, r"the gradient of [02]\.(weight|bias): .*(worker|server) 1 of 2")
                self.assertNotIn("its program ended", other)
                if how == signal.SIGTERM:
                    self.assertRegex(other, "1 of 2 .*: its daemon was stopped$")
                self.assertRegex(its_own, r"the gradient of 0\.(weight|bias): .*mercury-stackd has gone")

    def test_a_rank_that_never_comes(self):
        self.start()
        with self.assertRaisesRegex(mercurystack.MercuryError, "1 of 2"), self.job(0, timeout_ms=500):
            pass


if __name__ == "__main__":
    unittest.main()
