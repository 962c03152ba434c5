#!/usr/bin/python3
"""What emulate.py and figures.py run, and what they make of the times, without virtual hosts: the same
stretched policies and traces for ports and simulator. usage: emulation_test.py SIM
"""
import contextlib
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

SIM = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "emulation"))
import emulate  # noqa: E402
import figures  # noqa: E402
import many  # noqa: E402
import recording  # noqa: E402
import sizes  # noqa: E402
from stretch import STARTUPS, stretched_policy, stretched_time  # noqa: E402


class FakeLab:
    """Links that carry nothing."""

    def __init__(self, _, names, bucket_bytes, **_options):
        self.hosts = [types.SimpleNamespace(name=name, ip=f"10.0.0.{i}", ns=name) for i, name in enumerate(names)]
        self.bucket_bytes = bucket_bytes

    def __getitem__(self, name):
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_rate(self, *_):
        pass

    def link_bytes(self, _):
        return 0, 0


class Commands(unittest.TestCase):
    """Programs that answer at once, and keep what they were asked."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.simulated, self.replayed, self.traces, self.no_pslite = [], [], {}, False
        patches = contextlib.ExitStack()
        self.addCleanup(patches.close)
        for target, name, value in ((emulate, "Lab", FakeLab), (emulate.Hosts, "daemons", self.daemons),
                                    (emulate.Hosts, "run_all", self.run_all), (emulate.Hosts, "counter", lambda *_: 0),
                                    (emulate, "subprocess", types.SimpleNamespace(run=self.run_sim)),
                                    (figures, "save", lambda *_: None), (emulate.os, "geteuid", lambda: 0),
                                    (recording, "COMMIT", "1234567"), (recording, "machine", lambda: "a CPU, 2 cores")):
            patches.enter_context(mock.patch.object(target, name, value))
        for program in ("apps/stackd/mercury-stackd", "apps/replay/mercury-replay", "apps/sim/mercury-sim",
                        "apps/perf/mercury-perf", "benchmarks/emulation/rival_replay"):
            (self.out / program).parent.mkdir(parents=True, exist_ok=True)
            (self.out / program).touch()

    @contextlib.contextmanager
    def daemons(self, *_):
        yield {}

    def run_sim(self, words, **_):
        words = [str(word) for word in words]
        self.simulated.append(words)
        self.keep_trace(words)
        return types.SimpleNamespace(returncode=0, stdout=json.dumps({"iteration_s": 2.0, "optimum_s": 1.0}), stderr="")

    def run_all(self, *arguments):
        commands = arguments[-1]
        for _, words, _ in commands:
            words = [str(word) for word in words]
            self.replayed.append(words)
            if "--report" in words:
                self.keep_trace(words)
                tensors = [{"pulled_s": 2, "ready_s": 1}]
                pathlib.Path(words[words.index("--report") + 1]).write_text(
                    json.dumps({"iterations_s": [2.0] * int(words[words.index("--iterations") + 1]), "mismatches": 0,
                                "tensors": tensors}), encoding="utf-8")
        if any("ps-lite" in words for words in self.replayed[-len(commands):]) and self.no_pslite:
            raise emulate.LabError("rival_replay: built without ps-lite")
        said = {"iterations_s": [2.0], "rows": [{"operations_per_s": {"median": 0.25}}]}
        return [json.dumps(said), *("" for _ in commands[1:])]  # rank 0 alone says it

    def keep_trace(self, words):
        path = words[words.index("--trace") + 1]
        self.traces[path] = pathlib.Path(path).read_text(encoding="utf-8")

    def run_program(self, program, *words, status=0):
        words = (*words, *(["--no-verdict"] if program is figures else []))
        with mock.patch.object(sys, "argv", [str(ROOT / f"benchmarks/emulation/{program.__name__}.py"), *words, "--build",
                                             str(self.out), "--out", str(self.out)]), \
                contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(program.main(), status)
        return said.getvalue()

    def policies(self, commands):
        return {words[words.index("--policy") + 1] for words in commands if "--policy" in words and "model" not in words}

    def backward_ns(self):
        """Of all the traces used, each as a whole."""
        for text in self.traces.values():
            rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
            yield sum(int(row["backward_pass_ns"]) for row in rows)

    def test_emulate_stretches_start_ups_with_links_and_computing(self):
        said = self.run_program(emulate, "--models", "vgg16", "--policies", "p3", "byteps", "bytescheduler:startup=1ms", "mercury",
                                "--others", "--runs", "1", "--no-plot")
        stretched = {"p3:startup=1ms", "byteps:startup=10ms", "bytescheduler:startup=20ms", "mercury"}
        self.assertEqual(self.policies(self.simulated), stretched)
        self.assertEqual(self.policies(self.replayed), stretched)
        self.assertTrue(all("500Mbps" in words for words in self.simulated))
        # Four frames: more would repay P3 its pauses. And cables, which repay nothing.
        self.assertEqual(sum("36056B" in words for words in self.simulated), 4)
        self.assertEqual(sum("--bucket" not in words and "model" not in words for words in self.simulated), 4)
        shipped = (ROOT / "apps/trace/traces/vgg16.csv").read_text(encoding="utf-8").splitlines()
        real_ns = sum(int(row["backward_pass_ns"]) for row in csv.DictReader(line for line in shipped if not line.startswith("#")))
        self.assertEqual([*self.backward_ns()], [20 * real_ns])
        self.assertIn("start-ups: p3 1ms, byteps 10ms, bytescheduler:startup=1ms 20ms", said)

    def test_figures_stretch_start_ups_with_links_and_computing(self):
        self.run_program(figures, "--repeats", "1", "fig13", "fig3")
        stretched = {"p3:startup=1ms", "byteps:startup=10ms", "bytescheduler:partition=4MB,credit=4MB,startup=20ms",
                     "bytescheduler:partition=1MB,credit=5MB,startup=14ms"}
        stretched.add("wfbp:place=key")
        self.assertLessEqual(stretched, self.policies(self.simulated))
        self.assertEqual(self.policies(self.simulated), self.policies(self.replayed))
        self.assertTrue(all("500Mbps" in words for words in self.simulated))
        # VGG-19 of Fig. 13, as a GTX 1080 Ti computes it by PHub, forward and backward.
        self.assertTrue(any(2.5e9 < ns < 5.4e9 for ns in self.backward_ns()), [*self.backward_ns()])

    def test_policies_of_a_figure_take_turns(self):
        self.run_program(figures, "--repeats", "2", "fig7", "fig21")
        ran = [policy for words in self.replayed if words[words.index("--rank") + 1] == "0"
               for policy in [words[words.index("--policy") + 1]]]
        turn = ["mercury", "byteps:startup=10ms", "p3:startup=1ms", "wfbp"]
        self.assertEqual(ran, 2 * ["mercury-fifo"] + 6 * turn)

    def test_other_libraries_are_scheduled_as_the_engines_and_fuse_as_their_users_do(self):
        self.run_program(emulate, "--models", "resnet50", "--policies", "mercury", "--others", "gloo", "gloo-unfused", "mpi",
                         "pslite", "--runs", "1", "--no-plot")
        gloo = [words for words in self.replayed if "gloo" in words and "0" == words[words.index("--rank") + 1]]
        self.assertEqual([words[words.index("--scheduling") + 1] for words in gloo], ["urgent", "urgent"])
        self.assertEqual(["--fuse" in words for words in gloo], [False, True])
        self.assertEqual(["--wait" in words for words in gloo], [True, False])  # DDP's step() waits for all
        (mpi,) = (words for words in self.replayed if "unshare" in words[0])
        self.assertIn("--wait all", " ".join(mpi))
        self.assertIn("--cycle 10", " ".join(mpi))  # Horovod's millisecond, by ten
        self.assertIn("--scheduling urgent", " ".join(mpi))
        self.assertEqual(sum("ps-lite" in words and "urgent" in words for words in self.replayed), 5)
        self.replayed.clear()
        self.run_program(emulate, "--models", "resnet50", "--policies", "mercury", "--others", "gloo", "--others-scheduling",
                         "normal", "--runs", "1", "--no-plot")
        self.assertFalse(any("--scheduling" in words for words in self.replayed))

    def test_leaves_a_record_of_each_run_behind_those_that_there_are(self):
        path = self.out / "emulation.csv"
        for _ in range(2):
            self.run_program(emulate, "--models", "vgg16", "--policies", "p3", "--others", "gloo", "--runs", "2", "--no-plot",
                             "--record", str(path))
        with open(path, newline="", encoding="utf-8") as file:
            rows = [*csv.DictReader(file)]
        self.assertEqual([*rows[0]], [*recording.ABOUT, *emulate.FIELDS])
        self.assertEqual([(row["policy"], row["run"], row["iteration_s"], row["simulated_s"], row["cable_s"], row["factor"])
                          for row in rows],
                         2 * [("p3", "1", "2.0000", "2.0000", "2.0000", "20"), ("p3", "2", "2.0000", "2.0000", "2.0000", "20"),
                              ("gloo", "1", "2.0000", "", "", "20"), ("gloo", "2", "2.0000", "", "", "20")])
        self.assertEqual(rows[0]["commit"], "1234567")
        self.assertTrue(rows[0]["command"].startswith("sudo benchmarks/emulation/emulate.py --models vgg16 --policies p3 "))
        self.assertNotIn("record", rows[0]["command"])
        points = self.out / "points.csv"
        self.run_program(figures, "--repeats", "2", "fig7", "--record", str(points))
        with open(points, newline="", encoding="utf-8") as file:
            self.assertEqual([(row["figure"], row["run"]) for row in csv.DictReader(file)], [("fig7", "1"), ("fig7", "2")])
        with self.assertRaisesRegex(recording.RecordError, "emulation.csv:1: has the columns date,.*record to another file"):
            self.run_program(figures, "--repeats", "1", "fig7", "--record", str(path))

    def test_a_library_that_cannot_run_has_no_figure_of_any_size(self):
        self.no_pslite = True
        said = self.run_program(sizes, "--sizes", "4B", "64KB", "--runs", "2", "--workers", "8", "--servers", "8",
                                "--record", str(self.out / "sizes.csv"), status=1)
        self.assertIn("| 4 B | 3.2e-05 | 5.6e-05 | 4e+03 [4e+03, 4e+03] | 2e+03 [2e+03, 2e+03] | 2e+03 [2e+03, 2e+03] | 0.50 |", said)
        self.assertIn("ps-lite was not run: rival_replay: built without ps-lite", said)
        with open(self.out / "sizes.csv", newline="", encoding="utf-8") as file:
            rows = [*csv.DictReader(file)]
        self.assertEqual({row["library"] for row in rows}, {"mercury", "gloo", "mpi"})
        self.assertEqual({row["size"] for row in rows}, {"4 B", "64 KB"})
        gloo = [words for words in self.replayed if "--size" in words]
        self.assertEqual({words[words.index("--size") + 1] for words in gloo}, {"8"})  # ranks
        report = json.loads((self.out / "sizes.json").read_text(encoding="utf-8"))
        self.assertEqual({row["library"] for row in report["rows"]}, {"mercury", "gloo", "mpi"})


class Together(unittest.TestCase):
    """What several jobs carried while all of them ran."""

    @staticmethod
    def job(*repeats_ns):
        return {"rounds": 10, "bytes": 100, "repeats_ns": [*repeats_ns]}  # 8,000 bits a repeat

    def test_a_job_alone_is_counted_from_its_begin_to_its_end(self):
        self.assertEqual(many.rates_together([self.job((0, 1000), (1000, 3000))]), [16_000 / 3000])

    def test_what_one_did_before_the_others_began_or_after_they_ended_does_not_count(self):
        alone = self.job((0, 1000), (1000, 2000), (2000, 3000), (3000, 4000))
        short = self.job((1500, 2500))
        self.assertEqual(many.rates_together([alone, short]), [8.0, 8.0])

    def test_what_lies_between_two_repeats_carries_nothing(self):
        self.assertEqual(many.rates_together([self.job((0, 1000), (3000, 4000)), self.job((0, 4000))]), [4.0, 2.0])

    def test_jobs_that_did_not_meet_are_an_error(self):
        with self.assertRaisesRegex(emulate.LabError, "did not run at the same time"):
            many.rates_together([self.job((0, 1000)), self.job((1000, 2000))])


class Stretched(unittest.TestCase):
    def test_start_ups_are_those_of_the_policies(self):
        for name, startup in STARTUPS.items():
            done = subprocess.run([SIM, "model", "--trace", "mobilenet", "--policy", f"{name}:startup={startup}", "--json", "-"],
                                  capture_output=True, text=True, check=True)
            self.assertEqual(json.loads(done.stdout)["policy"], name)

    def test_every_policy_with_a_start_up_is_known(self):
        for name in emulate.POLICIES:
            done = subprocess.run([SIM, "model", "--trace", "mobilenet", "--policy", f"{name}:startup=1ms", "--json", "-"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode == 0, name in STARTUPS, name)

    def test_times_and_policies(self):
        self.assertEqual(stretched_time("50us", 20), "1ms")
        self.assertEqual(stretched_time("0.5ms", 10), "5ms")
        self.assertEqual(stretched_time("0", 10), "0s")
        self.assertEqual(stretched_policy("mercury:forward=tensor", 20), "mercury:forward=tensor")
        self.assertEqual(stretched_policy("p3:order=fifo", 20), "p3:order=fifo,startup=1ms")
        self.assertEqual(stretched_policy("p3:startup=0,partition=1MB,credit=1MB", 20), "p3:startup=0s,partition=1MB,credit=1MB")
        with self.assertRaisesRegex(ValueError, "startup=soon: expected a number"):
            stretched_policy("p3:startup=soon", 20)


class Judged(unittest.TestCase):
    def verdict(self, *rows):
        rows = [{"name": name, "iteration_s": emulate.middle(all_s), "iterations_s": all_s, "simulated_s": sim}
                for name, all_s, sim in rows]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            good = emulate.verdict({"model": "vgg16", "rows": rows})
        return good, said.getvalue()

    def test_another_order_fails_however_close_where_ranges_do_not_overlap(self):
        good, said = self.verdict(("a", [1.00, 1.01, 1.02, 1.01, 1.00], 1.02), ("b", [1.03, 1.04, 1.04, 1.03, 1.05], 1.01))
        self.assertFalse(good)
        self.assertIn("NOT AS SIMULATED: a before b", said)
        good, said = self.verdict(("a", [1.00, 1.01, 1.02, 1.01, 1.00], 1.01), ("b", [1.03, 1.04, 1.04, 1.03, 1.05], 1.02))
        self.assertTrue(good)
        self.assertIn("as simulated: a before b", said)

    def test_what_overlaps_is_not_told_apart(self):
        good, said = self.verdict(("a", [1.00, 1.01, 1.02, 1.01, 1.04], 1.02), ("b", [1.03, 1.04, 1.04, 1.03, 1.05], 1.01))
        self.assertTrue(good)
        self.assertIn("not distinguishable: a and b", said)
        good, said = self.verdict(("a", [1.00], 1.02), ("b", [1.03], 1.01))
        self.assertTrue(good)
        self.assertIn("not judged", said)

    def test_a_tenth_from_the_simulator_fails(self):
        self.assertFalse(self.verdict(("a", [1.2] * 5, 1.0))[0])

    def test_points_are_told_apart_by_the_same_rule(self):
        few, many = [1.0] * 4, [1.0] * 5
        self.assertFalse(figures.parted(few, [2.0] * 5))
        self.assertTrue(figures.parted(many, [2.0] * 5))
        self.assertFalse(figures.parted(many, [2.0, 3.0, 2.0, 2.0, 1.0]))

    def test_runs_take_turns(self):
        calls = []
        ways = {name: lambda name=name: calls.append(name) for name in "abc"}
        with contextlib.redirect_stderr(io.StringIO()):
            emulate.run_in_turns(ways, 2, 1, lambda *_: None)
        self.assertEqual("".join(calls), "abcabc")


if __name__ == "__main__":
    unittest.main()
