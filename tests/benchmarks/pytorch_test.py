"""Short runs of what measures PyTorch over Mercury, with Debian's PyTorch: that they do and print what they are to, not how fast.

usage: pytorch_test.py BUILD [unittest arguments]      (HostsTest needs root: network namespaces)
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
LIBRARY = BUILD / "shim/client/libmercurystack.so"
PYTHON = "/usr/bin/python3"
PATIENCE_S = 100


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def run_script(self, *command, **variables):
        """What it prints."""
        done = subprocess.run([*map(str, command)], cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def recorded(self):
        with open(self.out / "record.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


class OneHostTest(ScriptsTest):
    def test_overhead(self):
        said = self.run_script(PYTHON, "benchmarks/pytorch/overhead.py", "--layers", 20, "--turns", 1, "--repeat", 1, "--record",
                               self.out / "record.csv", MERCURY_LIBRARY=str(LIBRARY))
        rows = self.recorded()
        each = "a step for each layer"
        self.assertEqual([(row["optimizer"], row["tensors"]) for row in rows],
                         [("SGD", "20"), ("Adam", "20"), (f"SGD, {each}", "20"), (f"Adam, {each}", "20")])
        for row, line in zip(rows, said.splitlines(), strict=True):
            self.assertEqual(line, "{optimizer}: {alone_us} us a tensor alone, with ScheduledOptimizer {more_us} [{more_least_us}, {more_most_us}] us "
                             "more: {hooks_us} us of PyTorch's hooks, {own_us} [{own_least_us}, {own_most_us}] us of its own; an empty call by ctypes "
                             "{empty_call_us} us; PyTorch's record of each step {record_us} us".format(**row))
            self.assertGreater(float(row["alone_us"]), 0)


class HostsTest(ScriptsTest):
    def test_quickstart_has_one_process_s_losses(self):
        """That of this checkout where this is what it builds."""
        script = ["./quickstart", "--pytorch"] if BUILD == ROOT / "build" else [PYTHON, "examples/pytorch/beside_ddp.py", "--build", BUILD]
        with subprocess.Popen([PYTHON, "-c", "while True: pass"]) as other:
            try:
                said = self.run_script(*script, "--iterations", 6, "--turns", 1, "--out", self.out)
            finally:
                other.kill()
        self.assertRegex(said, r"\nOther programs used \d\.\d of this machine's \d+ processors meanwhile, so these times say little")
        self.assertRegex(said, r"\n +one process +DDP over Gloo +Mercury\niteration, median +[\d.]+ ms +[\d.]+ ms\n")
        self.assertRegex(said, r"\n  mercury-sim said +[\d.]+ ms\n")
        self.assertRegex(said, r"\nmean loss of the last iteration +(\d\.\d{6}) +\1 +\1\n")
        self.assertRegex(said, r"\nworkers' losses that are one process's +12 of 12 +12 of 12\n")
        self.assertRegex(said, r"\ntest accuracy +(\d+\.\d\d %) +\1 +\1\n")
        self.assertRegex(said, r"\nMercury, worker 0: \d iterations, median .* ms waiting for sums")
        for rank in range(2):
            with open(self.out / f"timeline-worker{rank}.json", encoding="utf-8") as file:
                self.assertGreater(len(json.load(file)["traceEvents"]), 0)

    def test_compare(self):
        said = self.run_script(PYTHON, "benchmarks/pytorch/compare.py", "--models", "last", "--computing", 0.06, "--iterations", 2, "--repeat", 1,
                               "--library", LIBRARY, "--simulator", BUILD / "apps/sim/mercury-sim", "--record", self.out / "record.csv")
        row, = self.recorded()
        self.assertEqual([row[name] for name in ("model", "workers", "servers", "told")], ["last", "2", "0", "1"])
        for what in ("predicted", "gloo", "backend", "mercury", "recorded"):
            self.assertGreater(float(row[f"{what}_ms"]), 0)
        self.assertRegex(said, rf"\nlast +DDP over Gloo .*; DDP over Mercury .*; ScheduledOptimizer .*, {float(row['mercury_of_gloo']):.2f}; mercury-sim says ")
        self.assertRegex(said, r"frames that its runs lost, before hosts' own links and before others': \d+ and \d+\n")


if __name__ == "__main__":
    del sys.argv[1]
    unittest.main()
