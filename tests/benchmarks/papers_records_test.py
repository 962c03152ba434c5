#!/usr/bin/python3
"""What docs/papers.md prints is what docs/records/papers.csv has, and every judged row has two bounds and keeps them.
usage: papers_records_test.py
"""
import csv
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))
import mercury  # noqa: E402
import records  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402


class Rows(unittest.TestCase):
    def row(self, ours, *bounds, **about):
        figure = report.Figure()
        figure.add("what", "1", ours, *bounds, **about)
        return figure.rows[0]

    def test_fail_on_either_side_of_their_range(self):
        for ours, check in ((0.9, "OUTSIDE"), (1, "ok"), (2, "ok"), (2.1, "OUTSIDE")):
            for about, verdict in (({}, "reproduced"), ({"order": True}, "in kind"), ({"own": True}, "own")):
                row = self.row(ours, 1, 2, **about)
                self.assertEqual((row["check"], row["verdict"]), (check, verdict), (ours, about))

    def test_that_differ_fail_outside_of_their_own_range_and_inside_the_papers(self):
        for ours, check in ((4.9, "OUTSIDE"), (5, "ok"), (6, "ok"), (6.1, "OUTSIDE"), (1.5, "OUTSIDE")):
            row = self.row(ours, 1, 2, differs=("for a reason", 5, 6))
            self.assertEqual((row["check"], row["verdict"]), (check, "not reproduced"), ours)
        self.assertEqual(self.row(2, 1, 2, differs=("touches", 2, 3))["check"], "OUTSIDE")

    def test_have_both_bounds_or_none(self):
        self.assertEqual(self.row(1)["verdict"], "stated")
        for least, most in ((1, None), (None, 1)):
            with self.assertRaisesRegex(ValueError, "what: a judged row has a range on both sides"):
                self.row(1, least, most)
        with self.assertRaisesRegex(ValueError, "both sides"):
            self.row(1, differs=("why", 1, 2))

    def test_that_fail_are_said(self):
        figure = report.Figure()
        figure.add("lost", "1", 3, 1, 2)
        figure.add("held", "1", 1, 1, 2)
        self.assertEqual([row["what"] for row in figure.failed()], ["lost"])
        self.assertIn("OUTSIDE", figure.table())


class Recorded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.rows = records.read()

    def written(self, rows):
        path = self.folder / "papers.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, records.COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return path

    def test_every_judged_row_is_in_its_range(self):
        self.assertGreater(len(self.rows), 200)
        for row in self.rows:
            for column in ("date", "commit", "machine", "command", "figure", "what", "ours"):
                self.assertTrue(row[column], (column, row))
            if row["verdict"] != "stated":
                self.assertLessEqual(float(row["least"]), float(row["ours"]), row)
                self.assertLessEqual(float(row["ours"]), float(row["most"]), row)

    def test_has_every_figure(self):
        self.assertEqual(set(mercury.FIGURES), {row["figure"] for row in self.rows})

    def test_is_what_the_document_prints(self):
        self.assertTrue(records.write_table(check=True), "benchmarks/papers/mercury.py table")

    def test_no_value_begins_a_line(self):
        """Markdown takes a line that begins with a comment for HTML, and what follows in it, too."""
        for line in records.DOCUMENT.read_text(encoding="utf-8").splitlines():
            self.assertNotRegex(line, r"^[-\s>*0-9.]*<!--=")

    def test_another_number_or_verdict_is_another_document(self):
        named = [pattern for _, _, _, patterns, _ in results.RESULTS for pattern in
                 ([patterns] if isinstance(patterns, str) else patterns)]
        for number, row in enumerate(self.rows):
            if row["what"] in named:
                other = dict(row, ours=f"{1.5 * float(row['ours']) + 7:.6g}")
                path = self.written([*self.rows[:number], other, *self.rows[number + 1:]])
                self.assertFalse(records.write_table(check=True, path=path), row)
                return
        self.fail("no row of the document has a record of its own")

    def test_a_row_without_a_record_is_said(self):
        path = self.written([row for row in self.rows if row["figure"] != "fig13"])
        with self.assertRaisesRegex(records.LabError, r"no row of fig13 called .*mercury.py --record fig13"):
            records.write_table(check=True, path=path)

    def test_says_what_is_not_as_recorded(self):
        rows = [{"what": "a", "ours": 1.0, "unit": " %", "verdict": "own"},
                {"what": "new", "ours": 1.0, "unit": " %", "verdict": ""}]
        before = {column: "x" for column in records.COLUMNS}
        path = self.written([dict(before, figure="fig1", what="a", ours="1.00001", unit=" %", verdict="own"),
                             dict(before, figure="fig1", what="gone", ours="1", unit=" %", verdict="own")])
        self.assertEqual(records.compare("fig1", rows, path), ["not in the record: new", "in the record alone: gone"])
        rows[0]["ours"] = 1.2
        self.assertEqual(records.compare("fig1", rows, path)[0], "was 1 % (own) at x: a")

    @unittest.skipUnless(shutil.which("git"), "no git here")
    def test_says_how_often_the_engine_changed_since(self):
        def git(*words):
            return subprocess.run(["git", "-C", self.folder, "-c", "user.name=x", "-c", "user.email=x@y", *words],
                                  capture_output=True, text=True, check=True).stdout.strip()

        def commit(path):
            (self.folder / path).parent.mkdir(exist_ok=True)
            (self.folder / path).write_text(path + path, encoding="utf-8")
            git("add", "-A")
            git("commit", "-q", "-m", path)
            return git("rev-parse", "--short=7", "HEAD")
        git("init", "-q")
        rows = [{"commit": commit("transport/a"), "figure": "fig1"}]
        commit("docs/a")
        self.assertEqual(records.changed_since(rows, self.folder), [])
        commit("transport/b")
        commit("scheduler/b")
        self.assertEqual(records.changed_since(rows, self.folder),
                         [f"recorded at {rows[0]['commit']}, 2 commits changed the engine since: fig1"])
        self.assertEqual(records.changed_since([{"commit": "0123456", "figure": "fig2"}], self.folder),
                         ["recorded at 0123456, which this checkout does not have: fig2"])


if __name__ == "__main__":
    unittest.main()
