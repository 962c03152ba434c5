"""ScheduledOptimizer's timeline: what was computed and under way when, and for whose sum the forward pass waited.

usage: torch_timeline_test.py PACKAGE_FOLDER LIBRARY
"""
import json
import os
import sys
import tempfile
import threading
import unittest

from torch_lab import ScheduledOptimizer, Workers, batches, loss_of, seeded, sgd

from torch import nn

from mercurystack._operation import Operation

PARAMETERS = ["0.weight", "1.weight", "1.bias", "3.weight", "3.bias"]


def layers(seed):
    return seeded(seed, lambda: nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 20)))


def waits(thread):
    """Whether it is in a wait for an operation."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not Operation.wait.__code__:
        frame = frame.f_back
    return frame is not None


class Timelines(Workers):
    def trained(self, rank, context, job, count=5, **options):
        model = layers(rank)
        optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, **{"timeline": 10_000, **options})
        for batch in batches(count, rank):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        optimizer.flush()
        return optimizer

    def test_each_iteration_has_every_span(self):
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job)
            optimizer.close()
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "timeline.json")
                optimizer.write_timeline(path)
                with open(path) as file:
                    return optimizer.summary(), json.load(file)["traceEvents"]
        for rank, (summary, events) in enumerate(self.on_each(work)):
            self.assertEqual(summary.iterations, 4)
            self.assertRegex(str(summary), r"^4 iterations of [\d.]+ ms; [\d.]+ ms of it waiting for sums")
            rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
            self.assertEqual(sorted(rows.values()), sorted(["computing", *PARAMETERS]))
            spans = [event for event in events if event["ph"] == "X"]
            self.assertEqual({event["pid"] for event in spans}, {rank})
            for iteration in range(5):
                mine = [span for span in spans if span["args"]["iteration"] == iteration]
                of = {kind: [span for span in mine if span["cat"] == kind] for kind in ("forward", "backward", "exchange")}
                self.assertEqual([span["args"]["layer"] for span in of["forward"]], ["model", "0", "1", "3"])
                self.assertEqual(sorted(span["args"]["layer"] for span in of["backward"]), sorted(PARAMETERS))
                self.assertEqual(sorted(rows[span["tid"]] for span in of["exchange"]), sorted(PARAMETERS))
                for before, after in zip(of["forward"], of["forward"][1:]):
                    self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 1e-3)
                sent = {span["args"]["layer"]: span["ts"] for span in of["exchange"]}
                for span in of["backward"]:
                    self.assertGreaterEqual(sent[span["args"]["layer"]], span["ts"] + span["dur"] - 1e-3)

    def test_sums_that_the_training_collects_by_itself(self):
        """The thread that watches for sums notes none here."""
        def work(rank, context, job):
            model = layers(rank)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, timeline=10_000)
            timeline, note = optimizer._timeline, optimizer._timeline._note_ended
            timeline._note_ended = lambda: None if threading.current_thread() is timeline._thread else note()
            for batch in batches(3, rank):
                loss_of(model, batch).backward()
                optimizer.step()
                while not all(one.operation.done() for one in optimizer._parameters):
                    pass
            optimizer.close()
            return [span.name for span in timeline._spans if span.kind == "exchange"]
        for names in self.on_each(work):
            self.assertEqual(sorted(names), sorted(3 * PARAMETERS))

    def test_it_says_which_sum_the_forward_pass_waited_for(self):
        """Worker 1 sends nothing before worker 0 waits. It does so in the first module of the second forward pass."""
        first = []

        def work(rank, context, job):
            model = layers(0)
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, context, job, timeline=10_000)
            for i, batch in enumerate(batches(3, rank)):
                if rank == 0:
                    first.append(threading.get_ident())
                elif i == 1:
                    pause = threading.Event()
                    while len(first) < 3 or not waits(first[0]):
                        pause.wait(0.001)
                loss_of(model, batch).backward()
                optimizer.step()
            optimizer.close()
            return optimizer.summary()
        summary = self.on_each(work)[0]
        self.assertEqual((summary.iterations, summary.waited_for[0][0]), (2, "0.weight"))
        self.assertGreater(summary.waited_for[0][1], 0)
        self.assertIn("longest for 0.weight", str(summary))

    def test_the_newest_spans_are_kept_and_none_without_it(self):
        def work(rank, context, job):
            few = self.trained(rank, context, job, timeline=7)
            self.assertEqual(len(few._timeline._spans), 7)
            self.assertEqual({span.iteration for span in few._timeline._spans} - {4, 5}, set())
            few.close()
            none = self.trained(rank, context, job, timeline=0, first_number=100)
            with self.assertRaisesRegex(RuntimeError, "make the ScheduledOptimizer with timeline="):
                none.summary()
            with self.assertRaisesRegex(RuntimeError, "make the ScheduledOptimizer with timeline="):
                none.write_timeline("nowhere")
        self.on_each(work)

    def test_a_job_that_is_closed_first(self):
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job)
            job.close()
            return optimizer
        for optimizer in self.on_each(work):
            optimizer.close()
        self.assertFalse([one for one in threading.enumerate() if one.name == "mercury-timeline"])


if __name__ == "__main__":
    unittest.main()
