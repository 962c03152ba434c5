"""ScheduledOptimizer's timeline: what was computed and under way when, and for whose sum the forward pass waited.

usage: torch_timeline_test.py PACKAGE_FOLDER LIBRARY MERCURY_SIM
"""
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

from torch_lab import ScheduledOptimizer, Workers, batches, loss_of, seeded, sgd, waits

import torch
from torch import nn

from mercurystack import _trace
from mercurystack._timeline import Span

SIMULATOR = sys.argv.pop(1)
PARAMETERS = ["0.weight", "1.weight", "1.bias", "3.weight", "3.bias"]


def layers(seed):
    return seeded(seed, lambda: nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 20)))


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
            self.assertRegex(str(summary), r"^4 iterations, median [\d.]+ ms, of it [\d.]+ ms waiting for sums")
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

    def test_each_tensor_has_its_update_behind_its_sum(self):
        """In its own row. That of several at once is one among what is computed."""
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job)
            optimizer.close()
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "timeline.json")
                optimizer.write_timeline(path)
                with open(path) as file:
                    return json.load(file)["traceEvents"]
        for events in self.on_each(work):
            rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
            updates = [event for event in events if event.get("cat") == "update"]
            own = [event for event in updates if event["tid"]]
            self.assertEqual([rows[event["tid"]] for event in own], [event["args"]["layer"] for event in own])
            back = {(event["args"]["layer"], event["args"]["iteration"]): event["ts"] + event["dur"]
                    for event in events if event.get("cat") == "exchange"}
            for iteration in range(5):  # its update is behind its step()
                mine = [event for event in own if event["args"]["iteration"] == iteration + 1]
                self.assertEqual(sorted(event["args"]["layer"] for event in mine), sorted(PARAMETERS))
                for event in mine:
                    self.assertGreaterEqual(event["ts"] + 1e-3, back[event["args"]["layer"], iteration])
            steps = sorted(event["ts"] for event in updates if not event["tid"])
            self.assertEqual(steps, sorted({event["ts"] for event in own}))

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
            for write in (none.write_timeline, none.write_trace):
                with self.assertRaisesRegex(RuntimeError, "make the ScheduledOptimizer with timeline="):
                    write("nowhere")
        self.on_each(work)

    def test_a_job_that_is_closed_first(self):
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job)
            job.close()
            return optimizer
        for optimizer in self.on_each(work):
            optimizer.close()
        self.assertFalse([one for one in threading.enumerate() if one.name == "mercury-timeline"])

    def test_a_trace_of_the_run_is_one_that_the_simulator_reads(self):
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job, count=8)
            with tempfile.TemporaryDirectory() as folder:
                open_path, path = os.path.join(folder, "open.csv"), os.path.join(folder, "closed.csv")
                optimizer.write_trace(open_path)
                optimizer.close()
                optimizer.write_trace(path)
                with open(open_path) as before, open(path) as after:
                    text = after.read()
                    self.assertEqual(text.splitlines()[2:], before.read().splitlines()[2:])
                said = subprocess.run([SIMULATOR, "--trace", path, "--policy", "mercury", "--bandwidth", "10Gbps", "--workers", "2",
                                       "--servers", "2", "--json", "-"], check=True, stdout=subprocess.PIPE, text=True)
            return text, json.loads(said.stdout), optimizer.summary()
        for text, said, summary in self.on_each(work):
            comments, rows = text.splitlines()[:2], list(csv.DictReader(text.splitlines()[2:]))
            self.assertIn("5 of 7 iterations", comments[0])
            self.assertIn(str(summary), comments[1])
            self.assertEqual([row["name"] for row in rows], PARAMETERS)
            self.assertEqual([row["layer_index"] for row in rows], ["0", "1", "1", "2", "2"])
            self.assertEqual([row["numel"] for row in rows], ["160", "128", "16", "320", "20"])
            self.assertEqual([row["priority"] for row in rows], ["0", "1", "2", "3", "4"])
            for row in rows:  # a layer's forward time stands at its first tensor
                self.assertEqual(int(row["forward_pass_ns"]) > 0, row["name"] != "1.bias" and row["name"] != "3.bias", row)
                self.assertGreater(int(row["backward_pass_ns"]), 0)
            computing_s = sum(int(row[key]) for row in rows for key in ("forward_pass_ns", "backward_pass_ns", "update_ns")) / 1e9
            self.assertGreaterEqual(said["iteration_s"], computing_s)

    def test_halved_gradients_and_no_iteration(self):
        def work(rank, context, job):
            optimizer = self.trained(rank, context, job, count=1, wire_dtype=torch.bfloat16)
            with self.assertRaisesRegex(RuntimeError, "no iteration was recorded as a whole: it takes two steps"):
                optimizer.write_trace("nowhere")
            loss_of(torch.nn.Identity(), (torch.zeros(6, 20, requires_grad=True), torch.zeros(6, dtype=torch.int64))).backward()
            optimizer.step()
            optimizer.flush()
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "trace.csv")
                optimizer.write_trace(path)
                with open(path) as file:
                    return [row["dtype"] for row in csv.DictReader(line for line in file if not line.startswith("#"))]
        for types in self.on_each(work):
            self.assertEqual(types, 5 * ["bf16"])


class Recorded:
    """A timeline of spans that a test writes: (kind, name, begin, end) of an iteration, whose begin is the step before it."""

    def __init__(self, iterations):
        self._spans, self._steps = [], []
        for number, (begin, spans) in enumerate(iterations):
            self._steps.append(begin)
            self._spans += [Span(kind, name, number, begin + first, begin + last) for kind, name, first, last in spans]

    def spans(self):
        return self._spans

    def whole(self):
        return list(zip(self._steps, self._steps[1:]))

    def summary(self):
        return "said"


class Traces(unittest.TestCase):
    TENSORS = [_trace.TraceTensor("a.weight", "a", 10, "float32", 0), _trace.TraceTensor("a.bias", "a", 2, "float32", 1),
               _trace.TraceTensor("b.weight", "b", 30, "float16", 2)]
    # 100 long: 20 of it waits.
    SPANS = [("wait", "a.weight", 5, 15), ("update", "a.weight", 16, 20), ("forward", "model", 20, 22), ("forward", "a", 22, 30),
             ("forward", "activation", 30, 35), ("wait", "b.weight", 37, 47), ("forward", "b", 50, 60), ("exchange", "b.weight", 70, 90),
             ("backward", "b.weight", 60, 70), ("backward", "a.bias", 70, 75), ("backward", "a.weight", 75, 95)]

    def rows(self, timeline, tensors=TENSORS):
        lines = _trace.text_of(timeline, tensors).splitlines()
        return lines[0], {row["name"]: [int(row[key]) for key in ("forward_pass_ns", "backward_pass_ns", "update_ns")]
                          for row in csv.DictReader(lines[2:])}

    def test_all_time_but_waits_is_computing(self):
        _, rows = self.rows(Recorded([(1000, self.SPANS), (1100, [])]))
        # The layer a: 5 before the wait, 2 of the model's, 8, 5 of what sends nothing, 2 before the wait, 5 behind all.
        self.assertEqual(rows, {"a.weight": [27, 20, 5], "a.bias": [0, 5, 0], "b.weight": [13, 10, 0]})
        self.assertEqual(sum(map(sum, rows.values())), 80)

    def test_long_and_short_iterations_do_not_count(self):
        def iteration(length):
            return [("forward", "a", 0, length)]
        lengths, begins = [900, 100, 110, 1], [0]
        for length in lengths:
            begins.append(begins[-1] + length)
        comment, rows = self.rows(Recorded([*((begin, iteration(length)) for begin, length in zip(begins, lengths)), (begins[-1], [])]))
        self.assertEqual(rows["a.weight"][0], 105)
        self.assertIn("2 of 4 iterations", comment)

    def test_names_that_a_trace_cannot_hold(self):
        tensors = [_trace.TraceTensor("a b" + 130 * "c", "a", 1, "float32", 0), _trace.TraceTensor("d,e", "a", 1, "float32", 1)]
        self.assertEqual(list(self.rows(Recorded([(0, []), (5, [])]), tensors)[1]), [127 * "c", "d_e"])
        with self.assertRaisesRegex(ValueError, "d;e: another parameter is called d_e too"):
            self.rows(Recorded([(0, []), (5, [])]), [*tensors, _trace.TraceTensor("d;e", "a", 1, "float32", 2)])


if __name__ == "__main__":
    unittest.main()
