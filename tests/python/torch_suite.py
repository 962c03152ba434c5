"""PyTorch's own tests of torch.distributed, of the backend "mercury": those that its package brings
(torch.testing._internal.distributed.distributed_test), with each gate that lets in Gloo, or MPI for all_to_all, open for Mercury.

usage: torch_suite.py PACKAGE_FOLDER LIBRARY FOLDER_FOR_EXPECTTEST [TEST...]
"""
import collections
import concurrent.futures
import importlib.util
import multiprocessing
import os
import re
import subprocess
import shutil
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE, LIBRARY, FOLDER = sys.argv[1:4]
SKIPS = os.path.join(HERE, "torch_suite_skips.txt")
EXPECTTEST = "expecttest==0.3.0 --hash=sha256:60f88103086e1754240b42175f622be83b6ffeac419434691ee5a5be819d0544"
WORLD_SIZE = 3  # as PyTorch runs them
AT_A_TIME = 3  # tests: their ranks wait for each other, and for time-outs, most of the time
SKIPPED = 77  # Meson's status of a test that was skipped


def bring_expecttest():
    """PyTorch's test library needs it, and Debian has no package of it."""
    target = os.path.join(FOLDER, "expecttest")
    sys.path.append(target)
    if importlib.util.find_spec("expecttest") is None:
        pip = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, "--requirement", "/dev/stdin"],
                             input=EXPECTTEST, capture_output=True, text=True)
        if pip.returncode:
            print("skipped: expecttest is not installed, and pip cannot bring it:", pip.stderr.strip().splitlines()[-1:])
            sys.exit(SKIPPED)
        importlib.invalidate_caches()


def prepare_environment():
    for name in [name for name in os.environ if name.startswith("MERCURY_")]:
        del os.environ[name]
    os.environ.update(MERCURY_LIBRARY=LIBRARY, BACKEND="mercury", WORLD_SIZE=str(WORLD_SIZE), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    # Of the test that makes the group anew, which PyTorch skips with other stores. A file that is left over would be of another group.
    os.environ["INIT_METHOD"] = f"file://{tempfile.mkdtemp()}/store"
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")  # PyTorch's own variable: seconds for a test
    sys.path.insert(0, PACKAGE)


def open_gates(source):
    source, count = re.subn(r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "mercury")', source)
    source, count2 = re.subn(r'BACKEND == "gloo"', 'BACKEND in ("gloo", "mercury")', source)
    source, count3 = re.subn(r'@require_backend\(\{"gloo"', '@require_backend({"gloo", "mercury"', source)
    source, count4 = re.subn(r'BACKEND != "mpi", "Only MPI supports', 'BACKEND not in ("mpi", "mercury"), "Only MPI supports', source)
    if not (count and count2 and count3 and count4):
        sys.exit("PyTorch's distributed_test.py has no gates for Gloo as this expects: look at open_gates")
    return source


def load_suite():
    import torch.testing._internal.common_distributed as common
    for feature in common.DistTestCases.backend_feature.values():
        feature.add("mercury")
    import mercurystack.distributed  # noqa: F401
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with open(spec.origin, encoding="utf-8") as file:
        exec(compile(open_gates(file.read()), spec.origin, "exec"), module.__dict__)
    module.dist.monitored_barrier = monitored_barrier
    # DDP's replicated tensors, which the tests switch on, cannot be imported by Python 3.11 in PyTorch 1.13.
    import torch.nn.parallel._replicated_tensor_ddp_utils as replicated
    replicated._set_ddp_with_replicated_tensor = lambda enabled: None
    return module


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """The group's. PyTorch's function of the name refuses all backends but Gloo."""
    import torch.distributed.distributed_c10d as c10d
    if not c10d._rank_not_in_group(group):
        (group or c10d._get_default_group()).monitored_barrier(c10d.default_pg_timeout if timeout is None else timeout, wait_all_ranks)


bring_expecttest()
prepare_environment()
suite = load_suite()

import torch  # noqa: E402


class DistributedSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Forked ones have PyTorch loaded already.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def tearDown(self):
        for process in self.processes:  # of a test whose time was over
            process.kill()
        super().tearDown()


def read_skips():
    """{test: why not}"""
    skips = {}
    with open(SKIPS, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#") or not line.strip():
                continue
            name, colon, reason = line.partition(": ")
            if not colon or not reason.strip() or not hasattr(DistributedSuite, name):
                sys.exit(f"{SKIPS}:{number}: expected `TEST: REASON` of a test that PyTorch has, got {line.strip()!r}")
            skips[name] = reason.strip()
    return skips


def outcome_of(name):
    """(passed, skipped or failed, what was said, seconds)"""
    begun = time.monotonic()
    result = unittest.TestResult()
    DistributedSuite(name).run(result)
    outcome, said = "passed", ""
    if result.errors or result.failures:
        outcome, said = "failed", (result.errors + result.failures)[0][1]
    elif result.skipped:
        outcome, said = "skipped", result.skipped[0][1]
    return outcome, said, time.monotonic() - begun


def outcomes_of(names):
    """Of each test in turn, of which some run beside each other. Who runs them is forked too, while nothing of Mercury runs here."""
    with concurrent.futures.ProcessPoolExecutor(AT_A_TIME, multiprocessing.get_context("fork")) as runners:
        yield from zip(names, runners.map(outcome_of, names))


def main():
    skips = read_skips()
    names = sys.argv[4:] or sorted(name for name in dir(DistributedSuite) if name.startswith("test_"))
    counts, wrong, reasons = {"passed": 0, "skipped": 0, "failed": 0}, [], collections.Counter()
    for name, (outcome, said, seconds) in outcomes_of(names):
        counts[outcome] += 1
        if outcome == "skipped":
            reasons[said.strip().splitlines()[0]] += 1
        expected = "failed" if name in skips else "passed"
        if outcome not in (expected, "skipped") or (outcome == "skipped" and name in skips):
            wrong.append(name)
            said += f"\n{SKIPS} lists it: take it out" if name in skips else ""
        print(f"{outcome} {name} {seconds:.1f} s" + (f": {skips[name]}" if name in skips else ""), flush=True)
        if said and (name in wrong or outcome == "skipped"):
            print("    " + said.strip().replace("\n", "\n    "), flush=True)
    for reason, count in reasons.most_common():
        print(f"{count} skipped: {reason}")
    shutil.rmtree(os.path.dirname(os.environ["INIT_METHOD"].partition("://")[2]), ignore_errors=True)
    print(f"{counts['passed']} passed; {counts['skipped']} skipped by PyTorch itself; {counts['failed']} failed, of which "
          f"{sum(name in skips for name in names)} are listed; not as expected: {' '.join(wrong) or 'none'}")
    return 1 if wrong or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
