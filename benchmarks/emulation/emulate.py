#!/usr/bin/python3
"""The policies on real ports, beside the simulator, Gloo, MPI and ps-lite: what an iteration takes.

    sudo benchmarks/emulation/emulate.py                          ResNet-50 and VGG-16, half an hour
    sudo benchmarks/emulation/emulate.py --models resnet50 --policies mercury wfbp --others
    sudo benchmarks/emulation/emulate.py --models resnet50 --policies mercury --busy --scheduling realtime

Two workers and two servers are virtual hosts, each with a link of --mbit both ways. Each runs a
mercury-stackd over a DPDK port; mercury-replay computes in time and exchanges real payloads, which
are verified. Two cores carry no 10 Gb/s, so the links are slower by a factor and computing takes
longer by the same: the factor is printed. mercury-sim gets the same trace and links. Gloo and Open
MPI reduce between the two workers, ps-lite has the servers too, all over kernel TCP, on the same links in
the same run. ps-lite is no package: docs/papers.md, "Emulation", says how to build it.

Needs root, and `meson compile -C build`. Leaves emulation.json and emulation-MODEL.svg in --out, and
emulation-runs.json, which an interrupted run has up to its last finished row.
Status: 0; 1 when emulation and simulator are more than a tenth apart or put two policies that differ
by more than that in another order; 2 for a wrong command line.
"""
import argparse
import contextlib
import csv
import functools
import itertools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from netlab import Lab, LabError  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))
from report import Figure, draw  # noqa: E402

POLICIES = ["wfbp", "byteps", "bytescheduler", "p3", "mercury-fifo", "mercury"]
# What the links stand for: where exchanging takes about as long as computing.
GBPS = {"resnet50": 5, "vgg16": 10, "vgg19": 10, "alexnet": 10, "bert-base": 10}
RIVALS = {"gloo": "Gloo", "mpi": "Open MPI", "pslite": "ps-lite"}
WORKERS, SERVERS = 2, 2
TOLERANCE = 0.1
LIMIT_S = 1800  # of one program


def stretched(model, factor, folder):
    """The trace with all times multiplied."""
    lines = (ROOT / "apps" / "trace" / "traces" / f"{model}.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    path = folder / f"{model}-x{factor:g}.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for row in rows:
            writer.writerow({key: round(int(value) * factor) if key.endswith("_ns") else value
                             for key, value in row.items()})
    return path


def cpu_seconds(process):
    """User and system time of a process that runs or has ended and was not waited for."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_end(process, timeout_s):
    """Whether it has ended; it is not waited for."""
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(handle)


class Training(typing.NamedTuple):
    """A job of all workers."""
    trace: pathlib.Path
    policy: str
    iterations: int  # after one of warm-up
    slow: dict = {}  # rank: so many times as long it computes


class Hosts:
    """The lab, with a daemon on each host."""

    NAMES = [f"w{i}" for i in range(WORKERS)] + [f"s{i}" for i in range(SERVERS)]

    def __init__(self, options, folder, stack):
        self.options, self.folder, self.stack = options, folder, stack
        self.names = self.NAMES
        self.mbit = dict.fromkeys(self.names, options.mbit)  # that their daemons know
        self.cpu_s = {}  # (host, "engines" or "program"): while programs ran
        self.run_s = 0  # how long the last ones did
        self.lab = stack.enter_context(
            Lab(f"em{os.getpid()}", self.names, rate_mbit=options.mbit, mtu=options.mtu, queue_bytes=options.queue,
                bucket_bytes=options.bucket))
        self.rendezvous = ",".join(f"{self.lab[f's{i}'].ip}:7470" for i in range(SERVERS))

    @contextlib.contextmanager
    def daemons(self):
        with contextlib.ExitStack() as stack:
            yield {host.name: stack.enter_context(self.daemon(host)) for host in self.lab.hosts}

    @contextlib.contextmanager
    def daemon(self, host):
        base = self.folder / host.name
        base.with_suffix(".toml").write_text(
            f'[port]\nkind = "ethdev"\ndevice = "{self.options.device}"\ninterface = "eth0"\nhugepages = "off"\n'
            f'address = ["{host.ip}/24"]\nmtu = {self.options.mtu}\nrate = "{self.mbit[host.name]}Mbit"\n'
            f'[engine]\nscheduling = "{self.options.scheduling}"\n[attach]\nsocket = "{base}.sock"\n', encoding="utf-8")
        stackd = str(self.options.build / "apps/stackd/mercury-stackd")
        log = base.with_suffix(".log")
        with open(log, "w", encoding="utf-8") as file:
            try:
                process = start_ready(functools.partial(host.popen, [stackd, "--config", f"{base}.toml"], stderr=file),
                                      base.with_suffix(".ready"), 60)
            except NotReady as error:
                raise LabError(f"{host.name} {error}: {log.read_text(encoding='utf-8')}") from None
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def run_all(self, commands):
        """Starts (host, command, environment) and returns what each printed; all end or none stays."""
        with contextlib.ExitStack() as stack:
            files = [[stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2)] for _ in commands]
            begin_s = time.monotonic()
            running = [self.lab[name].popen([str(part) for part in command], stdout=output, stderr=errors,
                                            env={**os.environ, **environment})
                       for (name, command, environment), (output, errors) in zip(commands, files)]
            try:
                for process, (name, *_) in zip(running, commands):
                    if not wait_for_end(process, LIMIT_S):
                        raise LabError(f"{process.args[2]}: not done after {LIMIT_S} s")
                    self.count_cpu(name, "program", cpu_seconds(process))
                self.run_s = time.monotonic() - begin_s
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            outputs = []
            for process, (output, errors) in zip(running, files):
                for file in (output, errors):
                    file.seek(0)
                if process.returncode != 0:
                    raise LabError(f"{process.args[2]}: {errors.read().strip()}")
                outputs.append(output.read())
        return outputs

    def count_cpu(self, name, what, seconds):
        self.cpu_s[name, what] = self.cpu_s.get((name, what), 0) + seconds

    def mercury(self, trace, policy):
        reports, repeated = self.train([Training(trace, policy, self.options.iterations)])
        return reports[0][0]["iterations_s"], repeated

    def train(self, trainings):
        """All at once: what the workers of each report, by rank, and how many chunks were sent again."""
        options, cases = self.options, [*itertools.product(enumerate(trainings), range(WORKERS))]
        report = {(number, rank): self.folder / f"report{number}-{rank}.json" for (number, _), rank in cases}
        with self.daemons() as daemons:
            for name, daemon in daemons.items():
                self.count_cpu(name, "engines", -cpu_seconds(daemon))
            self.run_all([(f"w{rank}",
                           [options.build / "apps/replay/mercury-replay", "--trace", one.trace, "--job", f"job{number}",
                            "--rank", rank, "--workers", WORKERS, "--servers", SERVERS, "--rendezvous", self.rendezvous,
                            "--mode", "daemon", "--policy", one.policy, "--time-scale", one.slow.get(rank, 1),
                            "--iterations", one.iterations, "--warmup", 1, "--report", report[number, rank],
                            *([] if options.verify else ["--no-verify"])],
                           {"MERCURY_SOCKET": f"{self.folder / f'w{rank}'}.sock"}) for (number, one), rank in cases])
            for name, daemon in daemons.items():
                self.count_cpu(name, "engines", cpu_seconds(daemon))
            repeated = sum(self.counter(name, "retransmits") for name in self.names)
        reports = {key: json.loads(path.read_text(encoding="utf-8")) for key, path in report.items()}
        for (number, rank), answer in reports.items():
            if answer["mismatches"]:
                raise LabError(f"{trainings[number].policy}, worker {rank}: a sum is wrong")
        return [[reports[number, rank] for rank in range(WORKERS)] for number in range(len(trainings))], repeated

    def counter(self, name, counter):
        answer = subprocess.run([self.options.build / "apps/ctl/mercuryctl", "--socket", f"{self.folder / name}.sock", "stats",
                                 "--json"], capture_output=True, text=True, check=True)
        return sum(engine["counters"].get(counter, 0) for engine in json.loads(answer.stdout)["engines"])

    def replay(self, *arguments):
        return [self.options.build / "benchmarks/emulation/rival_replay", *arguments,
                "--iterations", self.options.iterations, "--warmup", 1]

    def gloo(self, trace):
        store = self.folder / "gloo"
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
        output = self.run_all([(f"w{rank}", self.replay("--trace", trace, "--library", "gloo", "--rank", rank, "--size", WORKERS,
                                                        "--store", store, "--address", self.lab[f"w{rank}"].ip), {})
                               for rank in range(WORKERS)])
        return json.loads(output[0])["iterations_s"]

    def pslite(self, trace):
        """MXNet's way with it: workers and servers as Mercury's, and its scheduler on the first server."""
        roles = [("s0", "scheduler"), *((f"s{i}", "server") for i in range(SERVERS)), *((f"w{i}", "worker") for i in range(WORKERS))]
        environment = {"DMLC_PS_ROOT_URI": self.lab["s0"].ip, "DMLC_PS_ROOT_PORT": "9191", "DMLC_INTERFACE": "eth0",
                       "DMLC_NUM_WORKER": str(WORKERS), "DMLC_NUM_SERVER": str(SERVERS)}
        outputs = self.run_all([(name, self.replay("--trace", trace, "--library", "ps-lite"), {**environment, "DMLC_ROLE": role})
                                for name, role in roles])
        return json.loads("".join(outputs))["iterations_s"]

    def mpi(self, trace):
        """mpirun on the first worker; the others are other hosts to it, reached by entering their namespace."""
        agent = self.folder / "agent"
        hosts = " ".join(f"{self.lab[f'w{i}'].ip}) ns={self.lab[f'w{i}'].ns} name=w{i};;" for i in range(WORKERS))
        agent.write_text(f'#!/bin/sh\ncase $1 in {hosts} esac\nshift\n'
                         'exec nsenter --net=/run/netns/$ns unshare --uts sh -c "hostname $name; $*"\n', encoding="utf-8")
        agent.chmod(0o755)
        addresses = ",".join(self.lab[f"w{rank}"].ip for rank in range(WORKERS))
        words = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "--mca",
                 "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "--bind-to", "none", "-H", addresses, "-n",
                 WORKERS, *self.replay("--trace", trace, "--library", "mpi")]
        command = " ".join(str(word) for word in words)
        output = self.run_all([("w0", ["unshare", "--uts", "sh", "-c", f"hostname w0; exec {command}"], {})])
        return json.loads(output[0].splitlines()[-1])["iterations_s"]


def ask(options, *arguments):
    """mercury-sim, of the same links, which repay idle time as the shaper does."""
    answer = subprocess.run(
        [options.build / "apps/sim/mercury-sim", *arguments, "--bandwidth", f"{options.mbit}Mbps", "--workers", str(WORKERS),
         "--servers", str(SERVERS), "--mtu", str(options.mtu), "--json", "-"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise LabError(f"mercury-sim: {answer.stderr.strip()}")
    return json.loads(answer.stdout)


def write_json(path, data):
    """Whole or not at all: a run may be interrupted at any time."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(data, indent=1), encoding="utf-8")
    unfinished.rename(path)


def middle(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def measure(options, hosts, model):
    """All in turns, so that a machine that slows down slows all."""
    gbps = options.gbps or GBPS[model]
    factor = gbps * 1000 / options.mbit
    trace = stretched(model, factor, hosts.folder)
    ways = {policy: lambda policy=policy: hosts.mercury(trace, policy) for policy in options.policies}
    ways |= {f"{RIVALS[other]}, kernel TCP": lambda other=other: (getattr(hosts, other)(trace), None) for other in options.others}
    seconds = {name: [] for name in ways}
    repeated = {name: 0 for name in ways}
    for run, (name, way) in itertools.product(range(options.runs), ways.items()):
        took, again = way()
        seconds[name] += took
        repeated[name] += again or 0
        write_json(options.out / "emulation-runs.json", {
            "model": model, "mbit": options.mbit, "gbps": gbps, "factor": factor, "retransmits": repeated,
            "iterations_s": seconds})
        print(f"  {model}, run {run + 1} of {options.runs}: {name}: {middle(took):.3f} s", file=sys.stderr, flush=True)
    optimum = ask(options, "model", "--trace", trace, "--policy", "mercury")["optimum_s"]
    print(f"\n{model}: {scaled(options.mbit, gbps)}\n"
          f"{'':22}{'measured':>10}{'spread':>9}{'simulated':>11}{'apart':>8}{'repeated':>10}")
    rows = []
    for name, all_s in seconds.items():
        sim = None
        if name in options.policies:
            sim = ask(options, "--quiet", "--trace", trace, "--policy", name, "--delay", "25us", "--queue", f"{options.queue}B",
                      "--bucket", f"{hosts.lab.bucket_bytes}B", "--iterations", "3")["iteration_s"]
        took = middle(all_s)
        rows.append({"name": name, "iteration_s": took, "iterations_s": all_s, "retransmits": repeated[name], "simulated_s": sim})
        beside = f"{sim:9.3f} s{took / sim - 1:+8.1%}{repeated[name]:10}" if sim else ""
        print(f"{name:22}{took:8.3f} s{(max(all_s) - min(all_s)) / took:9.0%}{beside}")
    print(f"{'optimum (Theorem 1)':22}{'':19}{optimum:9.3f} s", flush=True)
    return {"model": model, "mbit": options.mbit, "gbps": gbps, "factor": factor, "optimum_s": optimum, "rows": rows}


@contextlib.contextmanager
def computing():
    """A program for each core that wants all of it."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def verdict(result):
    rows = [row for row in result["rows"] if row["simulated_s"]]
    apart = max((abs(row["iteration_s"] / row["simulated_s"] - 1) for row in rows), default=0)
    swapped = [f"{a['name']} and {b['name']}" for a, b in itertools.combinations(rows, 2)
               if (a["simulated_s"] - b["simulated_s"]) * (a["iteration_s"] - b["iteration_s"]) < 0
               and abs(a["simulated_s"] / b["simulated_s"] - 1) > TOLERANCE]
    print(f"{result['model']}: {apart:.1%} apart at most; order {'of ' + ', '.join(swapped) + ' differs' if swapped else 'as simulated'}")
    return apart <= TOLERANCE and not swapped


def plot(result, out):
    rows = result["rows"]
    chart = Figure()
    series = chart.panel("", "iteration, s", "", kind="rows")
    for what, key in (("measured", "iteration_s"), ("simulated", "simulated_s")):
        chosen = [row for row in rows if row[key]]
        series[what] = {"x": [row["name"] for row in chosen], "y": [row[key] for row in chosen]}
    chart.panels[0]["line"] = ("least possible", result["optimum_s"])
    save(chart, f"{result['model']}, {WORKERS} + {SERVERS}, {scaled(result['mbit'], result['gbps'])}",
         out / f"emulation-{result['model']}.svg")


def scaled(mbit, gbps):
    """What a plot says of its time axis."""
    return f"{mbit} Mb/s for {gbps:g} Gb/s, times x {gbps * 1000 / mbit:g}"


def save(figure, title, path):
    if not draw(figure.panels, title, path):
        print("no plot: apt-get install python3-matplotlib")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "vgg16"], choices=GBPS)
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--others", nargs="*", default=["gloo", "mpi"], choices=RIVALS)
    parser.add_argument("--mbit", type=int, default=500, help="of every link [%(default)s]")
    parser.add_argument("--gbps", type=float, help=f"what it stands for [{', '.join(f'{m} {g}' for m, g in GBPS.items())}]")
    parser.add_argument("--mtu", type=int, default=9000, help="[%(default)s]")
    parser.add_argument("--queue", type=int, default=1 << 20, help="bytes before each link [%(default)s]")
    parser.add_argument("--bucket", type=int, help="bytes that a link which was idle carries at once; at least two frames [2 ms]")
    parser.add_argument("--device", default="af_packet", choices=["af_packet", "af_xdp"])
    parser.add_argument("--scheduling", default="urgent", choices=["normal", "urgent", "realtime"],
                        help="of Mercury's engines, as engine.scheduling [%(default)s]")
    parser.add_argument("--busy", action="store_true", help="beside programs that compute, one for each core")
    parser.add_argument("--runs", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--iterations", type=int, default=3, help="measured in each run, after one of warm-up [%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "emulation", help="[%(default)s]")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--no-verdict", action="store_true", help="status 0 whatever the times are: the sums are right")
    options = parser.parse_args()
    if min(options.mbit, options.iterations, options.runs) < 1 or (options.gbps or 1) <= 0:
        parser.error("--mbit, --gbps, --iterations and --runs: above 0")
    if options.bucket is not None and options.bucket < 2 * (options.mtu + 14):
        parser.error("--bucket: at least two frames")
    options.build, options.verify = options.build.resolve(), True
    wanted = ["apps/stackd/mercury-stackd", "apps/replay/mercury-replay", "apps/sim/mercury-sim"]
    wanted += ["benchmarks/emulation/rival_replay"] if options.others else []
    for program in wanted:
        if not (options.build / program).is_file():
            parser.error(f"no {options.build / program}: tools/build {program} makes it")
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("emulate.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77 if options.no_verdict else 1
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    good, results = True, []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        hosts = Hosts(options, folder, stack)
        if options.busy:
            stack.enter_context(computing())
        for model in options.models:
            results.append(measure(options, hosts, model))
            write_json(options.out / "emulation.json", results)
            good = (verdict(results[-1]) and good) or options.no_verdict
            if not options.no_plot:
                plot(results[-1], options.out)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as why:
        sys.exit(f"emulate.py: {why}")
    except KeyboardInterrupt:
        sys.exit("emulate.py: interrupted; emulation.json has the models that are done, emulation-runs.json the runs of the last")
