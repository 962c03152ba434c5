"""What an elastic ScheduledOptimizer, and one with a quorum, refuse.

usage: torch_elastic_refusals_test.py PACKAGE_FOLDER LIBRARY
"""
import unittest
import unittest.mock

from torch_lab import Cluster, ScheduledOptimizer, batches, loss_of, net, on_threads, seeded, sgd

import torch
from torch import nn

import mercurystack
from mercurystack import MercuryError
from mercurystack._meeting import Meeting
from mercurystack._state_tensor import StateTensor
from mercurystack.torch import Elastic
from programs import free_port


class Alone(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(1, rejoin_ms=60_000)
        self.addCleanup(self.cluster.close)
        self.model = net()

    def wrapped(self, cluster=None, job=None, context=None, **options):
        cluster = cluster or self.cluster
        return ScheduledOptimizer(sgd(self.model.parameters()), self.model, context or cluster.contexts[1], job or cluster.workers[0], **options)

    def test_jobs_with_other_terms(self):
        for terms, options, text in (({}, {"elastic": True}, "open the job of worker 0 with rejoin_ms="),
                                     ({}, {"quorum": 1}, "worker 0's job has 0 and its ScheduledOptimizer 1"),
                                     ({"quorum": 1, "patience_ms": 100}, {}, "worker 0's job has 1 and its ScheduledOptimizer 0"),
                                     ({"quorum": 1, "patience_ms": 100, "rejoin_ms": 60_000}, {"quorum": 1, "elastic": True}, "not in a job with a quorum"),
                                     ({"rejoin_ms": 60_000}, {"elastic": True, "finite": True}, "not with finite="),
                                     ({"rejoin_ms": 60_000}, {"elastic": True, "broadcast": False}, "worker 0's weights go to all")):
            with self.subTest(text):
                cluster = Cluster(1, **terms)
                self.addCleanup(cluster.close)
                with self.assertRaisesRegex(ValueError, text):
                    self.wrapped(cluster, **options)

    def test_a_server_that_would_die_with_its_worker(self):
        with mercurystack.Context("embedded") as context, context.open_job(
                "serves", serve=True, role="worker", rank=0, workers=1, rendezvous=f"127.0.0.1:{free_port()}", rejoin_ms=60_000) as job:
            with self.assertRaisesRegex(ValueError, "takes the server in its process along"):
                self.wrapped(job=job, context=context, elastic=True)

    def test_a_second_one(self):
        self.wrapped(elastic=True).close()
        with self.assertRaisesRegex(ValueError, "has an elastic ScheduledOptimizer already"):
            self.wrapped(elastic=True, first_number=100)

    def test_steps_that_are_not_one_for_each_iteration(self):
        optimizer = self.wrapped(elastic=Elastic(first_iteration=5))
        with self.assertRaisesRegex(RuntimeError, r"step\(\) of worker 0: .*optimizer.iterations"):
            optimizer.step()
        self.assertIsNone(optimizer.last_step())
        with self.assertRaisesRegex(RuntimeError, r"iteration 5 of worker 0 ended without a step"):
            for _ in optimizer.iterations(7):
                pass
        for iteration in optimizer.iterations(6):
            optimizer.zero_grad()
            loss_of(self.model, batches(1, 0)[0]).backward()
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "has a second step"):
                optimizer.step()
        self.assertEqual((iteration, optimizer.last_step().iteration, optimizer.last_step().attempts), (5, 5, 1))
        self.assertEqual(list(optimizer.iterations(6)), [])
        self.assertEqual(list(optimizer.iterations(3)), [], "another worker may be where this one has been long ago")

    def test_what_others_do_not_have(self):
        optimizer = self.wrapped()
        for call in (optimizer.last_step, lambda: optimizer.iterations(3)):
            with self.assertRaisesRegex(RuntimeError, "make (it|the ScheduledOptimizer) with elastic="):
                call()


class Models(unittest.TestCase):
    def failures_of(self, make, carried=lambda rank: ()):
        cluster = Cluster(2, rejoin_ms=60_000)
        self.addCleanup(cluster.close)
        failures = {}

        def work(rank):
            model = make(rank)
            try:
                ScheduledOptimizer(sgd(model.parameters()), model, cluster.contexts[rank + 1], cluster.workers[rank],
                                   elastic=Elastic(carried=carried(rank)))
            except (ValueError, MercuryError) as failure:
                failures[rank] = str(failure)
                cluster.workers[rank].close()  # as its program's end does
        on_threads(work)
        return failures

    def test_models_that_differ(self):
        """In names and types of what is not sent, and in what is."""
        failures = self.failures_of(lambda rank: seeded(0, lambda: nn.Sequential(nn.Linear(4, 4), (nn.BatchNorm1d, nn.LayerNorm)[rank](4))))
        self.assertEqual(list(failures), [1], failures)
        self.assertRegex(failures[1], "the workers' models differ: worker 0's 1.running_mean is .*, worker 1's ")
        failures = self.failures_of(lambda rank: seeded(0, lambda: nn.Linear(4, 4 + rank)))
        self.assertEqual(len(failures), 2, failures)
        told = sorted(failures.values(), key=lambda text: "left the job" in text)
        self.assertRegex(told[0], "the gradient of (weight|bias)")  # the second to come
        self.assertRegex(told[1], "worker [01] of 2 .*left the job")

    def test_other_objects_that_are_carried(self):
        failures = self.failures_of(lambda rank: net(), lambda rank: (nn.Linear(1, 1),) * rank)
        self.assertEqual(list(failures), [1], failures)
        self.assertIn("carried: worker 0 has 0 objects in it, worker 1 1", failures[1])


class Losses(unittest.TestCase):
    """Worker 1 leaves within what an elastic optimizer does by itself: what worker 0 is told is in words of the training."""

    def told(self, method, turn):
        """Of worker 0, where worker 1 leaves at its call number `turn` of Meeting's `method`."""
        cluster = Cluster(2, rejoin_ms=60_000)
        self.addCleanup(cluster.close)
        original, turns, told = getattr(Meeting, method), iter(range(turn + 1)), []

        def leave_in(meeting, *arguments):
            if meeting._job.rank == 1 and next(turns) == turn:
                meeting._job.close()
                raise KeyboardInterrupt
            return original(meeting, *arguments)

        def work(rank):
            try:
                model = net()
                optimizer = ScheduledOptimizer(sgd(model.parameters()), model, cluster.contexts[rank + 1], cluster.workers[rank],
                                               elastic=Elastic(first_iteration=5))
                for _ in optimizer.iterations(9):
                    optimizer.zero_grad()
                    loss_of(model, batches(1, rank)[0]).backward()
                    optimizer.step()
            except KeyboardInterrupt:
                pass
            except MercuryError as failure:
                told.append(str(failure))

        with unittest.mock.patch.object(Meeting, method, leave_in):
            on_threads(work)
        self.assertEqual(len(told), 1, told)
        return told[0]

    def test_in_a_vote(self):
        self.assertRegex(self.told("_vote", 2), r"the vote, of worker 0 in iteration 6: worker 1 of 2 .*left the job")

    def test_in_an_attempt_of_zeros(self):
        self.assertRegex(self.told("_void_attempt", 0), r"the zeros that stand for the gradient of \S+, of worker 0 in iteration 5: "
                                                        r".*worker 1 of 2 .*left the job")

    def test_as_the_state_is_sent(self):
        with unittest.mock.patch.object(StateTensor.__init__, "__defaults__", (1024,)):  # of several pieces, so it is not done with one
            told = self.told("_send", 0)
        self.assertRegex(told, r"the training's state, which worker 0 sends, of worker 0 in iteration 5: worker 1 of 2 .*left the job")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
