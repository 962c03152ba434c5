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


class CommandTest(unittest.TestCase):
    def refused(self, program, *words):
        with mock.patch.object(sys, "argv", [f"{program.__name__}.py", *words]), contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(SystemExit) as ended:
                program.parse()
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_what_cannot_be_is_refused_with_a_reason(self):
        for program, words, why in ((goodput, ("--payload", "64", "--seals"), "without daemons"), (goodput, ("--payload", "60"), "whole words"),
                                    (urgent_wire, ("--loads", "2"), "0 to 1"), (urgent_wire, ("--bytes", "9000"), "4 to 1024"),
                                    (urgent_wire, ("--mtu", "500"), "1280 to 9000")):
            self.assertIn(why, self.refused(program, *words))


class QuickTest(unittest.TestCase):
    def test_frames_of_64_bytes_go_through_the_engine(self):
        report, done = report_of("goodput.py", "--quick", "--payload", "64")
        (row,) = report["rows"]
        self.assertEqual((report["payload"], row["setting"]), (64, "uring"))
        # Of both that it sends with payload and receives, and acknowledgements beside them.
        self.assertGreaterEqual(row["engine_frames_per_s"]["median"], 1.5 * row["mercury"]["median"] / 64)
        self.assertIn("M frames/s of 64 B", done.stdout)
        self.assertIn("; all frames ", done.stdout)


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


if __name__ == "__main__":
    unittest.main()
