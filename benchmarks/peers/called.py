"""Groups whose pairs another benchmark of this folder measures: it is started for one run, and its figures are read."""
import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from pairs import MERCURY, Measure, NotMeasured

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 3600  # of one run
PARTING_S = 60  # for its hosts to go after SIGTERM
DEBIAN_PYTHON = "/usr/bin/python3"  # whose packages are Debian's


def last_words(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing was said"


def run_other(program, *words, python=sys.executable, good=(0,)):
    """Runs benchmarks/`program`; returns what it said, output and errors. It ends with this program, whatever happens."""
    command = [python, str(ROOT / "benchmarks" / program), *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"{program}: not done after {LIMIT_S} s") from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PARTING_S)
            except subprocess.TimeoutExpired:
                process.kill()
    if process.returncode not in good:
        raise NotMeasured(f"{program}: status {process.returncode}: {last_words(errors or said)}")
    return said, errors


class Called:
    """A group that needs nothing between its runs. `measure(folder, pairs)` is one of them; what it raises, all have failed by."""

    def __init__(self, options):
        self.options = options

    def open(self):
        pass

    def close(self):
        pass

    def check(self, pairs):
        pass

    def turn(self, _, pairs):
        with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
            try:
                self.measure(pathlib.Path(folder), pairs)
            except (NotMeasured, OSError, ValueError, KeyError) as why:
                pairs.miss(self.NAME, MERCURY, why)

    def recorded(self, folder, program, *words, **how):
        """Rows of the record that it leaves."""
        run_other(program, *words, "--record", folder / "record.csv", **how)
        with open(folder / "record.csv", newline="", encoding="utf-8") as file:
            return [*csv.DictReader(file)]


class Ports(Called):
    """goodput.py: payload from one program's memory to another's, both ways at once."""
    NAME = "ports"
    LOOP, CHECKED = "a loop without a protocol, same port", "the same loop with a CRC-32C"
    TESTPMD = "dpdk-testpmd, same wire"

    def check(self, pairs):
        if shutil.which("dpdk-testpmd") is None:
            pairs.miss(self.NAME, self.TESTPMD, "no dpdk-testpmd: apt-get install dpdk")

    def measure(self, folder, pairs):
        options = self.options
        words = ["--build", options.build, "--runs", 1, "--seconds", options.seconds, "--json", folder / "goodput.json",
                 "--settings", *options.port_settings, "--working-sets", *options.working_sets]
        words += ["--pin"] if options.cores > 1 else []
        words += ["--no-testpmd"] if pairs.misses(self.NAME, self.TESTPMD) else []
        _, errors = run_other("goodput/goodput.py", *words, good=(0, 1))
        rows = json.loads((folder / "goodput.json").read_text(encoding="utf-8"))["rows"]
        for row in rows:
            self.add(row, pairs)
        for setting in set(options.port_settings) - {row["setting"] for row in rows}:
            said = [line for line in errors.splitlines() if line.startswith(f"{setting}: ")]
            raise NotMeasured(said[0] if said else f"{setting}: {last_words(errors)}")

    def add(self, row, pairs):
        mercury = row["mercury"]["median"] / 1e6
        measure = Measure(f"goodput over {row['setting']}, {row['working_set']}", "MB/s", "more")
        pairs.add(self.NAME, self.LOOP, measure, row["reference"]["median"] / 1e6, mercury)
        pairs.add(self.NAME, self.CHECKED, measure, row["checked"]["median"] / 1e6, mercury)
        if row["testpmd"]:
            pairs.add(self.NAME, self.TESTPMD, measure, row["testpmd"] / 1e6, mercury)
        elif row["setting"] != "uring":  # which is no port of DPDK's
            pairs.miss(self.NAME, self.TESTPMD, f"it received nothing over {row['setting']}")


class Programs(Called):
    """sockets.py: programs that were never changed, over the kernel's TCP and over Mercury."""
    NAME = "programs"
    PEER = "the same program, kernel TCP"

    def measure(self, folder, pairs):
        rows = self.recorded(folder, "sockets/sockets.py", "--build", self.options.build, "--where", "between",
                             "--repeat", 1, *(["--quick"] if self.options.quick else []),
                             *(word for setting in self.options.settings for word in ("--set", setting)))
        for row in rows:
            better = "more" if row["unit"].endswith("/s") else "less"
            pairs.add(self.NAME, self.PEER, Measure(row["what"], row["unit"], better), float(row["kernel"]), float(row["mercury"]))


class Sums(Called):
    """sizes.py: sums of one tensor, of so many workers and servers."""
    NAME = "sums"
    PEERS = {"gloo": "Gloo, kernel TCP", "mpi": "Open MPI, kernel TCP", "pslite": "ps-lite, kernel TCP"}

    def measure(self, folder, pairs):
        for workers, servers in self.options.clusters:
            run_other("emulation/sizes.py", "--build", self.options.build, "--out", folder, "--runs", 1, "--workers", workers,
                      "--servers", servers, "--mbit", self.options.mbit, "--sizes", *self.options.sizes, python=DEBIAN_PYTHON, good=(0, 1))
            found = json.loads((folder / "sizes.json").read_text(encoding="utf-8"))
            for library, why in found["not_run"].items():
                pairs.miss(self.NAME, self.PEERS[library], why)
            self.add(workers, servers, found["rows"], pairs)

    def add(self, workers, servers, rows, pairs):
        mercury = {row["bytes"]: row["sums_s"][0] for row in rows if row["library"] == "mercury"}
        for row in rows:
            if row["library"] != "mercury":
                measure = Measure(f"{cluster_of(workers, servers)}, {row['bytes']} bytes", "ms", "less")
                pairs.add(self.NAME, self.PEERS[row["library"]], measure, 1e3 * row["sums_s"][0], 1e3 * mercury[row["bytes"]])


def cluster_of(workers, servers):
    return f"{workers} workers, " + (f"{servers} server{'s' * (servers > 1)}" if servers else "who serve")


class Models(Called):
    """emulate.py: an iteration of a model, gradients fused as the libraries' users have it."""
    NAME = "models"
    PEERS = {"gloo": "Gloo, fused as under DDP", "mpi": "Open MPI, fused as under Horovod", "pslite": "ps-lite"}

    def measure(self, folder, pairs):
        for model in self.options.models:
            for other, peer in self.PEERS.items():
                if not pairs.misses(self.NAME, peer):
                    self.pair(folder, model, other, peer, pairs)

    def pair(self, folder, model, other, peer, pairs):
        """By itself, so that a library that fails is alone in it."""
        try:
            run_other("emulation/emulate.py", "--build", self.options.build, "--out", folder, "--models", model, "--policies", "mercury",
                      "--others", other, "--runs", 1, "--no-verdict", "--no-plot", python=DEBIAN_PYTHON)
        except NotMeasured as why:
            return pairs.miss(self.NAME, peer, why)
        ((result),) = json.loads((folder / "emulation.json").read_text(encoding="utf-8"))
        seconds = {row["way"]: row["iteration_s"] for row in result["rows"]}
        pairs.add(self.NAME, peer, Measure(f"an iteration of {model}, 2 workers, 2 servers", "s", "less"), seconds[other], seconds["mercury"])


class PyTorch(Called):
    """compare.py: DistributedDataParallel over Gloo."""
    NAME = "pytorch"
    PEER = "DDP over Gloo, kernel TCP"

    def measure(self, folder, pairs):
        rows = self.recorded(folder, "pytorch/compare.py", "--repeat", 1, "--iterations", self.options.iterations, "--library",
                             self.options.build / "shim/client/libmercurystack.so", "--simulator",
                             self.options.build / "apps/sim/mercury-sim", "--models", *self.options.gradients, python=DEBIAN_PYTHON)
        for row in rows:
            for way, name in (("backend", "DDP over Mercury"), ("mercury", "ScheduledOptimizer")):
                measure = Measure(f"an iteration, gradients {row['model']}, {name}", "ms", "less")
                pairs.add(self.NAME, self.PEER, measure, float(row["gloo_ms"]), float(row[f"{way}_ms"]))
