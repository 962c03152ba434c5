#!/usr/bin/env python3
"""What benchmarks/goodput makes of figures and of their absence; and whether its programs measure what they say.

usage: goodput_test.py BUILD [unittest arguments]
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOODPUT = ROOT / "benchmarks" / "goodput"
sys.path.insert(0, str(GOODPUT))
import goodput  # noqa: E402
import urgent_wire  # noqa: E402
import wire_cost  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
LIMIT_S = 240


def report_of(program, *words):
    """What a program of benchmarks/goodput leaves, which ends well or has not measured something; and what it says."""
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        path = pathlib.Path(folder) / "report.json"
        done = subprocess.run([sys.executable, GOODPUT / program, "--build", BUILD, "--json", path, *words], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        if done.returncode not in (0, 1) or not path.exists():
            raise AssertionError(f"{program}: status {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(path.read_text(encoding="utf-8")), done


class UrgentFiguresTest(unittest.TestCase):
    OPTIONS = types.SimpleNamespace(mbit=100, mtu=1462, bound=3, loads=[0.0, 1.0], port="uring", tcp="cubic", bytes=64)  # 120 us a frame

    def rows(self, runs):
        return {(row["load"], row["way"]): row for row in urgent_wire.rows_of(self.OPTIONS, runs)}

    def test_more_is_by_the_same_way_at_rest_and_in_frames_of_the_link(self):
        run = lambda p50, p99: {"p50_us": p50, "p99_us": p99, "most_us": p99}
        rows = self.rows({(0.0, "chunk"): [run(100, 200)], (1.0, "chunk"): [run(340, 460), run(340, 460), run(900, 900)],
                          (0.0, "tcp"): [run(40, 50)], (1.0, "tcp"): [run(40, 50)]})
        self.assertEqual((rows[1.0, "chunk"]["more_frames"], rows[1.0, "chunk"]["p99_more_frames"], rows[1.0, "chunk"]["runs"]), (2.0, 3.0, 3))
        self.assertEqual(rows[1.0, "tcp"]["more_frames"], 0.0)
        self.assertEqual((rows[0.0, "chunk"]["allowed_frames"], rows[0.0, "tcp"]["allowed_frames"]), (2 * (2 + 2.048) + 4 * 178 / 1500, None))
        record = urgent_wire.record_of(rows[1.0, "chunk"])
        self.assertEqual([*record], urgent_wire.FIELDS)
        self.assertEqual((record["p50_us"], record["more_frames"], urgent_wire.record_of(rows[1.0, "tcp"])["allowed_frames"]), ("340", "2.0", ""))

    def test_what_was_not_measured_at_rest_has_no_row(self):
        self.assertEqual(self.rows({(0.0, "tcp"): [], (1.0, "tcp"): [{"p50_us": 1, "p99_us": 1, "most_us": 1}]}), {})

    def test_the_table_names_what_has_no_figure(self):
        self.assertIn("not measured: zeromq: no cppzmq-dev", urgent_wire.table_of(self.OPTIONS, [], {"zeromq": "no cppzmq-dev"}))


class CostFiguresTest(unittest.TestCase):
    OPTIONS = types.SimpleNamespace(saturated=0.9, mbit=100, tcp="cubic")

    def run_of(self, of_link, processes, at_work):
        return {"gbit_per_s": 0.1 * of_link, "of_link": of_link, "processes_ns": processes, "at_work_ns": at_work, "machine_ns": processes}

    def ratios(self, found):
        return {way: (run["by_tcp"], run["at_work_by_tcp"]) for way, run in wire_cost.with_ratios(self.OPTIONS, found)}

    def test_a_ratio_is_of_wires_that_both_have_filled(self):
        tcp, busy = self.run_of(0.95, 2.0, 2.0), self.run_of(0.95, 8.0, 1.0)
        self.assertEqual(self.ratios({"tcp": tcp, "busy": busy}), {"tcp": (None, None), "busy": (4.0, 0.5)})
        self.assertEqual(self.ratios({"tcp": self.run_of(0.5, 2.0, 2.0), "busy": busy})["busy"], (None, None))
        self.assertEqual(self.ratios({"tcp": tcp, "busy": self.run_of(0.5, 8.0, 1.0)})["busy"], (None, None))
        self.assertEqual(self.ratios({"busy": busy})["busy"], (None, None))

    def test_a_ratio_that_a_run_lacks_is_none_of_the_row(self):
        runs = [run for found in ({"tcp": self.run_of(0.95, 2, 2), "busy": self.run_of(0.95, 8, 1)}, {"busy": self.run_of(0.95, 8, 1)})
                for way, run in wire_cost.with_ratios(self.OPTIONS, found) if way == "busy"]
        (row,) = wire_cost.rows_of(self.OPTIONS, {("uring", 1500, "busy"): runs, ("uring", 1500, "tcp"): []})
        record = wire_cost.record_of(row)
        self.assertEqual([*record], wire_cost.FIELDS)
        self.assertEqual((record["by_tcp"], record["processes_ns"], record["runs"]), ("", "8", 2))

    def test_what_came_in_between_is_of_the_times_asked_for(self):
        self.assertEqual(wire_cost.between([[1.0, 0], [2.0, 100], [4.0, 100], [5.0, 300]], 1.5, 4.5), 150)
        with self.assertRaises(AssertionError):
            wire_cost.between([[1.0, 0], [2.0, 100]], 1.5, 2.5)


class GoodputFiguresTest(unittest.TestCase):
    ROW = {"setting": "memif-1500", "working_set": "256MB", "testpmd": None, "cores": "apart", "pairs": 2, "ratio": 0.75,
           "ratios": [0.5, 1.0], "reference": goodput.summary([1e9, 2e9]), "mercury": goodput.summary([0.5e9, 2e9])}

    def test_a_row_is_recorded_as_what_it_is_of(self):
        (record,) = goodput.records(self.ROW)
        self.assertEqual([*record], goodput.FIELDS)
        self.assertEqual([*record.values()], ["memif", 1500, 256, "apart", 2, "1500", "67", "1250", "120", "0.75", ""])
        (record,) = goodput.records({**self.ROW, "testpmd": 3e9})
        self.assertEqual(record["testpmd_mbps"], "3000")

    def test_of_seals_each_pair_is(self):
        for seals, what in (("required", "memif-1500"), ("encrypted", "memif-1500-encrypted")):
            first, second = goodput.records(self.ROW, seals)
            self.assertEqual([*first.values()], [what, "1000", "500", "0.5000", ""])
            self.assertEqual([*second.values()], [what, "2000", "2000", "1.0000", ""])

    def test_beside_another_commit_each_pair_is(self):
        first, second = goodput.records(self.ROW, before="1234567")
        self.assertEqual([*first], goodput.BEFORE_FIELDS)
        self.assertEqual([*first.values()], ["1234567", "memif", 1500, 256, "apart", "1000", "500", "0.5000"])
        self.assertEqual(second["ratio"], "1.0000")

    def test_files_that_are_there_have_these_columns(self):
        for name, fields in (("goodput.csv", goodput.FIELDS), ("seals.csv", goodput.SEALS_FIELDS), ("before.csv", goodput.BEFORE_FIELDS)):
            path = ROOT / "docs" / "records" / name
            self.assertTrue(path.exists(), path)
            goodput.recording.check(path, fields)


class CommandTest(unittest.TestCase):
    def refused(self, program, *words):
        with mock.patch.object(sys, "argv", [f"{program.__name__}.py", *words]), contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(SystemExit) as ended:
                program.parse()
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_what_cannot_be_is_refused_with_a_reason(self):
        for program, words, why in ((goodput, ("--payload", "64", "--seals"), "without daemons"),
                                    (goodput, ("--payload", "64", "--record", "x"), "not with --payload"),
                                    (goodput, ("--payload", "64", "--before", "x"), "without daemons"),
                                    (goodput, ("--seals", "--before", "x"), "one of them"),
                                    (goodput, ("--seals", "on"), "invalid choice"), (goodput, ("--payload", "60"), "whole words"),
                                    (urgent_wire, ("--loads", "2"), "0 to 1"), (urgent_wire, ("--bytes", "9000"), "4 to 1024"),
                                    (urgent_wire, ("--mtu", "500"), "1280 to 9000"), (wire_cost, ("--mbit", "0"), "1 or more"),
                                    (wire_cost, ("--ports", "memif"), "invalid choice")):
            self.assertIn(why, self.refused(program, *words))


class QuickTest(unittest.TestCase):
    def test_frames_of_64_bytes_go_through_the_engine(self):
        report, done = report_of("goodput.py", "--quick", "--payload", "64")
        (row,) = report["rows"]
        self.assertEqual((report["payload"], row["setting"]), (64, "uring"))
        self.assertGreater(min(row["engine_frames_per_s"]["median"], row["mercury"]["median"]), 0)
        self.assertIn("M frames/s of 64 B", done.stdout)
        self.assertIn("; all frames ", done.stdout)


    def test_another_build_is_the_first_of_each_pair(self):
        report, done = report_of("goodput.py", "--quick", "--before", BUILD)
        (row,) = report["rows"]
        self.assertEqual(row["ratio"], row["mercury"]["median"] / row["reference"]["median"])
        self.assertRegex(done.stdout, r"before +Mercury +ratio")
        self.assertIn("before ", done.stderr)


class HostsTest(unittest.TestCase):
    """The smallest run of each."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("skipped: virtual hosts need root")
            sys.exit(77)

    def test_what_is_urgent_is_measured_beside_bulk_or_named(self):
        report, done = report_of("urgent_wire.py", "--quick", "--mbit", "100", "--loads", "0", "0.5", "1")
        measured = {row["way"] for row in report["rows"]}
        self.assertLessEqual({"chunk", "sockets", "tcp", "tcp-prio"}, measured, done.stdout)
        self.assertEqual(measured | set(report["not_measured"]), set(urgent_wire.WAYS))
        self.assertFalse(measured & set(report["not_measured"]))
        self.assertEqual(len(report["rows"]), 3 * len(measured))
        for row in report["rows"]:
            self.assertLessEqual(0 < row["p50_us"][0] <= row["p99_us"][0] <= row["most_us"][0], True, row)

    def test_a_byte_costs_something_on_a_wire_that_is_full(self):
        report, done = report_of("wire_cost.py", "--quick", "--ports", "uring", "--mbit", "100", "--saturated", "0")
        rows = {row["way"]: row for row in report["rows"]}
        self.assertEqual((set(rows), report["not_measured"]), (set(wire_cost.WAYS), {}), done.stdout)
        for row in rows.values():
            self.assertGreater(row["of_link"][0], 0, row)
            self.assertGreater(row["at_work_ns"][0], 0, row)
            self.assertGreater(row["processes_ns"][0], 0, row)
        self.assertEqual(rows["tcp"]["processes_ns"], rows["tcp"]["at_work_ns"])
        self.assertIsNotNone(rows["busy"]["by_tcp"][0])


if __name__ == "__main__":
    unittest.main()
