#!/usr/bin/env python3
"""Bounds hold both ways, none without a reason, and reasons outlive their figures."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

import bounds


class Bounds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "figures.json")
        self.addCleanup(setattr, sys, "argv", sys.argv)

    def commit(self, bound, reason):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"frames": {"compiler": "gcc 1", "send": {"bound": bound, "reason": reason}}}, file)

    def hold(self, figures, *options):
        """The status, and what was said."""
        sys.argv = ["x_test.py", *options]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            return bounds.hold(self.path, {"frames": figures}), said.getvalue()

    def rewritten(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)["frames"]

    def test_it_is_held_within_a_hundredth_either_way(self):
        self.commit(200.0, "headers")
        for now, how in ((200.0, None), (202.0, None), (198.0, None), (202.1, "send: grew: 202.1 instructions, committed is 200.0"),
                         (197.9, "send: shrank, commit the new figure: 197.9 instructions, committed is 200.0")):
            status, said = self.hold({"compiler": "gcc 1", "send": now})
            self.assertEqual(status, 1 if how else 0, said)
            self.assertIn(how or "", said)

    def test_a_bound_without_a_reason_holds_nothing(self):
        self.commit(200.0, "")
        status, said = self.hold({"compiler": "gcc 1", "send": 200.0})
        self.assertEqual(status, 1)
        self.assertIn(f"frames: send: {bounds.NO_REASON}", said)

    def test_what_is_new_or_gone_is_named(self):
        self.commit(200.0, "headers")
        self.assertIn("frames: receive: ", self.hold({"compiler": "gcc 1", "send": 200.0, "receive": 1.0})[1])
        self.assertIn("frames: send: is no longer there", self.hold({"compiler": "gcc 1"})[1])

    def test_a_rewrite_keeps_reasons_and_invents_none(self):
        self.commit(200.0, "headers")
        self.assertEqual(self.hold({"compiler": "gcc 2", "send": 150.0, "receive": 9.5}, "--rewrite")[0], 0)
        self.assertEqual(self.rewritten(), {"compiler": "gcc 2", "send": {"bound": 150.0, "reason": "headers"},
                                            "receive": {"bound": 9.5, "reason": ""}})

    def test_the_first_file_is_written(self):
        self.assertEqual(self.hold({"compiler": "gcc 1", "send": 1.0}, "--rewrite")[0], 0)
        self.assertEqual(self.rewritten()["send"], {"bound": 1.0, "reason": ""})


if __name__ == "__main__":
    unittest.main()
