#!/usr/bin/python3
"""The figures of the Mercury paper in their quick forms: verdicts that held still hold, and a run
that is interrupted keeps what it finished. usage: papers_test.py SIM [Papers|Sweeps|Long]
"""
import csv
import json
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SIM = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "papers" / "mercury.py"
LIMIT_S = 240
# Those that take seconds each, those of many settings, and those that tools/nightly has the time for.
CHEAP = ("startups", "table2", "header", "fig2", "fig10", "fig12", "fig14", "fig13", "fig5", "fig6", "fig7")
SWEEPS = ("fig3", "fig4", "fig17", "speed")
LONG = ("ablation", "fig20", "fig21", "fig11", "fig18", "fig19", "optimum")
CHEAP_SETTING = 162  # of behind.py: MobileNet, two workers and servers
# A simulator whose iterations under one policy are so much longer.
OFF_BY = """#!{python}
import json, subprocess, sys
done = subprocess.run(["{sim}", *sys.argv[1:]], stdout=subprocess.PIPE, check=False)
text = done.stdout.decode()
if done.returncode == 0 and "--policy" in sys.argv and sys.argv[1] != "model" \\
        and sys.argv[sys.argv.index("--policy") + 1].split(":")[0] == "{policy}":
    answer = json.loads(text)
    answer["iteration_s"] *= {factor}
    text = json.dumps(answer)
sys.stdout.write(text)
sys.exit(done.returncode)
"""
TWO_LAYERS = """layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority
0,a,100000,f32,1000000,2000000,0
1,b,3000000,f32,1000000,2000000,1
"""


def command(out, *options):
    return [sys.executable, PROGRAM, "--sim", SIM, "--out", out, *options]


def run(out, *options):
    return subprocess.run(command(out, *options), capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)


class Computed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def answers(self):
        return sorted(self.out.glob("answers/*/*.json"))

    def check_verdicts(self, *names):
        done = run(self.out, "--quick", *names)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertNotIn("OUTSIDE", done.stdout)
        for name in names:
            self.assertGreater((self.out / f"{name}.svg").stat().st_size, 0)
            figure = json.loads((self.out / f"{name}.json").read_text(encoding="utf-8"))
            judged = [row for row in figure["rows"] if row["verdict"] != "stated"]
            self.assertTrue(judged, name)
            for row in judged:
                self.assertEqual(row["check"], "ok", row)
                self.assertLessEqual(row["least"], row["ours"])
                self.assertLessEqual(row["ours"], row["most"])


class Sweeps(Computed):
    def sweep(self, *options):
        return subprocess.run([sys.executable, PROGRAM.with_name("sweep.py"), "--sim", SIM, "--out", self.out, *options],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def test_of_policies_models_and_bandwidths(self):
        trace = self.out / "two.csv"
        trace.write_text(TWO_LAYERS, encoding="utf-8")
        done = self.sweep("--traces", trace, "mobilenet", "--policies", "mercury", "p3:startup=0", "--bandwidths", "1Gbps",
                          "10Gbps", "--workers", "3", "--servers", "1", "--csv", "-", "--", "--ecn", "97500B")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = list(csv.DictReader(done.stdout.splitlines()))
        self.assertEqual([(row["model"], row["policy"], row["bandwidth"]) for row in rows],
                         [(model, policy, rate) for model in ("two", "mobilenet") for policy in ("mercury", "p3:startup=0")
                          for rate in ("1Gbps", "10Gbps")])
        for row in rows:
            self.assertGreaterEqual(float(row["iteration_s"]), float(row["optimum_s"]), row)
        self.assertGreater((self.out / "SWEEP.svg").stat().st_size, 0)
        computed = self.answers()
        self.assertEqual(len(computed), len(rows))
        again = self.sweep("--traces", trace, "--policies", "mercury", "nonsense", "--bandwidths", "1Gbps", "--workers",
                           "3", "--servers", "1", "--", "--ecn", "97500B")
        self.assertEqual(again.returncode, 1)
        self.assertIn("nonsense", again.stderr)
        self.assertEqual(self.answers(), computed)

    def behind(self, sim, *options):
        return subprocess.run([sys.executable, PROGRAM.with_name("behind.py"), "--sim", sim, "--out", self.out, "--settings",
                               "1", "--policies", "wfbp", "--seed", str(CHEAP_SETTING), *options],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def test_says_who_is_ahead_in_a_setting_that_is_drawn(self):
        ahead = self.behind(SIM, "--most", "0.1")
        self.assertEqual((ahead.returncode, ahead.stderr), (0, ""), ahead.stdout)
        self.assertIn("behind in 0 of 1 settings, by -", ahead.stdout)
        slower = self.out / "slower"
        slower.write_text(OFF_BY.format(python=sys.executable, sim=SIM, policy="mercury", factor=3), encoding="utf-8")
        slower.chmod(0o755)
        behind = self.behind(slower, "--most", "0.1")
        self.assertEqual((behind.returncode, behind.stderr), (1, ""))
        self.assertIn("behind in 1 of 1 settings, by ", behind.stdout)
        (row,) = csv.DictReader((self.out / "BEHIND.csv").read_text(encoding="utf-8").splitlines())
        self.assertEqual(row["best"], "wfbp")
        # What it says is a command line that the simulator takes.
        again = subprocess.run([SIM, "--policy", "wfbp", "--quiet", "--json", "-", *shlex.split(row["setting"])],
                               capture_output=True, text=True, timeout=LIMIT_S, check=True)
        self.assertEqual(json.loads(again.stdout)["iteration_s"], float(row["best_s"]))

    def scale(self, sim, *options):
        return subprocess.run([sys.executable, PROGRAM.with_name("scale.py"), "--sim", sim, "--out", self.out, "--trace", "mobilenet",
                               "--clusters", "2+1", "--mtus", "9000", *options], capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def test_says_what_an_iteration_takes_more_than_the_least_possible_and_why(self):
        done = self.scale(SIM, "--most", "1.1")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        rows = list(csv.DictReader((self.out / "SCALE.csv").read_text(encoding="utf-8").splitlines()))
        self.assertEqual([row["marks"] for row in rows], ["none", "97500B"])
        for row in rows:
            parts = sum(float(row[f"{part}_percent"]) for part in ("framing", "latency", "protocol"))
            self.assertAlmostEqual(float(row["ratio"]), 1 + parts / 100, places=6)
            self.assertAlmostEqual(float(row["framing_apart"]), float(row["ratio"]) - float(row["framing_percent"]) / 100, places=6)
        slower = self.out / "slower"
        slower.write_text(OFF_BY.format(python=sys.executable, sim=SIM, policy="mercury", factor=3), encoding="utf-8")
        slower.chmod(0o755)
        self.assertEqual(self.scale(slower, "--most", "1.1").returncode, 1)
        self.assertEqual(self.scale(SIM, "--clusters", "2").returncode, 2)

    def test_draws_cheap_settings_of_slower_servers(self):
        done = self.behind(SIM, "--light", "--most", "0.1")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        (row,) = csv.DictReader((self.out / "BEHIND.csv").read_text(encoding="utf-8").splitlines())
        self.assertIn("--iterations 6 --warmup 3", row["setting"])
        self.assertEqual(len(self.answers()), 2)

    def test_verdicts_that_held_still_hold(self):
        for name in SWEEPS:
            with self.subTest(name):
                self.check_verdicts(name)

    def test_draws_the_speed_of_a_model_of_the_users(self):
        trace = self.out / "two-layers.csv"
        trace.write_text(TWO_LAYERS, encoding="utf-8")
        done = run(self.out, "--quick", "speed", "--trace", trace)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        about = json.loads((self.out / "speed-two-layers.json").read_text(encoding="utf-8"))
        curves = about["panels"][0]["series"]
        self.assertEqual(curves["Mercury"]["x"], [1, 10, 100])
        self.assertTrue(0 < curves["Mercury"]["y"][0] < curves["Mercury"]["y"][-1] <= 1, curves)
        plot = (self.out / "speed-two-layers.svg").read_text(encoding="utf-8")
        for name in ("two-layers, 2 workers and 2 servers", *curves):
            self.assertIn(name, plot)

    def test_draws_the_speed_on_a_cluster_of_the_users(self):
        trace = self.out / "two-layers.csv"
        trace.write_text(TWO_LAYERS, encoding="utf-8")
        done = run(self.out, "--quick", "speed", "--trace", trace, "--workers", "3", "--servers",
                   "1", "--mtu", "1500")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        clusters = set()
        for path in self.answers():
            answer = json.loads(path.read_text(encoding="utf-8"))
            clusters.add((answer["workers"], answer["servers"], answer["mtu"]))
        self.assertEqual(clusters, {(3, 1, 1500)})
        self.assertIn("two-layers, 3 workers and 1 servers, simulated, MTU 1500",
                      (self.out / "speed-two-layers.svg").read_text(encoding="utf-8"))


class Long(Computed):
    def test_verdicts_that_held_still_hold(self):
        for name in LONG:
            with self.subTest(name):
                self.check_verdicts(name)


class Papers(Computed):
    def test_verdicts_that_held_still_hold(self):
        self.check_verdicts(*CHEAP)

    def test_fails_when_a_value_leaves_its_range_on_either_side(self):
        """Rows that are reproduced, in kind and not reproduced, in a figure whose simulator is off by so much."""
        for policy, factor, lost in (
                ("wfbp", 1.6, "VGG, largest over native"), ("wfbp", 0.6, "ResNet-50, least over native"),
                ("byteps", 1.2, "largest over BytePS"), ("byteps", 1.6, "largest over BytePS"),  # as the paper has it
                ("bytescheduler", 0.9, "largest over ByteScheduler, tuned")):
            with self.subTest(policy=policy, factor=factor):
                off = self.out / "off-by"
                off.write_text(OFF_BY.format(python=sys.executable, sim=SIM, policy=policy, factor=factor),
                               encoding="utf-8")
                off.chmod(0o755)
                done = subprocess.run(
                    [sys.executable, PROGRAM, "--sim", off, "--out", self.out / f"{policy}{factor}", "--quick",
                     "--no-plot", "fig13"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
                self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
                self.assertIn("outside or missing: fig13", done.stdout)
                failed = [line for line in done.stdout.splitlines() if "OUTSIDE" in line]
                self.assertTrue(any(line.strip().startswith(lost) for line in failed), (lost, done.stdout))

    def test_draws_what_it_computed(self):
        done = run(self.out, "fig10")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("VGG-16", (self.out / "fig10.svg").read_text(encoding="utf-8"))

    def test_an_interrupted_run_keeps_what_it_finished(self):
        with subprocess.Popen(command(self.out, "--cores", "1", "optimum"),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            end = time.monotonic() + LIMIT_S
            while len(self.answers()) < 2 and child.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=LIMIT_S)
        self.assertEqual(child.returncode, 1)
        self.assertIn("interrupted; what was computed is kept", errors)
        kept = self.answers()
        self.assertGreaterEqual(len(kept), 2)
        for path in kept:
            self.assertGreater(json.loads(path.read_text(encoding="utf-8"))["iteration_s"], 0)

    def test_asks_nothing_twice(self):
        run(self.out, "--quick", "--no-plot", "header")
        times = {path: path.stat().st_mtime_ns for path in self.answers()}
        self.assertEqual(len(times), 2)
        self.assertEqual(run(self.out, "--quick", "--no-plot", "header").returncode, 0)
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.answers()}, times)

    def test_says_what_is_wrong(self):
        for options, status, expected in (
                (("fig99",), 2, "no figure fig99: one of all, table2"),
                ((), 2, "--list names them"),
                (("--cores", "0", "table2"), 2, "at least 1"),
                (("--workers", "3", "fig2"), 2, "--workers goes with the figure speed alone"),
                (("--workers", "3", "--record", "speed"), 2, "not into the record"),
                (("--quick", "--record", "fig2"), 2, "--record is for whole figures"),
                (("--check", "fig2"), 2, "--check goes with table alone"),
                (("table", "fig2"), 2, "table stands alone"),
                (("--sim", "/nonexistent/sim", "header"), 1, "no /nonexistent/sim"),
                (("--sim", "/bin/false", "header"), 1, "false model --trace vgg16"),
                (("--scheduler", "tcp://127.0.0.1:1", "header"), 1, "Dask's scheduler")):
            done = run(self.out, *options)
            self.assertEqual(done.returncode, status, (options, done.stderr))
            self.assertIn(expected, done.stderr, options)


if __name__ == "__main__":
    unittest.main()
