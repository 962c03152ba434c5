#!/usr/bin/python3
"""The policies on real ports, beside the simulator, Gloo, MPI and ps-lite: what an iteration takes.

    sudo benchmarks/emulation/emulate.py                          ResNet-50 and VGG-16, 25 minutes
    sudo benchmarks/emulation/emulate.py --models resnet50 --policies mercury wfbp p3:startup=0 --others
    sudo benchmarks/emulation/emulate.py --models resnet50 --policies mercury --busy --scheduling realtime

Two workers and two servers are virtual hosts, each with a link of --mbit both ways. Each runs a
mercury-stackd over a DPDK port; mercury-replay computes in time and exchanges real payloads, which
are verified. Two cores carry no 10 Gb/s, so the links are slower by a factor, and computing and the
start-ups of policies take longer by the same: factor and start-ups are printed. mercury-sim gets the
same trace, policies and links, with their token buckets ("simulated") and without ("on cables"). A
policy is written as for mercury-sim, knobs included; times in it are those of the real world.

Gloo and Open MPI reduce between the two workers, ps-lite has the servers too, all over kernel TCP, on
the same links in the same run, in the scheduling class of Mercury's engines. Gradients are fused as
their users have it (rival_replay.cc), and the forward pass waits for all sums, as the step() of DDP and
Horovod does. With gloo-own and mpi-own a layer waits for its own sum only, which no framework does over
them; gloo-unfused and mpi-unfused are that, and reduce each tensor by itself. What
these libraries and the kernel take per message is not stretched, which is to their advantage.
ps-lite is no package: benchmarks/emulation/build-pslite builds it.

Each runs --runs times, in turns, so that a machine that becomes slower is slower for all. Printed are
medians of these runs with the least and the most of them. Two policies are told apart where these ranges
do not overlap, in five runs or more.

Needs root, and `meson compile -C build`. Leaves emulation.json and emulation-MODEL.svg in --out, and
emulation-runs.json, which an interrupted run has up to its last finished row.
Status: 0; 1 when something cannot be run, or emulation and simulator are more than a tenth apart or have
two policies that can be told apart in another order; 2 for a wrong command line.
"""
import argparse
import contextlib
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

from stretch import ROOT, stretched_policy, stretched_trace

sys.path.insert(0, str(ROOT / "tools"))
import recording  # noqa: E402
from netlab import Lab, LabError  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))
from report import Figure, draw  # noqa: E402

POLICIES = ["wfbp", "byteps", "bytescheduler", "p3", "mercury-fifo", "mercury"]
# What the links stand for: where exchanging takes about as long as computing.
GBPS = {"resnet50": 5, "vgg16": 10, "vgg19": 10, "alexnet": 10, "bert-base": 10}
RIVALS = {"gloo": "Gloo, as under DDP", "gloo-own": "Gloo, waiting by layer", "gloo-unfused": "Gloo, waiting by layer, unfused",
          "mpi": "Open MPI, as under Horovod", "mpi-own": "Open MPI, waiting by layer",
          "mpi-unfused": "Open MPI, waiting by layer, unfused", "pslite": "ps-lite"}
HOROVOD_CYCLE_MS = 1  # HOROVOD_CYCLE_TIME
WORKERS, SERVERS = 2, 2
TOLERANCE = 0.1
ENOUGH_RUNS = 5  # to tell two policies apart by ranges: by chance they part in 2 of 252 cases
LIMIT_S = 1800  # of one program
# For the time that all will take: daemons, connections and checking, and other libraries beside the least possible.
AROUND_S, RIVAL_TIMES = 3, 1.5
# Of the token buckets, in frames. A link that was idle carries so much at once, as no cable does: it repays P3 the pauses
# between its partitions. With two frames links of 500 Mb/s lose 5 % of their rate to the grain of timers.
BUCKET_FRAMES = 4
FIELDS = ["model", "policy", "link", "factor", "scheduling", "run", "iteration_s", "simulated_s", "cable_s"]


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

    def __init__(self, options, folder, stack, workers=WORKERS, servers=SERVERS):
        """servers: how many hosts of their own; 0: the workers' hosts serve."""
        self.options, self.folder, self.stack = options, folder, stack
        self.workers = [f"w{i}" for i in range(workers)]
        self.servers = [f"s{i}" for i in range(servers)] or self.workers
        self.names = list(dict.fromkeys(self.workers + self.servers))
        self.mbit = dict.fromkeys(self.names, options.mbit)  # that their daemons know
        self.cpu_s = {}  # (host, "engines" or "program"): while programs ran
        self.run_s = 0  # how long the last ones did
        self.lab = stack.enter_context(
            Lab(f"em{os.getpid()}", self.names, rate_mbit=options.mbit, mtu=options.mtu, queue_bytes=options.queue,
                bucket_bytes=options.bucket))
        self.rendezvous = ",".join(f"{self.lab[name].ip}:7470" for name in self.servers)

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
            f'[engine]\nscheduling = "{self.options.scheduling}"\n[jobs]\nopen = true\n[attach]\nsocket = "{base}.sock"\n', encoding="utf-8")
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
        options, cases = self.options, [*itertools.product(enumerate(trainings), range(len(self.workers)))]
        report = {(number, rank): self.folder / f"report{number}-{rank}.json" for (number, _), rank in cases}
        with self.daemons() as daemons:
            for name, daemon in daemons.items():
                self.count_cpu(name, "engines", -cpu_seconds(daemon))
            self.run_all([(f"w{rank}",
                           [options.build / "apps/replay/mercury-replay", "--trace", one.trace, "--job", f"job{number}",
                            "--rank", rank, "--workers", len(self.workers), "--servers", len(self.servers), "--rendezvous", self.rendezvous,
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
        return [[reports[number, rank] for rank in range(len(self.workers))] for number in range(len(trainings))], repeated

    def counter(self, name, counter):
        answer = subprocess.run([self.options.build / "apps/ctl/mercuryctl", "--socket", f"{self.folder / name}.sock", "stats",
                                 "--json"], capture_output=True, text=True, check=True)
        return sum(engine["counters"].get(counter, 0) for engine in json.loads(answer.stdout)["engines"])

    def rival(self, name, trace, factor):
        """Iterations over another library, one of RIVALS."""
        library, _, how = name.partition("-")
        words = ["--fuse", 0] if how == "unfused" else ["--cycle", HOROVOD_CYCLE_MS * factor] if library == "mpi" else []
        words += ["--wait", "all"] if library != "pslite" and not how else []
        return getattr(self, library)(trace, words)

    def replay(self, *arguments):
        words = ["--scheduling", self.options.scheduling] if self.options.others_scheduling == "same" else []
        return [self.options.build / "benchmarks/emulation/rival_replay", *arguments, *words,
                "--iterations", self.options.iterations, "--warmup", 1]

    def gloo(self, trace, words):
        store = self.folder / "gloo"
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
        output = self.run_all([(name, self.replay("--trace", trace, "--library", "gloo", "--rank", rank, "--size", len(self.workers),
                                                  "--store", store, "--address", self.lab[name].ip, *words), {})
                               for rank, name in enumerate(self.workers)])
        return json.loads(output[0])["iterations_s"]

    def pslite(self, trace, words):
        """MXNet's way with it: workers and servers as Mercury's, and its scheduler on the first server."""
        first = self.servers[0]
        roles = [(first, "scheduler"), *((name, "server") for name in self.servers), *((name, "worker") for name in self.workers)]
        environment = {"DMLC_PS_ROOT_URI": self.lab[first].ip, "DMLC_PS_ROOT_PORT": "9191", "DMLC_INTERFACE": "eth0",
                       "DMLC_NUM_WORKER": str(len(self.workers)), "DMLC_NUM_SERVER": str(len(self.servers))}
        outputs = self.run_all([(name, self.replay("--trace", trace, "--library", "ps-lite", *words), {**environment, "DMLC_ROLE": role})
                                for name, role in roles])
        return json.loads("".join(outputs))["iterations_s"]

    def mpi(self, trace, words):
        """mpirun on the first worker; the others are other hosts to it, reached by entering their namespace."""
        agent = self.folder / "agent"
        hosts = " ".join(f"{self.lab[name].ip}) ns={self.lab[name].ns} name={name};;" for name in self.workers)
        agent.write_text(f'#!/bin/sh\ncase $1 in {hosts} esac\nshift\n'
                         'exec nsenter --net=/run/netns/$ns unshare --uts sh -c "hostname $name; $*"\n', encoding="utf-8")
        agent.chmod(0o755)
        addresses = ",".join(self.lab[name].ip for name in self.workers)
        words = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "--mca",
                 "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "--bind-to", "none", "-H", addresses, "-n",
                 len(self.workers), *self.replay("--trace", trace, "--library", "mpi", *words)]
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


def spread(values, form="{:.3f}"):
    """Median [least, most]."""
    return f"{form} [{form}, {form}]".format(middle(values), min(values), max(values))


def simulate(options, trace, policy, bucket_bytes=None):
    """On links with such a bucket; without it on cables."""
    return ask(options, "--quiet", "--trace", trace, "--policy", policy, "--delay", "25us", "--queue", f"{options.queue}B",
               *(["--bucket", f"{bucket_bytes}B"] if bucket_bytes else []), "--iterations", "3")["iteration_s"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def in_minutes(seconds):
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"


def run_in_turns(ways, runs, expected_s, after):
    """Calls each way so many times, all once before any twice; after(run, name, what it returned)."""
    say(f"{runs} runs of each of {len(ways)} in turns, about {in_minutes(expected_s)}")
    begin_s = time.monotonic()
    for run in range(runs):
        for name, way in ways.items():
            after(run, name, way())
        left_s = (time.monotonic() - begin_s) / (run + 1) * (runs - run - 1)
        say(f"round {run + 1} of {runs}; {in_minutes(left_s)} left")


class Model:
    """One model under all that it is asked under, and what came of it."""

    def __init__(self, options, hosts, model):
        self.options, self.hosts, self.model = options, hosts, model
        self.gbps = options.gbps or GBPS[model]
        self.factor = self.gbps * 1000 / options.mbit
        self.trace = stretched_trace(model, self.factor, hosts.folder)
        self.policies = {text: stretched_policy(text, self.factor) for text in options.policies}
        self.seconds = {name: [] for name in (*options.policies, *options.others)}  # of each run
        self.repeated = {name: 0 for name in options.policies}
        self.optimum_s = ask(options, "model", "--trace", self.trace, "--policy", "mercury")["optimum_s"]
        self.simulated_s = {text: simulate(options, self.trace, policy, hosts.lab.bucket_bytes)
                            for text, policy in self.policies.items()}
        self.cable_s = {text: simulate(options, self.trace, policy) for text, policy in self.policies.items()}

    def measure(self):
        ways = {text: functools.partial(self.hosts.mercury, self.trace, policy) for text, policy in self.policies.items()}
        ways |= {other: functools.partial(self.other, other) for other in self.options.others}
        a_round_s = sum(AROUND_S + (1 + self.options.iterations) * self.simulated_s.get(name, RIVAL_TIMES * self.optimum_s)
                        for name in ways)
        print(f"\n{self.model}: {scaled(self.options.mbit, self.gbps)}, {start_ups(self.policies)}\n"
              f"engines: scheduling {self.options.scheduling}; other libraries: {self.options.others_scheduling}", flush=True)
        run_in_turns(ways, self.options.runs, self.options.runs * a_round_s, self.keep)

    def other(self, name):
        return self.hosts.rival(name, self.trace, self.factor), 0

    def keep(self, run, name, answer):
        took, again = answer
        self.seconds[name].append(middle(took))
        if name in self.repeated:
            self.repeated[name] += again
        write_json(self.options.out / "emulation-runs.json", self.about() | {
            "retransmits": self.repeated, "iterations_s": self.seconds})
        say(f"  {self.model}, run {run + 1} of {self.options.runs}: {RIVALS.get(name, name)}: {middle(took):.3f} s")

    def about(self):
        return {"model": self.model, "mbit": self.options.mbit, "gbps": self.gbps, "factor": self.factor}

    def result(self):
        rows = [{"name": RIVALS.get(name, name), "way": name, "policy": self.policies.get(name), "iteration_s": middle(all_s),
                 "iterations_s": all_s, "retransmits": self.repeated.get(name), "simulated_s": self.simulated_s.get(name),
                 "cable_s": self.cable_s.get(name)}
                for name, all_s in self.seconds.items()]
        return self.about() | {"optimum_s": self.optimum_s, "rows": rows}

    def records(self):
        """Rows of docs/records/emulation.csv."""
        link = f"{self.options.mbit}Mbps for {self.gbps:g}Gbps"
        for name, all_s in self.seconds.items():
            scheduling = self.options.scheduling
            if name in self.options.others and self.options.others_scheduling != "same":
                scheduling = self.options.others_scheduling
            for run, seconds in enumerate(all_s):
                beside = [f"{of[name]:.4f}" if name in of else "" for of in (self.simulated_s, self.cable_s)]
                yield dict(zip(FIELDS, (self.model, name, link, f"{self.factor:g}", scheduling, run + 1, f"{seconds:.4f}", *beside)))


def start_ups(policies):
    """What was made of them, in words."""
    made = {text: policy.partition("startup=")[2].partition(",")[0] for text, policy in policies.items() if "startup=" in policy}
    return "start-ups: " + (", ".join(f"{text} {time}" for text, time in made.items()) or "none")


def show(result):
    print(f"\n{result['model']}: {scaled(result['mbit'], result['gbps'])}\n"
          f"{'an iteration, s':30}{'measured':>27}{'simulated':>12}{'apart':>8}{'on cables':>12}{'repeated':>10}")
    for row in result["rows"]:
        sim = row["simulated_s"]
        beside = f"{sim:12.3f}{row['iteration_s'] / sim - 1:+8.1%}{row['cable_s']:12.3f}{row['retransmits']:10}" if sim else ""
        print(f"{row['name']:30}{spread(row['iterations_s']):>27}{beside}")
    print(f"{'optimum (Theorem 1)':30}{'':27}{result['optimum_s']:12.3f}", flush=True)


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


def order(rows):
    """Of each pair whose ranges do not overlap, the faster first: (faster, slower, whether it is simulated so); and the
    pairs whose ranges do."""
    parted, alike = [], []
    for pair in itertools.combinations(rows, 2):
        faster, slower = sorted(pair, key=lambda row: row["iteration_s"])
        if max(faster["iterations_s"]) < min(slower["iterations_s"]):
            parted.append((faster["name"], slower["name"], faster["simulated_s"] <= slower["simulated_s"]))
        else:
            alike.append((faster["name"], slower["name"]))
    return parted, alike


def verdict(result):
    rows = [row for row in result["rows"] if row["simulated_s"]]
    apart = max((abs(row["iteration_s"] / row["simulated_s"] - 1) for row in rows), default=0)
    print(f"{result['model']}: {apart:.1%} apart at most")
    runs = len(rows[0]["iterations_s"]) if rows else 0
    if runs < ENOUGH_RUNS:
        print(f"order: not judged, which takes {ENOUGH_RUNS} runs")
        return apart <= TOLERANCE
    parted, alike = order(rows)
    same = [f"{faster} before {slower}" for faster, slower, simulated in parted if simulated]
    swapped = [f"{faster} before {slower}" for faster, slower, simulated in parted if not simulated]
    for what, pairs in (("as simulated", same), ("NOT AS SIMULATED", swapped),
                        ("not distinguishable", [f"{a} and {b}" for a, b in alike])):
        if pairs:
            print(f"order, {what}: {'; '.join(pairs)}")
    return apart <= TOLERANCE and not swapped


def plot(result, out):
    rows = result["rows"]
    chart = Figure()
    series = chart.panel("", "iteration, s", "", kind="rows")
    for what, key in (("measured", "iteration_s"), ("simulated", "simulated_s")):
        chosen = [row for row in rows if row[key]]
        series[what] = {"x": [row["name"] for row in chosen], "y": [row[key] for row in chosen]}
        if what == "measured":
            series[what]["range"] = [[row[key] - min(row["iterations_s"]) for row in chosen],
                                     [max(row["iterations_s"]) - row[key] for row in chosen]]
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
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="POLICY",
                        help=f"as mercury-sim's --policy, such as p3:startup=0 [{' '.join(POLICIES)}]")
    parser.add_argument("--others", nargs="*", default=["gloo", "mpi"], choices=RIVALS)
    parser.add_argument("--mbit", type=int, default=500, help="of every link [%(default)s]")
    parser.add_argument("--gbps", type=float, help=f"what it stands for [{', '.join(f'{m} {g}' for m, g in GBPS.items())}]")
    parser.add_argument("--mtu", type=int, default=9000, help="[%(default)s]")
    parser.add_argument("--queue", type=int, default=1 << 20, help="bytes before each link [%(default)s]")
    parser.add_argument("--bucket", type=int,
                        help=f"bytes that a link which was idle carries at once; at least two frames [{BUCKET_FRAMES} frames]")
    parser.add_argument("--device", default="af_packet", choices=["af_packet", "af_xdp"])
    parser.add_argument("--scheduling", default="urgent", choices=["normal", "urgent", "realtime"],
                        help="of Mercury's engines, as engine.scheduling [%(default)s]")
    parser.add_argument("--others-scheduling", default="same", choices=["same", "normal"],
                        help="of the other libraries' processes: as the engines, or as they start [%(default)s]")
    parser.add_argument("--busy", action="store_true", help="beside programs that compute, one for each core")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns [%(default)s]")
    parser.add_argument("--iterations", type=int, default=1, help="measured in each run, after one of warm-up [%(default)s]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for each run, as in docs/records/emulation.csv")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "emulation", help="[%(default)s]")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--no-verdict", action="store_true", help="status 0 whatever the times are: the sums are right")
    options = parser.parse_args()
    if min(options.mbit, options.iterations, options.runs) < 1 or (options.gbps or 1) <= 0:
        parser.error("--mbit, --gbps, --iterations and --runs: above 0")
    if options.bucket is not None and options.bucket < 2 * (options.mtu + 14):
        parser.error("--bucket: at least two frames")
    options.bucket = options.bucket or BUCKET_FRAMES * (options.mtu + 14)
    for policy in options.policies:
        try:
            stretched_policy(policy, 1)
        except ValueError as error:
            parser.error(f"--policies: {error}")
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
    if options.record:
        recording.check(options.record, FIELDS)
    good, results = True, []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        hosts = Hosts(options, folder, stack)
        if options.busy:
            stack.enter_context(computing())
        for name in options.models:
            model = Model(options, hosts, name)
            model.measure()
            results.append(model.result())
            show(results[-1])
            write_json(options.out / "emulation.json", results)
            if options.record:
                recording.append(options.record, [*model.records()])
            good = (verdict(results[-1]) and good) or options.no_verdict
            if not options.no_plot:
                plot(results[-1], options.out)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, recording.RecordError) as why:
        sys.exit(f"emulate.py: {why}")
    except KeyboardInterrupt:
        sys.exit("emulate.py: interrupted; emulation.json has the models that are done, emulation-runs.json the runs of the last")
