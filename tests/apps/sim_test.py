#!/usr/bin/env python3
"""Runs mercury-sim as its users do. usage: sim_test.py SIM"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SIM = sys.argv.pop(1)
LIMIT_S = 60

HEADER = "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority"
# 8 Mb/s carry a byte a microsecond: 8896-byte tensors of one frame of 9010 bytes.
TWO_LAYERS = f"""{HEADER}
0,a,2224,f32,1000000,2000000,0
1,b,2224,f32,1000000,2000000,1
"""


def run(*options):
    return subprocess.run([SIM, "model", *options], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


class Model(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.trace = self.file("two.csv", TWO_LAYERS)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def figures(self, *options):
        done = run("--json", "-", *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), options)
        return json.loads(done.stdout)

    def refusal(self, *options, status=2):
        done = run(*options)
        self.assertEqual(done.returncode, status, options)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_prints_what_can_be_computed_by_hand(self):
        json_ = self.figures("--trace", self.trace, "--policy", "mercury", "--bandwidth", "8Mbps")
        # b is ready at 2 ms and a at 4 ms. b goes for 2 ms, then a for 9.01 ms, then what is left
        # of b: 7.01 ms. Forward a until 13.01 + 1 ms, forward b until 20.02 + 1 ms.
        expected = {"iteration_s": 0.02102, "oracle_s": 0.006,
                    # Without framing, 114 bytes of each frame: 2 + 2 * 8.896 + 1 ms.
                    "optimum_s": 0.020792, "framing_s": 0.000228,
                    "push_begin_s": 0.002, "push_end_s": 0.02002, "uplink_busy": 1,
                    "speed": 0.006 / 0.02102}
        for key, value in expected.items():
            self.assertAlmostEqual(json_[key], value, 9, key)
        a, b = json_["tensors"]
        for tensor, times in ((a, (0.004, 0.01301, 0.01301)), (b, (0.002, 0.02002, 0.02002))):
            for key, value in zip(("ready_s", "pushed_s", "pulled_s"), times):
                self.assertAlmostEqual(tensor[key], value, 9, tensor["name"] + key)
        self.assertEqual((a["name"], a["bytes"], b["priority"]), ("a", 8896, 1))
        self.assertEqual((json_["bytes_up"], json_["bytes_down"]), (17792, 17792))
        self.assertEqual((json_["wire_bytes_up"], json_["wire_bytes_down"]), (18020, 18020))
        self.assertEqual((json_["frames"], json_["frame_overhead_bytes"]), (2, 114))
        self.assertEqual((json_["source"], json_["model"], json_["policy"]),
                         ("model", "two", "mercury"))

    def test_takes_each_link_and_the_sizes_of_the_cluster(self):
        def push_s(*options):
            tensor = self.figures("--trace", self.trace, "--policy", "wfbp", *options)["tensors"][1]
            return tensor["pushed_s"] - 0.002, tensor["pulled_s"] - tensor["pushed_s"]

        def check(expected, *options):
            for got, wanted in zip(push_s(*options), expected):
                self.assertAlmostEqual(got, wanted, 9, options)

        check((0.00901, 0.00901), "--bandwidth", "8Mbps")
        check((0.01802, 0.00901), "--bandwidth", "8Mbps", "--worker-up", "4Mbps")
        check((0.00901, 0.01802), "--bandwidth", "8Mbps", "--worker-down", "4Mbps")
        check((0.00901, 0.01802), "--bandwidth", "8Mbps", "--server-up", "4Mbps")
        check((0.01802, 0.00901), "--bandwidth", "8Mbps", "--server-down", "4Mbps")
        check((0.03604, 0.03604), "--bandwidth", "8Mbps", "--workers", "8", "--servers", "2")
        check((0.00901, 0.00901), "--bandwidth", "8Mbps", "--workers", "2", "--servers", "8")
        # Eight frames of 1152 bytes and their 134, each once more for IPv6.
        check((0.009968, 0.009968), "--bandwidth", "8Mbps", "--mtu", "1280", "--ipv6")

    def test_every_policy_and_shipped_model_has_an_answer(self):
        for policy in ("mercury", "mercury-fifo", "wfbp", "wfbp-eq7", "p3", "byteps",
                       "bytescheduler", "bytescheduler:partition=4MB,credit=8MB,startup=50us"):
            figures = self.figures("--trace", "vgg16", "--policy", policy)
            self.assertEqual(figures["policy"], policy)
            self.assertGreaterEqual(figures["iteration_s"], figures["optimum_s"])
            self.assertEqual(len(figures["tensors"]), 32)

    def test_takes_quiet_as_a_simulation_does(self):
        self.assertEqual(run("--trace", self.trace, "--policy", "mercury", "--quiet").returncode, 0)

    def test_the_same_arguments_print_the_same_bytes(self):
        options = ("--trace", "resnet50", "--policy", "bytescheduler", "--json", "-")
        self.assertEqual(run(*options).stdout, run(*options).stdout)

    def test_tunes_over_the_grid(self):
        given = self.figures("--trace", "resnet50", "--policy", "bytescheduler")
        best = self.figures("--trace", "resnet50", "--policy", "bytescheduler", "--tune")
        self.assertLess(best["iteration_s"], given["iteration_s"])
        sizes = {each["policy"].split("partition=")[1].split(",")[0] for each in best["candidates"]}
        self.assertEqual((len(best["candidates"]), len(sizes)), (10, 10))
        self.assertEqual(best["candidates"][0],
                         {"policy": best["policy"], "iteration_s": best["iteration_s"]})
        again = self.figures("--trace", "resnet50", "--policy", best["policy"])
        self.assertEqual(again["iteration_s"], best["iteration_s"])

    def test_finds_the_bandwidth_for_a_speed(self):
        reach = self.figures("--trace", "vgg16", "--policy", "mercury", "--reach", "0.99")["reach"]
        bps = round(1e10 * reach["bandwidth_factor"])
        at_it = self.figures("--trace", "vgg16", "--policy", "mercury", "--bandwidth", f"{bps}bps")
        self.assertAlmostEqual(at_it["speed"], 0.99, 5)

    def test_writes_a_file_beside_the_table(self):
        path = os.path.join(self.folder, "figures.json")
        done = run("--trace", self.trace, "--policy", "mercury", "--json", path)
        self.assertEqual(done.returncode, 0)
        self.assertIn("one worker alone", done.stdout)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["model"], "two")

    def test_refuses_what_makes_no_sense_before_anything_runs(self):
        base = ("--trace", self.trace, "--policy", "mercury")
        rows = [
            ((), "required"),
            (("--trace", self.trace), "--policy is required"),
            (("--policy", "mercury"), "--trace is required"),
            (("--trace", self.trace, "--policy", "tictac"), "expected one of mercury,"),
            (("--trace", self.trace, "--policy", "p3:partition=1MB"), "less than a partition"),
            ((*base, "--bandwidth", "fast"), "not a bandwidth such as 10Gbps"),
            ((*base, "--bandwidth", "10"), "not a bandwidth such as 10Gbps"),
            ((*base, "--bandwidth", "-1Gbps"), "not a bandwidth such as 10Gbps"),
            ((*base, "--bandwidth", "0bps"), "not from 1kbps to 100Tbps"),
            ((*base, "--server-down", "1000Tbps"), "not from 1kbps to 100Tbps"),
            ((*base, "--workers", "0"), "not in range 1 to 1024"),
            ((*base, "--servers", "1025"), "not in range 1 to 1024"),
            ((*base, "--workers", "two"), "--workers"),
            ((*base, "--mtu", "1279"), "not in range 1280 to 65535"),
            ((*base, "--mtu", "65536"), "not in range 1280 to 65535"),
            ((*base, "--reach", "1"), "between 0 and 1"),
            ((*base, "--json", self.trace), "would overwrite the trace"),
            ((*base, "--reach", "nan"), "between 0 and 1"),
            ((*base, "--reach", "0.9", "--tune"), "excludes"),
            ((*base, "--speed", "3"), "not expected"),
            ((*base, "more"), "not expected"),
        ]
        for options, expected in rows:
            self.assertIn(expected, self.refusal(*options), options)

    def test_says_what_is_wrong_with_a_trace_or_file(self):
        path = self.file("bad.csv", TWO_LAYERS.replace("1,b", "1,a"))
        rows = [
            (("--trace", path, "--policy", "mercury"),
             f"{path}:3: tensor 'a' stands in line 2 already"),
            (("--trace", "/nonexistent.csv", "--policy", "mercury"), "No such file"),
            (("--trace", self.trace, "--policy", "mercury", "--json", "/nonexistent/x"),
             "cannot write /nonexistent/x"),
            (("--trace", self.trace, "--policy", "bytescheduler:startup=1s", "--reach", "0.9"),
             "does not reach a speed of 0.900000"),
        ]
        for options, expected in rows:
            self.assertIn(expected, self.refusal(*options, status=1), options)
        for options in (["--json", "-"], []):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([SIM, "model", "--trace", self.trace, "--policy", "mercury",
                                       *options], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=LIMIT_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("No space left", done.stderr)

    def test_a_trace_is_needed(self):
        done = subprocess.run([SIM], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--trace is required", done.stderr)


if __name__ == "__main__":
    unittest.main()
