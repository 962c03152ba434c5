"""The examples for PyTorch: two workers have the losses that one process alone has, up to rounding.

usage: examples_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import re
import sys
import unittest

from programs import free_port, outcomes_of, start

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch")
PATIENCE_S = 120

# Rounding grows from iteration to iteration; an update that is missing or late changes the loss by a percent and more.
PLACES = 3


class Examples(unittest.TestCase):
    def run_all(self, name, options, count):
        """The losses that each of `count` processes prints; one is alone."""
        job = {"MERCURY_WORKERS": str(count), "MERCURY_ROLE": "worker", "MERCURY_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
        command = [sys.executable, os.path.join(EXAMPLES, name), *options, *([] if count > 1 else ["--alone"])]
        outcomes = outcomes_of([start(command, LIBRARY, PYTHONPATH=PACKAGE, MERCURY_RANK=str(rank), **(job if count > 1 else {}))
                                for rank in range(count)], PATIENCE_S)
        for _, errors, status in outcomes:
            self.assertEqual(status, 0, errors)
        return [said for said, _, _ in outcomes]

    def check(self, name, *options):
        """What both workers said."""
        def losses(said):
            return [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
        alone = losses(self.run_all(name, options, 1)[0])
        workers = self.run_all(name, options, 2)
        self.assertGreater(len(alone), 1)
        self.assertLess(alone[-1], alone[0])
        for one, both in zip(alone, zip(*map(losses, workers), strict=True), strict=True):
            self.assertAlmostEqual(one, sum(both) / 2, PLACES)
        return workers

    def test_digits(self):
        first, second = (re.findall(r"right .*, weights \w+", said) for said in self.check("digits.py", "--epochs", "2"))
        self.assertEqual(len(first), 1)
        self.assertEqual(first, second)

    def test_convolutional(self):
        self.check("convolutional.py", "--iterations", "20")

    def test_transformer(self):
        self.check("transformer.py", "--iterations", "20")


if __name__ == "__main__":
    unittest.main()
