#!/usr/bin/env python3
"""What benchmarks/goodput makes of figures and of their absence; and whether its programs measure what they say.

usage: goodput_test.py BUILD [unittest arguments]
"""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOODPUT = ROOT / "benchmarks" / "goodput"
sys.path.insert(0, str(GOODPUT))
import goodput  # noqa: E402

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


class CommandTest(unittest.TestCase):
    def refused(self, program, *words):
        with mock.patch.object(sys, "argv", [f"{program.__name__}.py", *words]), contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(SystemExit) as ended:
                program.parse()
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_what_cannot_be_is_refused_with_a_reason(self):
        for program, words, why in ((goodput, ("--payload", "64", "--seals"), "without daemons"), (goodput, ("--payload", "60"), "whole words")):
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


if __name__ == "__main__":
    unittest.main()
