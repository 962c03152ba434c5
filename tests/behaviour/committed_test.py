#!/usr/bin/env python3
"""What is committed and what was found are told apart, figure by figure."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

import committed


class Committed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "figures.json")
        self.addCleanup(setattr, sys, "argv", sys.argv)

    def hold(self, found, *options):
        sys.argv = ["x_test.py", "program", *options]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            return committed.hold(self.path, found), said.getvalue()

    def test_each_difference_is_named(self):
        rows = [({"a": {"x": 1}}, []),
                ({"a": {"x": 1.0000000000000002}}, ["a: x: 1.0000000000000002, committed is 1"]),
                ({"a": {}}, ["a: x: is no longer there"]),
                ({"a": {"x": 1, "y": 0}}, ["a: y: 0 is not committed"]),
                ({}, ["a: is no longer run"]),
                ({"a": {"x": 1}, "b": {}}, ["b: is not committed"])]
        for found, lines in rows:
            self.assertEqual(committed.differences({"a": {"x": 1}}, found), lines)
        many = {"a": {str(n): n for n in range(committed.MOST_LINES + 5)}}
        none = {"a": dict.fromkeys(many["a"])}
        self.assertEqual(len(committed.differences(none, many)), committed.MOST_LINES + 1)
        self.assertEqual(committed.differences(none, many)[-1], "a: and 5 more")

    def test_what_was_rewritten_holds_and_nothing_else(self):
        found = {"a": {"x": 0.1 + 0.2, "s": "0f"}}
        self.assertEqual(self.hold(found, "--rewrite")[0], 0)
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual(json.load(file), found)
        self.assertEqual(self.hold(found), (0, ""))
        status, said = self.hold({"a": {"x": 0.3, "s": "0f"}})
        self.assertEqual(status, 1)
        self.assertIn("a: x: 0.3, committed is 0.30000000000000004", said)
        self.assertIn("python3 x_test.py program --rewrite", said)

    def test_a_file_that_is_none_is_named(self):
        for text in (None, "{"):
            if text:
                with open(self.path, "w", encoding="utf-8") as file:
                    file.write(text)
            with self.assertRaises(SystemExit) as ended:
                self.hold({})
            self.assertIn(self.path, ended.exception.code)
            self.assertIn("--rewrite", ended.exception.code)


if __name__ == "__main__":
    unittest.main()
