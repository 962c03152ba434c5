#!/usr/bin/env python3
"""Goodput of Mercury over each port, beside a loop that moves the same payload with no protocol.

    sudo benchmarks/goodput/goodput.py                    all settings, 5 interleaved runs each
    benchmarks/goodput/goodput.py --settings uring        without root
    benchmarks/goodput/goodput.py --quick                 a smoke test: one short run over io_uring

Mercury is one program that pushes and pulls through its host's mercury-stackd, which exchanges with
the mercury-stackd of another host. For each setting and working set, reference loop and Mercury take
turns (so that a machine that slows down slows both), and dpdk-testpmd's flowgen, which touches no payload, is printed beside.
The loop fetches ahead as Mercury does, where that is faster. "checked" is the loop that checks a CRC-32C, too: what the check alone costs is in it.
Bytes per second are payload, one direction of two that are busy at once. Spread is (largest -
smallest) / median; the ratio is the median of the runs' own. With --pin each end has a core of its
own, for its loop, or its engine and its program, which have the same priority there, as nothing else
wants the core (engine.scheduling = "normal"); otherwise nothing is pinned, as in the daemon's default
configuration. "cores ns" is how long a cache line takes from one core to the other and back,
median over the readings before and after each run: a virtual machine's cores may be neighbours now
and far apart a second later, which changes either program by more than two. With --steady only those
pairs of runs count that had the cores equally far apart before, between and after; each distance has a
row of its own, with how many of the pairs that were tried were there. With --seals the job has a secret, and
instead of the reference loop Mercury itself is the first of each pair, without authenticated frames; the second
has them ("--seals encrypted": and payloads are encrypted), and no loop runs. With --before BUILD the first of each pair is
the Mercury of another build directory, such as that of an older commit, and no loop runs either; every second pair goes the
other way around.

With --payload 64 frames carry so much, and what counts is how many: millions with payload that each end receives in a
second, as many as it sends. Mercury is then one engine at each end with its program's calls on the same thread
(engine_loop): each tensor is one frame, and so is its sum. "all frames" is what the worker's engine receives and sends in a second by
its port's counters, acknowledgements too, which is what one core does with --pin. The loop's frames have the same payload;
dpdk-testpmd's are as long as Mercury's.
"""
import argparse
import contextlib
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import built  # noqa: E402
import recording  # noqa: E402
from netlab import Lab, LabError  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402

# 3,502: what fits a page beside DPDK's own structures (kXdpMaxMtu of the ethdev port).
SETTINGS = {
    "memif-1500": ("memif", 1500),
    "memif-9000": ("memif", 9000),
    "af_xdp-1500": ("af_xdp", 1500),
    "af_xdp-3502": ("af_xdp", 3502),
    "af_packet-9000": ("af_packet", 9000),
    "uring": ("uring", 9000),
}
JOB, JOB_SECRET = "goodput", "of the benchmark"
WORKING_SETS = {"1MB": 10**6, "256MB": 256 * 10**6}
# Ethernet, IPv4 and UDP, which a testpmd frame has too but which are no payload.
FRAME_OVERHEAD_BYTES = 14 + 20 + 8
LOOP_HEAD_BYTES, DATAGRAM_HEADER_BYTES = 16, 48  # of the loop's frames, and of Mercury's (transport/wire/header.h)
START_SECONDS = 30  # for programs to start and meet, beside what they measure


TRIES_PER_STEADY_RUN = 5
# Two readings of one machine differ by less, hyper-threads of one core and two cores of one cache by more.
SAME_ROUND_TRIP, SAME_SPEED = 1.4, 0.2


class Failed(RuntimeError):
    pass


class Programs:
    """Ends the programs that it started, whatever happens."""

    def __init__(self):
        self.running = []

    def start(self, host, command, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        popen = host.popen if host else subprocess.Popen
        process = popen([str(part) for part in command], **options)
        self.running.append(process)
        return process

    def finish(self, process, seconds):
        """What it printed. Its standard input, where it has one, ends now."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{process.args[0]}: did not end in {seconds} s") from late
        self.running.remove(process)
        if process.returncode != 0:
            raise Failed(f"{process.args[0]}: {(err or '').strip() or f'exit status {process.returncode}'}")
        return out

    def first_line(self, process):
        """Waits for it; the time limit is the program's own."""
        line = process.stdout.readline()
        if not line:
            self.finish(process, START_SECONDS)
            raise Failed(f"{process.args[0]}: printed nothing")
        return line

    def end_all(self):
        for process in self.running:
            process.kill()
        for process in self.running:
            process.communicate()
        self.running.clear()


class Place:
    """Where both ends of one setting run, and how each is told its port."""

    def __init__(self, kind, mtu, stack):
        self.kind, self.mtu, self.runs = kind, mtu, 0
        self.hosts = (None, None)
        if kind in ("af_xdp", "af_packet"):
            lab = stack.enter_context(Lab(f"goodput{os.getpid()}", ["left", "right"], mtu=mtu))
            self.hosts = tuple(lab.hosts)
        elif kind == "memif":
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-goodput-"))

    def next_run(self):
        """A socket that the last run's driver or kernel is still closing is not met again."""
        self.runs += 1

    def arguments(self, side):
        """Port options of side 0 or 1, and the option that names the other side."""
        if self.kind == "uring":
            port = 20000 + (os.getpid() * 64 + self.runs) % 10000
            own, peer = f"127.0.0.{side + 1}:{port}", f"127.0.0.{2 - side}:{port}"
            return ["--port", "uring", "--address", own, "--mtu", self.mtu], ["--peer", peer]
        if self.kind == "memif":
            own = ["--port", f"memif:{self.folder}/{self.runs}", "--mtu", self.mtu,
                   "--address", f"10.78.0.{side + 1}/24"]
            return own + (["--memif-server"] if side == 0 else []), ["--peer", f"10.78.0.{2 - side}"]
        return (["--port", f"{self.kind}:{self.hosts[side].interface}", "--mtu", self.mtu],
                ["--peer", self.hosts[1 - side].ip])

    def daemon_port(self, side):
        """The [port] section of the configuration of a daemon on side 0 or 1."""
        if self.kind == "uring":
            own, _ = self.arguments(side)
            address, port = own[3].split(":")
            return f'kind = "uring"\naddress = ["{address}/8"]\nudp_port = {port}\nmtu = {self.mtu}\n'
        if self.kind == "memif":
            return (f'device = "memif"\nmemif_socket = "{self.folder}/{self.runs}"\n'
                    f'memif_role = "{"client" if side else "server"}"\n'
                    f'address = ["10.78.0.{side + 1}/24"]\nmtu = {self.mtu}\n')
        host = self.hosts[side]
        return (f'device = "{self.kind}"\ninterface = "{host.interface}"\nmtu = {self.mtu}\n'
                f'address = ["{host.ip}/24"]\n')

    def server_endpoint(self):
        if self.kind == "uring":
            return self.arguments(0)[0][3]
        return ("10.78.0.1" if self.kind == "memif" else self.hosts[0].ip) + ":7470"

    def testpmd_vdev(self, side):
        """Arguments as the ethdev port gives them to the same driver (config.cc)."""
        if self.kind == "memif":
            role = "client" if side else "server"
            buffer = -(-(self.mtu + 14) // 64) * 64
            return (f"net_memif0,role={role},socket={self.folder}/{self.runs},socket-abstract=no,"
                    f"bsize={buffer},rsize={min(int(math.log2(2_500_000 / buffer)), 10)}")
        if self.kind == "af_packet":
            slot = -(-(self.mtu + 14 + 96) // 512) * 512
            return (f"net_af_packet0,iface=eth0,qpairs=1,blocksz={slot * 8},framesz={slot},"
                    "framecnt=1024")
        return "net_af_xdp0,iface=eth0"


class Bench:
    def __init__(self, options, folder, build):
        build = pathlib.Path(build)
        self.folder = build / "benchmarks" / "goodput"
        self.stackd = build / "apps" / "stackd" / "mercury-stackd"
        self.ctl = build / "apps" / "ctl" / "mercuryctl"
        built.need(self.stackd, self.ctl, self.folder / "goodput_client")
        self.scratch = pathlib.Path(folder)
        self.seconds, self.payload, self.seals = options.seconds, options.payload, options.seals
        cores = sorted(os.sched_getaffinity(0))[:2]
        self.cores = cores if options.pin else []
        self.scheduling = 'scheduling = "normal"\n' if options.pin else ""
        self.distance_command = [str(part) for part in (self.folder / "core_distance", *cores)]
        self.session = f'[session]\nwindow = "{options.window}"\n' if options.window else ""
        self.programs = Programs()

    def core_distance(self):
        """None on a machine of one core."""
        if len(self.distance_command) < 3:
            return None
        return json.loads(subprocess.run(self.distance_command, check=True, capture_output=True, text=True).stdout)

    def checked(self, place, working_set):
        return self.reference(place, working_set, "--check")

    def loop(self, place, side, *command):
        """Starts it at that end; it ends when its input does."""
        pin = ["taskset", "--cpu-list", self.cores[side]] if self.cores else []
        return self.programs.start(place.hosts[side], [*pin, *command, "--seconds", self.seconds], stdin=subprocess.PIPE)

    def reference(self, place, working_set, *words):
        place.next_run()
        sides = []
        if self.payload:
            words = [*words, "--frame-bytes", self.payload + LOOP_HEAD_BYTES]
        for side in (0, 1):
            own, peer = place.arguments(side)
            sides.append(self.loop(place, side, self.folder / "reference_loop", "--hold", *own, *peer, "--working-set", working_set, *words))
        reports = [json.loads(self.programs.first_line(process)) for process in sides]
        for process in sides:
            self.programs.finish(process, START_SECONDS)
        report = dict(reports[0])
        report["verified"] = all(r["verified"] for r in reports)
        report["goodput_bytes_per_s"] = statistics.mean(r["goodput_bytes_per_s"] for r in reports)
        return report

    def engine(self, place, _):
        """--payload: the worker's report."""
        place.next_run()
        ends = [["--serve"], place.arguments(1)[1]]
        server, worker = [self.loop(place, side, self.folder / "engine_loop", *place.arguments(side)[0], *ends[side], "--payload", self.payload)
                          for side in (0, 1)]
        report = json.loads(self.programs.first_line(worker))
        for process in (server, worker):
            self.programs.finish(process, START_SECONDS)
        return report | {"frames_per_s": (report["received_frames"] + report["sent_frames"]) / self.seconds}

    def plain(self, place, working_set):
        return self.mercury(place, working_set, "off")

    def sealed(self, place, working_set):
        return self.mercury(place, working_set, self.seals)

    def daemon(self, place, side, authentication):
        path = self.scratch / f"{side}"
        path.with_suffix(".toml").write_text(
            f'[port]\nhugepages = "off"\n{place.daemon_port(side)}\n{self.session}'
            f'[engine]\ncores = {self.cores[side:side + 1]}\n{self.scheduling}'
            f'[attach]\nsocket = "{path}.sock"\n[jobs]\nopen = true\n{authentication}', encoding="utf-8")
        start = functools.partial(self.programs.start, place.hosts[side], [self.stackd, "--config", f"{path}.toml"],
                                  stdout=subprocess.DEVNULL)
        try:
            return start_ready(start, path.with_suffix(".ready"), START_SECONDS)
        except NotReady as error:
            self.programs.finish(error.process, START_SECONDS)  # raises with what it said, if it failed
            raise Failed(f"{self.stackd}: {error}") from None

    def counters(self, side):
        answer = subprocess.run([self.ctl, "--socket", self.scratch / f"{side}.sock", "stats", "--json"],
                                check=True, capture_output=True, text=True)
        return json.loads(answer.stdout)["engines"][0]["counters"]

    def mercury(self, place, working_set, authentication=None):
        place.next_run()
        says = ""
        if authentication:
            says = f'authentication = "{authentication}"\n[[job]]\nname = "{JOB}"\nsecret = "{JOB_SECRET}"\n'
        daemons = [self.daemon(place, side, says) for side in (0, 1)]
        pin = ["taskset", "--cpu-list", self.cores[1]] if self.cores else []
        client = self.programs.start(
            None, [*pin, self.folder / "goodput_client", "--server", place.server_endpoint(), "--working-set",
                   working_set, "--seconds", self.seconds, *(["--secret", JOB_SECRET] if authentication else [])],
            env={**os.environ, "MERCURY_SOCKET": str(self.scratch / "1.sock")})
        report = json.loads(self.programs.finish(client, self.seconds + 2 * START_SECONDS))
        counters = [self.counters(side) for side in (0, 1)]
        report["retransmits"] = sum(of["retransmits"] for of in counters)
        for counter, where in (("sessions_sealed", ("required", "encrypted")), ("sessions_encrypted", ("encrypted",))):
            if any((of.get(counter, 0) > 0) != (authentication in where) for of in counters):
                raise Failed(f"authentication = {authentication}, and {counter} is {counters[0][counter]}")
        for process in daemons:
            process.terminate()
        for process in daemons:
            process.wait(START_SECONDS)  # memif's driver may crash the one whose peer went first
            self.programs.running.remove(process)
        return report

    def testpmd(self, place):
        """What flowgen receives per second, in bytes as if its frames carried payload."""
        place.next_run()
        # On af_xdp testpmd's buffers leave less room than the port's: larger frames never leave.
        frame_bytes = min(place.mtu + 14, 3400) if place.kind == "af_xdp" else place.mtu + 14
        payload = frame_bytes - FRAME_OVERHEAD_BYTES
        if self.payload:
            payload = self.payload
            frame_bytes = FRAME_OVERHEAD_BYTES + DATAGRAM_HEADER_BYTES + payload
        sides = []
        for side in (0, 1):
            mbuf_bytes = 3840 if place.kind == "af_xdp" else 10240
            command = ["dpdk-testpmd", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "512",
                       "--no-pci", "--lcores", "0@(0-1),1@(0-1)",
                       "--vdev", place.testpmd_vdev(side), "--",
                       "--forward-mode=flowgen", "--stats-period=1", f"--mbuf-size={mbuf_bytes}",
                       "--total-num-mbufs=16384", f"--txpkts={frame_bytes}"]
            output = tempfile.TemporaryFile("w+")
            process = self.programs.start(place.hosts[side], command, stdin=subprocess.DEVNULL,
                                          stdout=output, stderr=subprocess.STDOUT)
            sides.append((process, output))
        time.sleep(self.seconds + 4)
        rates = []
        for process, _ in sides:
            process.send_signal(signal.SIGINT)
        for process, output in sides:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            output.seek(0)
            # The first is from before it started; the next, from before the other end did.
            rates += [int(rate) for rate in re.findall(r"Rx-pps: +(\d+)", output.read())[2:]]
            output.close()
        self.programs.end_all()
        rates = [rate for rate in rates if rate > 0]
        if not rates:
            return None
        return statistics.median(rates) * payload


def steady(distances):
    """Whether these readings of core_distance are of cores that stayed where they were."""
    trips = [d["round_trip_ns"] for d in distances]
    speeds = [d["both_at_once"] for d in distances]
    return max(trips) < SAME_ROUND_TRIP * min(trips) and max(speeds) - min(speeds) < SAME_SPEED


def place_of_cores(distance):
    if distance["both_at_once"] < 0.8:
        return "one core"
    return "one cache" if distance["round_trip_ns"] < 150 else "apart"


def beside(mercury, others):
    return [one / other for one, other in zip(mercury, others)]


def summary(values):
    values = list(values)
    middle = statistics.median(values)
    return {"median": middle, "spread": (max(values) - min(values)) / middle, "runs": values}


def measure(bench, before, name, options):
    """`before`: of another build, or None."""
    kind, mtu = SETTINGS[name]
    with contextlib.ExitStack() as stack:
        place = Place(kind, mtu, stack)
        for each in filter(None, (bench, before)):
            stack.callback(each.programs.end_all)  # before the hosts that they run on go
        testpmd = None
        if kind != "uring" and not options.no_testpmd:
            testpmd = bench.testpmd(place)
        for label in options.working_sets:
            pairs = Pairs(options.steady)
            distance = bench.core_distance()
            programs = {"without seals": bench.plain, "with seals": bench.sealed} if options.seals else \
                {"before": before.mercury, "Mercury": bench.mercury} if before else \
                {"checked": bench.checked, "reference": bench.reference, "Mercury": bench.engine if options.payload else bench.mercury}
            handled, what_counts = [], list(programs)[-1]
            for run in range(options.runs * (TRIES_PER_STEADY_RUN if options.steady else 1)):
                readings, rates_of, report_of = [distance], {}, {}
                # Every second pair of two builds goes the other way around.
                for what in reversed(programs) if before and run % 2 else programs:
                    report = report_of[what] = programs[what](place, WORKING_SETS[label])
                    if not report["verified"] or not report["goodput_bytes_per_s"] > 0:
                        raise Failed(f"nothing arrived, or what arrived was wrong: {report}")
                    rates_of[what] = report["goodput_bytes_per_s"]
                    readings.append(bench.core_distance())
                rates = [rates_of[what] for what in programs]
                report = report_of[what_counts]
                handled.append(report.get("frames_per_s"))
                distance = readings[-1]
                where = pairs.add(rates, readings)
                said = ", ".join(f"{what} {in_unit(rate, options.payload)}" for what, rate in zip(programs, rates))
                print(f"{name} {label} run {run + 1}: {said} ({report['retransmits']} frames sent again), cores {where}", file=sys.stderr)
                if options.steady and pairs.most() >= options.runs:
                    break
            for row in pairs.rows():
                yield {"setting": name, "working_set": label, "testpmd": testpmd} | row | (
                    {"engine_frames_per_s": summary(handled)} if options.payload else {})


class Pairs:
    """Runs of the reference and of Mercury just after it, by where the machine had the cores meanwhile. The checked loop's,
    where there is one, was just before both."""

    def __init__(self, only_steady):
        self.only_steady, self.tried, self.kept = only_steady, 0, {}

    def add(self, rates, readings):
        """What is said of this pair: rates of [the checked loop,] the reference and Mercury."""
        self.tried += 1
        if None in readings:  # a machine of one core
            where = "alone"
        else:
            where = place_of_cores(readings[1]) if steady(readings) else "moved"
        if not (self.only_steady and where == "moved"):
            self.kept.setdefault(where if self.only_steady else "any", []).append((rates, readings))
        return where

    def most(self):
        return max(map(len, self.kept.values()), default=0)

    def rows(self):
        if not self.kept:
            raise Failed(f"the cores moved during each of {self.tried} pairs of runs")
        for where, pairs in self.kept.items():
            # Of each run and the one just before it: a machine that slows down slows both.
            *checked, reference, mercury = zip(*(rates for rates, _ in pairs))
            ratios = beside(mercury, reference)
            row = {"cores": where, "reference": summary(reference), "mercury": summary(mercury), "ratios": ratios,
                   "ratio": statistics.median(ratios), "pairs": len(pairs), "tried": self.tried,
                   "distances": [readings for _, readings in pairs]}
            for each in checked:
                row |= {"checked": summary(each), "checked_ratio": statistics.median(beside(mercury, each))}
            yield row


def in_unit(rate, payload):
    """A rate in bytes a second, or, of frames with so much payload, in millions of these."""
    return f"{rate / payload / 1e6:.2f} M frames/s" if payload else f"{rate / 1e6:.0f} MB/s"


def print_row(row, payload):
    def number(rate):
        return f"{in_unit(rate, payload).split()[0]:>9}"

    def cell(part):
        return f"{number(part['median'])} {part['spread'] * 100:4.0f} %"
    testpmd = number(row["testpmd"]) if row["testpmd"] else f"{'-':>9}"
    checked = f"{cell(row['checked'])}{row['checked_ratio']:9.2f}" if "checked" in row else f"{'-':>16}{'-':>9}"
    known = [reading["round_trip_ns"] for pair in row["distances"] for reading in pair if reading]
    apart = f"{statistics.median(known):8.0f}" if known else f"{'-':>8}"
    print(f"{row['setting']:<16}{row['working_set']:>7}{cell(row['reference'])}"
          f"{cell(row['mercury'])}{row['ratio']:9.2f}{checked}{testpmd} {apart}  "
          f"{row['cores']}, {row['pairs']} of {row['tried']}"
          + (f"; all frames {row['engine_frames_per_s']['median'] / 1e6:.2f} M/s" if payload else ""), flush=True)


FIELDS = ["port", "mtu", "working_set_mb", "cores", "runs", "reference_mbps", "reference_spread_percent", "mercury_mbps",
          "mercury_spread_percent", "ratio", "testpmd_mbps"]
SEALS_FIELDS = ["what", "plain_mbps", "sealed_mbps", "ratio", "ns"]
BEFORE_FIELDS = ["before", "port", "mtu", "working_set_mb", "cores", "before_mbps", "mercury_mbps", "ratio"]


def records(row, seals=None, before=None):
    """A measured row in docs/records/goodput.csv, or each of its pairs: with --seals in seals.csv, beside another commit in before.csv."""
    if before:
        kind, mtu = SETTINGS[row["setting"]]
        for then, now, ratio in zip(row["reference"]["runs"], row["mercury"]["runs"], row["ratios"]):
            yield dict(zip(BEFORE_FIELDS, (before, kind, mtu, WORKING_SETS[row["working_set"]] // 10**6, row["cores"], f"{then / 1e6:.0f}",
                                           f"{now / 1e6:.0f}", f"{ratio:.4f}")))
        return
    if seals:
        what = row["setting"] + ("" if seals == "required" else f"-{seals}")
        for plain, sealed, ratio in zip(row["reference"]["runs"], row["mercury"]["runs"], row["ratios"]):
            yield dict(zip(SEALS_FIELDS, (what, f"{plain / 1e6:.0f}", f"{sealed / 1e6:.0f}", f"{ratio:.4f}", "")))
        return
    sides = [figure for side in (row["reference"], row["mercury"])
             for figure in (f"{side['median'] / 1e6:.0f}", f"{side['spread'] * 100:.0f}")]
    kind, mtu = SETTINGS[row["setting"]]
    yield dict(zip(FIELDS, (kind, mtu, WORKING_SETS[row["working_set"]] // 10**6, row["cores"], row["pairs"], *sides, f"{row['ratio']:.2f}",
                            f"{row['testpmd'] / 1e6:.0f}" if row["testpmd"] else "")))


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build", help="the build directory")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--working-sets", nargs="+", choices=WORKING_SETS,
                        default=list(WORKING_SETS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--window", help="the daemons' session.window, such as 1MiB")
    parser.add_argument("--json", help="where the numbers go [goodput.json; with --quick nowhere]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE",
                        help="append to this CSV file, such as docs/records/goodput.csv, with --seals seals.csv, with --before before.csv")
    parser.add_argument("--pin", action="store_true", help="a core for each end")
    parser.add_argument("--steady", action="store_true",
                        help=f"--pin, and --runs pairs that met cores that stayed where they were (of at most "
                             f"{TRIES_PER_STEADY_RUN} times as many)")
    parser.add_argument("--seals", nargs="?", const="required", choices=("required", "encrypted"),
                        help="Mercury without and with authenticated, or encrypted, frames")
    parser.add_argument("--before", type=pathlib.Path, metavar="BUILD", help="another build's Mercury instead of the loop")
    parser.add_argument("--payload", type=int, default=0, help="bytes: of frames, whose number counts then, through the engine alone")
    parser.add_argument("--no-testpmd", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one short run over io_uring; other options say otherwise")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(settings=["uring"], working_sets=["1MB"], runs=1, seconds=1, pin=len(os.sched_getaffinity(0)) > 1,
                            json=os.devnull)
    options = parser.parse_args()
    if options.payload and (options.seals or options.window or options.before):
        parser.error("--payload measures the engine without daemons: not with --seals, --window or --before")
    if options.seals and options.before:
        parser.error("--seals, --before: one of them")
    if options.before and options.record and options.before.resolve().parent == ROOT:
        parser.error("--record, --before: a build in another checkout, whose commit it is called by")
    if options.payload and options.record:
        parser.error("--record: frames are not recorded, so not with --payload")
    if options.payload and (options.payload < 8 or options.payload % 8 or options.payload > 1024):
        parser.error("--payload: whole words, 8 to 1024 bytes")
    if options.payload:  # engines have as many tensors as are in flight, and so one working set
        options.working_sets = ["1MB"]
    if not options.no_testpmd and shutil.which("dpdk-testpmd") is None:
        print("dpdk-testpmd is not run: it is missing: apt-get install dpdk", file=sys.stderr)
        options.no_testpmd = True
    if os.geteuid() != 0 and options.settings != ["uring"]:
        parser.error("all settings but uring need root (devices, network namespaces)")
    options.json = options.json or "goodput.json"
    options.pin |= options.steady
    if options.pin and len(os.sched_getaffinity(0)) < 2:
        parser.error("--pin and --steady need two cores")
    return options


def main():
    options = parse()
    if options.record:
        recording.check(options.record, SEALS_FIELDS if options.seals else BEFORE_FIELDS if options.before else FIELDS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    rows, failed = [], False
    folder = tempfile.TemporaryDirectory(prefix="mercury-goodput-")
    bench = Bench(options, folder.name, options.build)
    built.need(*(bench.folder / name for name in ("reference_loop", "engine_loop", "core_distance")))
    before = Bench(options, folder.name, options.before) if options.before else None
    first, second = ("no seals", {"required": "seals"}.get(options.seals, options.seals)) if options.seals else \
        ("before" if before else "reference", "Mercury")
    unit = f"M frames/s of {options.payload} B" if options.payload else "MB/s of payload"
    print(f"{unit:<23}{first:>16}{second:>16}{'ratio':>9}{'checked':>16}{'ratio':>9}{'testpmd':>9}{'cores ns':>9}  cores, pairs",
          flush=True)
    try:
        for name in options.settings:
            try:
                for row in measure(bench, before, name, options):
                    rows.append(row)
                    print_row(row, options.payload)
            except (Failed, LabError) as why:
                failed = True
                print(f"{name}: {why}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        failed = True
    folder.cleanup()
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"seconds": options.seconds, "window": options.window, "payload": options.payload, "pinned": options.pin, "seals": options.seals, "before": options.before and str(options.before), "cores": os.cpu_count(),
                   "rows": rows}, file, indent=1)
        file.write("\n")
    if options.record and rows:
        commit = options.before and recording.commit(options.before.resolve().parent)  # a build stands in its checkout
        recording.append(options.record, [record for row in rows for record in records(row, options.seals, commit)])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
