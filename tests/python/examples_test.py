"""The examples for PyTorch: two workers have the losses that one process alone has, up to rounding.

usage: examples_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import re
import subprocess
import sys
import unittest

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "pytorch")
sys.path[:0] = [PACKAGE, HERE]
os.environ["MERCURY_LIBRARY"] = LIBRARY

from cluster import FOREVER_S, free_port  # noqa: E402

# Rounding grows from iteration to iteration; an update that is missing or late changes the loss by a percent and more.
PLACES = 3


class Examples(unittest.TestCase):
    def run_all(self, name, options, count):
        """The losses that each of `count` processes prints; one is alone."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MERCURY_")}
        environment.update(MERCURY_LIBRARY=LIBRARY, PYTHONPATH=PACKAGE)
        if count > 1:
            environment.update(MERCURY_WORKERS=str(count), MERCURY_ROLE="worker", MERCURY_RENDEZVOUS=f"127.0.0.1:{free_port()}")
        command = [sys.executable, os.path.join(EXAMPLES, name), *options, *([] if count > 1 else ["--alone"])]
        programs = [subprocess.Popen(command, env={**environment, "MERCURY_RANK": str(rank)}, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(count)]
        said = []
        try:
            for program in programs:
                output, errors = program.communicate(timeout=FOREVER_S)
                self.assertEqual(program.returncode, 0, errors)
                said.append(output)
        finally:
            for program in programs:
                if program.poll() is None:
                    program.kill()
                    program.communicate()
        return said

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
