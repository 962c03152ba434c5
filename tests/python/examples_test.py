"""The examples for PyTorch: two workers have the losses that one process alone has, up to rounding.

usage: examples_test.py PACKAGE_FOLDER LIBRARY
"""
import difflib
import os
import re
import sys
import unittest

from programs import free_port, outcomes_of, start

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
EXAMPLES = os.path.join(ROOT, "examples", "pytorch")
PATIENCE_S = 120

# Rounding grows from iteration to iteration; an update that is missing or late changes the loss by a percent and more.
PLACES = 3


class Examples(unittest.TestCase):
    def run_all(self, name, options, each):
        """What each process says; `each` has the variables of one."""
        outcomes = outcomes_of([start([sys.executable, os.path.join(EXAMPLES, name), *options], LIBRARY, PYTHONPATH=PACKAGE, **variables)
                                for variables in each], PATIENCE_S)
        for _, errors, status in outcomes:
            self.assertEqual(status, 0, errors)
        return [said for said, _, _ in outcomes]

    def check(self, name, *options, alone=None):
        """What both workers said. `alone`: the program of one process; else it is --alone."""
        def losses(said):
            return [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
        job = {"MERCURY_WORKERS": "2", "MERCURY_ROLE": "worker", "MERCURY_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
        alone = losses(self.run_all(alone or name, options if alone else [*options, "--alone"], [{}])[0])
        workers = self.run_all(name, options, [{**job, "MERCURY_RANK": str(rank)} for rank in range(2)])
        self.assertGreater(len(alone), 1)
        self.assertLess(alone[-1], alone[0])
        for one, both in zip(alone, zip(*map(losses, workers), strict=True), strict=True):
            self.assertAlmostEqual(one, sum(both) / 2, PLACES)
        return workers

    def test_digits(self):
        first, second = (re.findall(r"right .*, weights \w+", said) for said in self.check("digits.py", "--epochs", "2", alone="digits_alone.py"))
        self.assertEqual(len(first), 1)
        self.assertEqual(first, second)

    def test_the_page_shows_what_differs(self):
        """Of the digits job from that of one process: at most 20 lines."""
        with open(os.path.join(ROOT, "docs", "pytorch.md"), encoding="utf-8") as page:
            shown = re.findall(r"^```diff\n(.*?)^```$", page.read(), re.M | re.S)
        programs = []
        for name in ("digits_alone.py", "digits.py"):
            with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
                programs.append(file.readlines())
        differs = [line for line in difflib.unified_diff(*programs, n=0) if line[0] in "+-" and line[:3] not in ("+++", "---")]
        self.assertEqual(shown, ["".join(differs)])
        self.assertLessEqual(sum(line[0] == "+" for line in differs), 20)

    def test_convolutional(self):
        self.check("convolutional.py", "--iterations", "20")

    def test_transformer(self):
        self.check("transformer.py", "--iterations", "20")


if __name__ == "__main__":
    unittest.main()
