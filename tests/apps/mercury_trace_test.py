#!/usr/bin/python3
"""tools/mercury-trace on small PyTorch models. Usage: mercury_trace_test.py TOOL MERCURY_SIM
Status 77, which the runner counts as skipped: no PyTorch here (apt-get install python3-torch)."""
import csv
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    sys.exit(77)

TOOL, SIM = sys.argv[1:3]
del sys.argv[1:3]

MODELS = textwrap.dedent("""
    import sys
    import time

    import torch
    from torch import nn


    def wait():
        print("waiting", file=sys.stderr, flush=True)
        time.sleep(100)


    class Branches(nn.Module):
        '''The second layer is declared first; one is used twice, one never, one is frozen.'''

        def __init__(self):
            super().__init__()
            self.last = nn.Linear(8, 1)
            self.first = nn.Linear(4, 8, bias=False)
            self.twice = nn.Linear(8, 8)
            self.never = nn.Linear(3, 3)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x):
            return self.last(self.frozen(self.twice(self.twice(self.first(x)))))


    def branches():
        model, x = Branches(), torch.ones(2, 4)
        return model, lambda: model(x).sum()


    def backbone():
        model = nn.Sequential(*(nn.Linear(4, 4).requires_grad_(i in (2, 4)) for i in range(6)))
        x = torch.ones(2, 4)
        return model, lambda: model(x).sum()


    def half():
        model = nn.Linear(4, 4).to(torch.bfloat16)
        return model, lambda: model(torch.ones(1, 4, dtype=torch.bfloat16)).sum()


    def elsewhere():
        weight = torch.ones(1, requires_grad=True)
        return nn.Linear(2, 2), lambda: weight.sum()


    def nothing():
        return nn.Linear(2, 2)


    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 4, sparse=True)
            self.gate = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.words(x) * self.gate


    def gated():
        model = Gated()
        return model, lambda: model(torch.tensor([1, 2])).sum()


    def attention():
        model = nn.Sequential(nn.Linear(32, 32), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True))
        return model, lambda: model(torch.ones(1, 3, 32)).square().sum()


    def endless():
        model, number = nn.Linear(4, 1), iter(range(10**9))

        def step():
            print("step", next(number), file=sys.stderr, flush=True)
            return model(torch.ones(2, 4)).sum()

        return model, step


    def third(in_step=lambda: None, in_gradient=lambda: None):
        '''Its third iteration does these.'''
        model, number = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), iter(range(10**9))

        def step():
            y = model(torch.ones(2, 4))
            if next(number) == 2:
                in_step()
                model[1].weight.register_hook(lambda _: in_gradient())
            return y.sum()

        return model, step


    def waits_in_step():
        return third(in_step=wait)


    def waits_in_gradient():
        return third(in_gradient=wait)


    def catches():
        def step():
            try:
                wait()
            except KeyboardInterrupt:
                pass
        return third(in_step=step)


    def renames():
        def step():
            try:
                wait()
            except KeyboardInterrupt:
                raise RuntimeError("a loader's process is gone")
        return third(in_step=step)


    def waits_in_make():
        wait()


    class Inner(nn.Module):
        '''No parameters of its own; it reads those of a layer that it does not call.'''

        def __init__(self):
            super().__init__()
            self.read, self.called = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.called(nn.functional.linear(x, self.read.weight))


    def inner():
        model = nn.Sequential(nn.Linear(4, 4), Inner(), nn.Linear(4, 1))
        return model, lambda: model(torch.ones(2, 4)).sum()


    def vector():
        return nn.Linear(2, 2), lambda model=nn.Linear(2, 2): model(torch.ones(2))


    def broken():
        raise ValueError("no data")
""")


def tool_module():
    loader = importlib.machinery.SourceFileLoader("mercury_trace", TOOL)
    spec = importlib.util.spec_from_loader("mercury_trace", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Ticks:
    """A clock that advances by one with every mark."""

    def __init__(self, _):
        self.now = 0

    def mark(self):
        self.now += 1
        return self.now

    def settle(self):
        pass

    def between(self, first, second):
        return second - first


class MercuryTrace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.models = f"{self.folder}/models.py"
        with open(self.models, "w", encoding="ascii") as file:
            file.write(MODELS)

    def run_tool(self, function, *options):
        return subprocess.run([sys.executable, TOOL, f"{self.models}:{function}", "--warmup", "0",
                               "--iterations", "2", *options], capture_output=True, text=True, check=False,
                              env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})

    @staticmethod
    def rows(text):
        return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))

    def test_rows_follow_execution_and_not_declaration(self):
        done = self.run_tool("branches")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows(done.stdout)
        self.assertEqual([row["name"] for row in rows][0], "first.weight")
        self.assertEqual({row["name"] for row in rows},
                         {"first.weight", "twice.weight", "twice.bias", "last.weight", "last.bias"})
        self.assertEqual([row["layer_index"] for row in rows], ["0", "1", "1", "2", "2"])
        self.assertEqual([row["priority"] for row in rows], list("01234"))
        self.assertEqual({row["name"]: row["numel"] for row in rows}["twice.weight"], "64")
        for name in ("never.weight", "never.bias"):
            self.assertIn(f"{name} is left out", done.stderr)
        self.assertNotIn("frozen", done.stdout)

    def ticks(self, function):
        """The rows of a model by a clock that counts the looks at it."""
        tool = tool_module()
        spec = importlib.util.spec_from_file_location("models", self.models)
        models = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(models)
        tool.CpuClock = Ticks
        profile = tool.Profile(torch, *getattr(models, function)())
        profile.run(1, 3, lambda *_: None)
        profile.summarise()
        return self.rows(tool.text_of(profile, "ticks"))

    def test_times_are_those_between_uses_and_between_gradients(self):
        rows = self.ticks("branches")
        forward = [int(row["forward_pass_ns"]) for row in rows]
        # Marks: begin, first, twice, twice, frozen, last, end: the first layer has what comes before
        # it, the one used twice both its parts and the frozen one's, and a layer's time stands at its
        # first tensor.
        self.assertEqual(forward, [2, 3, 0, 1, 0])
        self.assertTrue(all(int(row["backward_pass_ns"]) >= 1 for row in rows), rows)

    def test_frozen_layers_take_time(self):
        rows = self.ticks("backbone")
        self.assertEqual([int(row["forward_pass_ns"]) for row in rows if row["forward_pass_ns"] != "0"], [5, 2])
        self.assertEqual({row["name"].split(".")[0] for row in rows}, {"2", "4"})
        self.assertIn("0 and 3 more: no gradients; forward time counts for the layer before",
                      self.run_tool("backbone").stderr)

    def test_a_trace_is_read_by_the_simulator(self):
        path = f"{self.folder}/trace.csv"
        self.assertEqual(self.run_tool("branches", "--output", path).returncode, 0)
        answer = subprocess.run([SIM, "model", "--trace", path, "--policy", "mercury", "--bandwidth",
                                 "1Gbps", "--json", "-"], capture_output=True, text=True, check=True)
        self.assertGreater(json.loads(answer.stdout)["iteration_s"], 0)

    def test_types_are_named(self):
        self.assertEqual({row["dtype"] for row in self.rows(self.run_tool("half").stdout)}, {"bf16"})

    def test_what_a_trace_does_not_show_as_it_is_is_named(self):
        done = self.run_tool("gated")
        self.assertIn("words.weight has sparse gradients", done.stderr)
        self.assertIn("gate: used somewhere within the model", done.stderr)
        self.assertEqual([row["name"] for row in self.rows(done.stdout)], ["gate", "words.weight"])

    def test_mistakes_of_the_users_are_a_line_with_their_place(self):
        for function, expected in (("vector", "no backward pass: RuntimeError: .*scalar"),
                                   ("broken", r"broken failed: ValueError: no data \(.*\.py:\d+\)")):
            done = self.run_tool(function)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, expected)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_what_cannot_be_profiled_is_said(self):
        for function, words in (("elsewhere", "computed without the model"), ("nothing", "expected the model"),
                                ("missing", "no attribute 'missing'")):
            done = self.run_tool(function)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertIn(words, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_every_parameter_with_a_gradient_has_a_row(self):
        done = self.run_tool("attention")
        self.assertNotIn("left out", done.stderr)
        names = [row["name"] for row in self.rows(done.stdout)]
        self.assertEqual(len(names), 2 + 12)
        for name in ("1.self_attn.out_proj.weight", "1.self_attn.out_proj.bias"):
            self.assertIn(f"{name}: its module did not run by itself; the trace takes it for used with 1.self_attn",
                          done.stderr)
            self.assertLess(names.index("0.weight"), names.index(name))
            self.assertLess(names.index(name), names.index("1.linear1.weight"))

    def test_an_interrupted_profile_keeps_what_it_measured(self):
        for warmup, steps, status in ((2, 5, 0), (50_000_000, 2, 1)):
            with subprocess.Popen([sys.executable, TOOL, f"{self.models}:endless", "--warmup", str(warmup),
                                   "--iterations", "50000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as process:
                self.addCleanup(process.kill)
                while process.stderr.readline() != f"step {steps}\n":
                    self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, status, err)
            self.assertNotIn("Traceback", err)
            if status == 0:
                measured = int(re.search(r"interrupted: (\d+) of 50000000 iterations are in the trace", err)[1])
                self.assertGreaterEqual(measured, steps - warmup)
                self.assertIn(f"median of {measured} iterations", out)
                self.assertEqual(len(self.rows(out)), 2)
            else:
                self.assertIn("interrupted before an iteration was measured", err)
                self.assertEqual(out, "")

    def test_what_a_module_without_parameters_reads_is_with_its_first_layer(self):
        done = self.run_tool("inner")
        self.assertIn("1.read.weight: its module did not run by itself; the trace takes it for used with 1.called",
                      done.stderr)
        self.assertIn("1.read.bias is left out: it got no gradient\n", done.stderr)
        numbers = {row["name"]: row["layer_index"] for row in self.rows(done.stdout)}
        self.assertEqual((numbers["1.read.weight"], numbers["1.called.weight"], numbers["2.weight"]), ("1", "1", "2"))

    def interrupted(self, function, *options):
        # Where this test is a background job, SIGINT is ignored, and would be in the tool.
        with subprocess.Popen([sys.executable, TOOL, f"{self.models}:{function}", "--warmup", "0", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
            self.addCleanup(process.kill)
            while process.stderr.readline() != "waiting\n":
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)  # as the impatient do
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def test_an_iteration_that_is_interrupted_is_in_no_part_in_the_trace(self):
        for function, measured in (("waits_in_step", 2), ("waits_in_gradient", 2), ("renames", 2), ("catches", 3)):
            status, out, err = self.interrupted(function, "--iterations", "5")
            self.assertEqual((status, err), (
                0, f"mercury-trace: interrupted: {measured} of 5 iterations are in the trace\n"), function)
            self.assertIn(f"median of {measured} iterations", out)
            self.assertEqual(len(self.rows(out)), 4)
        self.assertEqual(self.interrupted("waits_in_make"),
                         (1, "", "mercury-trace: interrupted before an iteration was measured\n"))

    def test_an_interrupt_keeps_whole_iterations_only(self):
        tool = tool_module()
        spec = importlib.util.spec_from_file_location("models", self.models)
        models = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(models)

        def interrupt():
            raise KeyboardInterrupt

        for where in ("in_step", "in_gradient"):
            profile = tool.Profile(torch, *models.third(**{where: interrupt}))
            self.assertRaises(KeyboardInterrupt, profile.run, 0, 5, lambda *_: None)
            profile.summarise()
            self.assertEqual([len(layer.forward_ns) for layer in profile.layers.values()], [2, 2])
            self.assertEqual([len(tensor.ready) for tensor in profile.tensors.values()], [2, 2, 2, 2])

    def profiled(self, iterations_ns, waited=0, elapsed=1000):
        """What the tool says of iterations that took so long, each half forward and half backward."""
        tool = tool_module()
        model = torch.nn.Linear(1, 1, bias=False)
        profile = tool.Profile(torch, model, lambda: None)
        tensor = tool.Tensor("weight", model.weight, None)
        profile.tensors[model.weight] = tensor
        profile.measured = [({model: ns // 2}, [(tensor, ns - ns // 2, False)]) for ns in iterations_ns]
        profile.waiting = waited / elapsed
        profile.summarise()
        return tool.text_of(profile, "title").splitlines(), list(profile.noise())

    def test_a_trace_says_by_how_much_iterations_differed(self):
        # Quartiles of 80, 90, 100, 110, 120: 90 and 110.
        lines, noise = self.profiled([100000, 80000, 120000, 90000, 110000], waited=123)
        self.assertEqual(lines[2], "# Spread (interquartile range over median): of an iteration 20.0%, of its parts up to "
                                   "20.0% (weight backward); threads waited for a core 12.3% of the time.")
        self.assertEqual(len(noise), 2)
        self.assertIn("the iterations differ by 20%", noise[0])
        self.assertIn("weight backward by 20%", noise[0])
        self.assertIn("threads waited for a core 12% of the time", noise[1])
        lines, noise = self.profiled([100000, 98000, 102000, 99000, 101000], waited=9)
        self.assertIn("of an iteration 2.0%,", lines[2])
        self.assertEqual(noise, [])
        # One slow iteration of many moves no quartile; of three, none can be told.
        self.assertEqual(self.profiled([100] * 9 + [10**6])[1], [])
        lines, noise = self.profiled([100, 100, 200])
        self.assertIn("Spread: not known of 3 iterations", lines[2])
        self.assertEqual(noise, [])

    def test_what_it_says_of_the_spread_is_no_row(self):
        done = self.run_tool("branches", "--iterations", "5")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout.splitlines()[2], r"^# Spread \(interquartile range over median\): of an iteration "
                                                      r"\d+\.\d%.*; threads waited for a core \d+\.\d% of the time\.$")
        path = f"{self.folder}/trace.csv"
        with open(path, "w", encoding="ascii") as file:
            file.write(done.stdout)
        subprocess.run([SIM, "model", "--trace", path, "--policy", "mercury", "--bandwidth", "1Gbps", "--json", "-"],
                       capture_output=True, check=True)

    def test_waiting_for_a_core_is_the_kernels_figure(self):
        tool = tool_module()
        begun = tool.waited_ns()
        with open("/proc/self/schedstat", encoding="ascii") as file:
            alone = int(file.read().split()[1])
        self.assertGreaterEqual(begun, 0)
        self.assertGreaterEqual(tool.waited_ns(), alone)  # of all threads, this one among them

    def test_an_output_is_written_whole_or_not_at_all(self):
        path, link = f"{self.folder}/trace.csv", f"{self.folder}/link.csv"
        with open(path, "w", encoding="ascii") as file:
            file.write("before")
        os.chmod(path, 0o640)
        os.symlink("trace.csv", link)
        before = sorted(os.listdir(self.folder))
        tool = tool_module()
        with unittest.mock.patch("os.replace", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(tool.TraceError, "trace.csv cannot be written: No space left"):
                tool.write(path, "after")
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "before")
        tool.write(link, "after")
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "after")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o640)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertEqual(len(self.rows(self.run_tool("branches", "--output", "/dev/stdout").stdout)), 5)

    def test_an_output_that_cannot_be_is_refused_before_anything_runs(self):
        with open(self.models, encoding="ascii") as file:
            before = file.read()
        done = self.run_tool("endless", "--output", self.models)
        self.assertEqual(done.returncode, 2)
        self.assertIn("is the model's own source", done.stderr)
        with open(self.models, encoding="ascii") as file:
            self.assertEqual(file.read(), before)
        for output in (f"{self.folder}/no/such/folder.csv", self.folder):
            done = self.run_tool("endless", "--output", output)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.run_tool("broken", "--output", f"{self.folder}/none.csv")
        self.assertEqual(os.listdir(self.folder), ["models.py"])


if __name__ == "__main__":
    unittest.main()
