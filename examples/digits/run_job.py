#!/usr/bin/python3
"""Trains the digits classifier on 2 workers and 2 servers over Mercury, and shows what it gains.

Three ways of exchanging the gradients take turns within one training: the native parameter server's,
Mercury without priority, and Mercury. Links are as fast as makes the exchange take as long as computing
does on this machine; what the equations of the Mercury paper promise there stands beside what was reached.

As root: four virtual hosts with shaped links, one mercury-stackd in each, over a DPDK port. Without
root, or with --embedded: the same programs over io_uring on 127.0.0.0/8, with no daemon and no link to fill.
"""
import argparse
import contextlib
import csv
import filecmp
import functools
import importlib.util
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import built  # noqa: E402
import netlab  # noqa: E402
import recording  # noqa: E402
import timeline  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402

TRAINER = os.path.join("examples", "digits", "digits-train")
DAEMON = os.path.join("apps", "stackd", "mercury-stackd")
SIMULATOR = os.path.join("apps", "sim", "mercury-sim")
WORKERS = 2
SERVERS = 2
# As the table names them.
POLICIES = {"wfbp": "native", "mercury-fifo": "no priority", "mercury": "Mercury"}
TURN = 7  # iterations that a policy keeps its turn; the first and the last of them are not counted
# The engines and links of four hosts share this machine's cores with two workers. Computing is held to the pace at
# which it would have this much of a core, in every turn alike, and leaves the rest to them.
CORE_SHARE = 0.75
# Long enough for that rest to do: an iteration's gradients travel for as long, and frames cost processor time.
COMPUTING_S = 0.35
BATCH = (128, 1438)
PROFILED_IMAGES = 128
RATE_MBIT = (5, 300)
# What an idle link saves up, in time: engines that share cores with computing are late by milliseconds, which those
# of real hosts are not. mercury-sim is told.
BUCKET_S = 0.008
# Of the pace: where computing took longer, somebody else was using the cores, and times say little.
DISTURBED = 1.1


class JobError(RuntimeError):
    pass


class Stage:
    """The hosts, daemons and programs of one run; everything it started ends with it."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, name, popen, command, **options):
        log = open(self.path(name + ".log"), "w")
        process = popen(command, stdout=options.pop("stdout", log), stderr=log, **options)
        process.name = name
        self.processes.append(process)
        return process

    def tail(self, name):
        with open(self.path(name + ".log")) as log:
            return "".join(log.readlines()[-8:]).strip()

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 5
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def program(options, path):
    return os.path.join(options.build, path)


def start_daemon(stage, host, device, options, secret):
    config = f"""
[port]
kind = "ethdev"
device = "{device}"
interface = "{host.interface}"
address = ["{host.ip}/24"]
udp_port = 7470
mtu = {options.mtu}
rate = "{options.rate}Mbit"
hugepages = "off"
[engine]
polling = "interrupt"
[jobs]
serve = {"true" if host.name.startswith("server") else "false"}
open = false
[attach]
socket = "{stage.path(host.name + '.sock')}"
[[job]]
name = "digits"
secret = "{secret}"
"""
    name = f"stackd-{host.name}"
    with open(stage.path(name + ".toml"), "w") as file:
        file.write(config)
    try:
        return start_ready(functools.partial(stage.start, name, host.popen, [program(options, DAEMON), "--config", file.name]),
                           stage.path(name + ".notify"))
    except NotReady as error:
        raise JobError(stage.tail(name) or f"{name} {error}") from None


def start_daemons(stage, lab, options, secret):
    """One daemon a host, over af_xdp, or over af_packet with a line that says why."""
    for device in ("af_xdp", "af_packet") if options.device is None else (options.device,):
        started = []
        try:
            for host in lab.hosts:
                started.append(start_daemon(stage, host, device, options, secret))
            return device
        except JobError as error:
            for process in started:
                process.terminate()
                process.wait()
            if device == "af_packet" or options.device:
                raise
            print(f"      af_xdp does not start here, using af_packet: {str(error).splitlines()[-1]}")


def train(stage, options, spawn_worker, spawn_server=None):
    """One training; returns rank 0's and rank 1's reports."""
    print(f"[4/5] Training: {', '.join(POLICIES.values())} take turns of {TURN} iterations", flush=True)
    servers = [spawn_server(rank) for rank in range(SERVERS)] if spawn_server else []
    workers = [spawn_worker(rank) for rank in range(WORKERS)]
    finish(stage, options, workers, servers)
    reports = []
    for rank in range(WORKERS):
        with open(stage.path(f"report-{rank}.json")) as file:
            reports.append(json.load(file))
    return reports


def finish(stage, options, workers, others=()):
    """Waits for all of them, showing what the first one prints."""
    printer = threading.Thread(target=relay, args=(workers[0].stdout,), daemon=True)
    printer.start()
    for process in [*workers, *others]:
        code = process.wait(timeout=options.limit)
        if code != 0:
            raise JobError(f"{process.name} ended with {code}: {stage.tail(process.name)}")
    printer.join()


def relay(stream):
    for line in stream:
        print("      " + line.rstrip(), flush=True)


def trainer_command(stage, options, role, rank, *more):
    command = [program(options, TRAINER), "--role", role, "--rank", str(rank), "--workers", str(WORKERS), "--servers",
               str(SERVERS), "--iterations", str(options.iterations), "--batch", str(options.batch),
               "--policies", ",".join(POLICIES), "--turn", str(TURN), *more]
    if role == "worker":
        command += ["--weights", stage.path(f"weights-{rank}.bin"), "--report", stage.path(f"report-{rank}.json"),
                    "--timeline", stage.path(f"timeline-{rank}.json"), "--trace", stage.path(f"trace-{rank}.csv")]
        if rank == 0:
            command.append("--progress")
    return command


def on_core_of(rank):
    """For a worker: a core of its own, as on a host of its own."""
    cores = sorted(os.sched_getaffinity(0))
    return (lambda: os.sched_setaffinity(0, {cores[rank]})) if len(cores) >= WORKERS else None


def run_on_hosts(stage, options):
    secret = secrets.token_hex(16)
    with netlab.Lab(f"mq{os.getpid()}", [f"worker{i}" for i in range(WORKERS)] +
                    [f"server{i}" for i in range(SERVERS)],
                    rate_mbit=options.rate, mtu=options.mtu,
                    bucket_bytes=int(max(options.rate * 1e6 / 8 * BUCKET_S, 4 * (options.mtu + 14)))) as lab:
        try:
            print(f"      four virtual hosts, links of {options.rate} Mbit/s, MTU {options.mtu}")
            options.bucket_bytes = lab.bucket_bytes
            device = start_daemons(stage, lab, options, secret)
            port = f"DPDK {device}"
            print(f"      one mercury-stackd in each, over {port}")
            rendezvous = ",".join(f"{lab[f'server{i}'].ip}:7470" for i in range(SERVERS))

            def worker(rank):
                host = lab[f"worker{rank}"]
                env = {**os.environ, "MERCURY_SOCKET": stage.path(host.name + ".sock"),
                       "MERCURY_SECRET": secret}
                return stage.start(f"worker{rank}", host.popen,
                                   trainer_command(stage, options, "worker", rank, "--rendezvous", rendezvous,
                                                   "--mode", "daemon", "--pace", stage.path("pace.csv")),
                                   env=env, stdout=subprocess.PIPE, text=True, preexec_fn=on_core_of(rank))
            return port, train(stage, options, worker)
        finally:
            stage.close()  # before the namespaces go


def run_embedded(stage, options):
    print("      no daemon and no root: each program runs the engine itself, over io_uring on 127.0.0.0/8")
    base = free_port()
    rendezvous = f"127.0.77.1:{base}"

    def spawn(role, rank, listen):
        command = trainer_command(stage, options, role, rank, "--rendezvous", rendezvous,
                                  "--mode", "embedded", "--listen", listen)
        return stage.start(f"{role}{rank}", subprocess.Popen, command, env={**os.environ, "MERCURY_SECRET": "quickstart"},
                           stdout=subprocess.PIPE if role == "worker" else None, text=True)

    def worker(rank):
        return spawn("worker", rank, f"127.0.77.{10 + rank}:0")

    def server(rank):
        return spawn("server", rank, rendezvous if rank == 0 else f"127.0.77.{1 + rank}:0")
    try:
        return "io_uring (embedded)", train(stage, options, worker, server)
    finally:
        stage.close()


def free_port():
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.bind(("127.0.77.1", 0))
        return probe.getsockname()[1]


def profile(stage, options, batch):
    """Measures how long each layer computes, both workers at once with nothing exchanged; returns the seconds of
    the slower worker's iteration at the pace that the job is held to, which is in pace.csv."""
    def start(rank):
        command = [program(options, TRAINER), "--role", "profile", "--iterations", "8", "--workers", str(WORKERS),
                   "--batch", str(batch), "--trace", stage.path(f"profile-{rank}.csv")]
        return stage.start(f"profile{rank}", subprocess.Popen, command, stdout=subprocess.PIPE, text=True,
                           preexec_fn=on_core_of(rank))
    finish(stage, options, [start(rank) for rank in range(WORKERS)])
    slower = max((stage.path(f"profile-{rank}.csv") for rank in range(WORKERS)), key=computing_s)
    with open(slower) as profiled, open(stage.path("pace.csv"), "w") as pace:
        rows = csv.DictReader(line for line in profiled if not line.startswith("#"))
        writer = csv.DictWriter(pace, rows.fieldnames)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: round(int(value) / CORE_SHARE) if name.endswith("_ns") else value for name, value in row.items()})
    return computing_s(pace.name)


def computing_s(trace):
    """Of all layers of a trace: forward, backward and update."""
    with open(trace) as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return sum(int(row[name]) for row in rows for name in row if name.endswith("_ns")) / 1e9


def choose_batch(image_s):
    """Images of both workers with which computing takes COMPUTING_S, within limits."""
    images = WORKERS * round(COMPUTING_S / image_s)
    return min(max(images, BATCH[0]), BATCH[1])


def parameters(stage):
    return os.path.getsize(stage.path("weights-reference.bin")) // 4


def choose_rate(parameters, seconds):
    """Mbit/s at which a worker's gradients travel for so long."""
    return min(max(round(32 * parameters / seconds / 1e6), RATE_MBIT[0]), RATE_MBIT[1])


def travel_s(parameters, options):
    return 32 * parameters / (options.rate * 1e6)


def reference(stage, options):
    """The single-process run whose weights the job's must equal."""
    print("[3/5] A single process first: its weights are what the job's must equal, bit by bit", flush=True)
    command = [program(options, TRAINER), "--role", "reference", "--workers", str(WORKERS), "--iterations",
               str(options.iterations), "--batch", str(options.batch), "--weights",
               stage.path("weights-reference.bin"), "--progress"]
    finish(stage, options, [stage.start("reference", subprocess.Popen, command, stdout=subprocess.PIPE, text=True)])


def identical(stage):
    return all(filecmp.cmp(stage.path(f"weights-{rank}.bin"), stage.path("weights-reference.bin"), shallow=False)
               for rank in range(WORKERS))


def predicted_ms(options, trace, *kind, more=()):
    """What mercury-sim says of an iteration under each policy, with the computing that the job recorded."""
    answers = {}
    for policy in POLICIES:
        command = [program(options, SIMULATOR), *kind, "--trace", trace, "--policy", policy, "--bandwidth",
                   f"{options.rate}Mbps", "--workers", str(WORKERS), "--servers", str(SERVERS), "--mtu", str(options.mtu),
                   "--json", "-", *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise JobError(f"{' '.join(command)}: {done.stderr.strip()}")
        answers[policy] = 1e3 * json.loads(done.stdout)["iteration_s"]
    return answers


def gains(times):
    return {"over_fifo": times["mercury-fifo"] / times["mercury"], "over_native": times["wfbp"] / times["mercury"]}


def summarize(stage, options, port, reports):
    """What result.json says, and the table is made of."""
    measured = {policy: [statistics.median(reports[0]["policies"][policy][what]) for what in ("iteration_ms", "computing_ms")]
                for policy in POLICIES}
    summary = {"port": port, "parameters": reports[0]["parameters"], "accuracy": reports[0]["accuracy"], "mtu": options.mtu,
               "iterations": options.iterations, "batch": options.batch, "bit_identical": identical(stage),
               "iteration_ms": {policy: times[0] for policy, times in measured.items()},
               "computing_ms": {policy: times[1] for policy, times in measured.items()},
               "iterations_ms": {policy: reports[0]["policies"][policy]["iteration_ms"] for policy in POLICIES},
               "bytes_pushed": reports[0]["bytes_pushed"]}
    summary["reached"] = gains(summary["iteration_ms"])
    if options.rate:
        trace = max((stage.path(f"trace-{rank}.csv") for rank in range(WORKERS)), key=computing_s)
        summary["rate_mbit"] = options.rate
        summary["pace_ms"] = 1e3 * computing_s(stage.path("pace.csv"))
        summary["model_ms"] = predicted_ms(options, trace, "model")
        summary["simulated_ms"] = predicted_ms(options, trace, more=["--bucket", f"{options.bucket_bytes}B"])
        summary["promised"] = gains(summary["model_ms"])
    return summary


def record_of(summary):
    """A row of docs/records/main_job.csv."""
    row = {"rate_mbit": summary["rate_mbit"], "mtu": summary["mtu"], "images": summary["batch"]}
    for name, title in POLICIES.items():
        column = title.lower().replace(" ", "_")
        row |= {f"{column}_ms": f"{summary['iteration_ms'][name]:.1f}", f"{column}_simulated_ms": f"{summary['simulated_ms'][name]:.1f}",
                f"{column}_computing_ms": f"{summary['computing_ms'][name]:.1f}"}
    for gain, promised in summary["promised"].items():
        row |= {f"promised_{gain}": f"{promised:.3f}", f"reached_{gain}": f"{summary['reached'][gain]:.3f}",
                f"{gain}_of_promise": f"{summary['reached'][gain] / promised:.3f}"}
    return row


def table(summary):
    lines = [f"Digits classifier, {summary['parameters']:,} parameters, {WORKERS} workers, {SERVERS} servers"]
    network = f", {summary['rate_mbit']} Mbit/s links, MTU {summary['mtu']}" if "rate_mbit" in summary else ""
    lines += [f"network: {summary['port']}{network}; {summary['iterations']} iterations of {summary['batch']} images", ""]
    lines.append(f"{'':24}" + "".join(f"{name:>14}" for name in POLICIES.values()))

    def row(name, values):
        lines.append(f"{name:24}" + "".join(f"{values[policy]:>11.1f} ms" for policy in POLICIES))
    row("iteration, median", summary["iteration_ms"])
    if "promised" in summary:
        row("  mercury-sim says", summary["simulated_ms"])
    row("  of it computing", summary["computing_ms"])
    lines.append("")
    if "promised" in summary:
        promised, reached = summary["promised"], summary["reached"]
        lines.append(f"{'speed of Mercury':24}{'promised':>14}{'reached':>14}")
        for name, key in (("over native", "over_native"), ("over no priority", "over_fifo")):
            lines.append(f"  {name:22}{promised[key]:>14.2f}{reached[key]:>14.2f}")
        longest = max(summary["computing_ms"].values())
        if longest > DISTURBED * summary["pace_ms"]:
            lines += ["", f"computing took up to {longest:.0f} ms of an iteration where {summary['pace_ms']:.0f} ms were set aside for it: "
                      "other programs use this", "machine's cores, so these times say little; run it again when it is quiet"]
    else:
        lines.append("127.0.0.0/8 has no link to fill, so the three are alike; sudo ./quickstart shows the gain")
    lines += ["", f"test accuracy: {100 * summary['accuracy']:.1f} %",
              "weights bit-identical to a single-process run: " + ("yes" if summary["bit_identical"] else "NO")]
    return "\n" + "\n".join("  " + line for line in lines) + "\n"


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedded", action="store_true", help="no daemons, no root: io_uring on loopback")
    parser.add_argument("--turns", type=int, default=4, help=f"of each policy, {TURN} iterations each (%(default)s)")
    parser.add_argument("--batch", type=int, help="images per iteration, all workers together; default: as many as make computing "
                        "take long enough for the engines to have a share of the cores")
    parser.add_argument("--rate", type=int, help="link rate in Mbit/s; default: as long for the exchange as for computing")
    parser.add_argument("--mtu", type=int, default=3440, help="%(default)s, the most that af_xdp carries over a virtual link")
    parser.add_argument("--device", choices=["af_xdp", "af_packet"], help="DPDK device; default: af_xdp if it starts")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory (%(default)s)")
    parser.add_argument("--out", default=os.path.join(ROOT, "out"))
    parser.add_argument("--limit", type=float, default=240, help="seconds that one training run may take")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for this run, as in docs/records/main_job.csv")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns: at least 1")
    options.iterations = options.turns * TURN * len(POLICIES)
    if not options.embedded and os.geteuid() != 0:
        print("      not root: running embedded (sudo ./quickstart shows the daemons over DPDK)")
        options.embedded = True
    if options.embedded and options.record:
        parser.error("--record: nothing is promised of an embedded run; leave out --embedded, as root")
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(f"{sys.executable} has no matplotlib, which draws the timeline: run this with /usr/bin/python3, "
                 "for which apt-get install python3-matplotlib brings it")
    built.need(*(program(options, path) for path in [TRAINER] + [DAEMON, SIMULATOR] * (not options.embedded)))
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        os.makedirs(options.out, exist_ok=True)
        for name in ("timeline.json", "timeline.svg", "result.json"):
            with open(os.path.join(options.out, name), "a"):
                pass
    except OSError as error:
        sys.exit(f"cannot write the results: {error}; --out names another folder")
    return options


def main():
    options = read_options()
    directory = tempfile.mkdtemp(prefix="mercury-")
    stage = Stage(directory)
    try:
        if options.embedded:
            options.batch = options.batch or PROFILED_IMAGES
        else:
            options.batch = options.batch or choose_batch(profile(stage, options, PROFILED_IMAGES) / (PROFILED_IMAGES / WORKERS))
            computing = profile(stage, options, options.batch)
        reference(stage, options)
        if not options.embedded:
            options.rate = options.rate or choose_rate(parameters(stage), computing)
            print(f"      a worker computes {1e3 * computing:.0f} ms for an iteration of {options.batch} images; on links of "
                  f"{options.rate} Mbit/s its gradients take {1e3 * travel_s(parameters(stage), options):.0f} ms")
        port, reports = (run_embedded if options.embedded else run_on_hosts)(stage, options)
        print("[5/5] Result")
        summary = summarize(stage, options, port, reports)
        print(table(summary))
        merged = os.path.join(options.out, "timeline.json")
        picture = os.path.join(options.out, "timeline.svg")
        timeline.merge({f"worker {rank}": stage.path(f"timeline-{rank}.json") for rank in range(WORKERS)}, merged)
        timeline.draw(stage.path("timeline-0.json"), POLICIES, picture)
        with open(os.path.join(options.out, "result.json"), "w") as file:
            json.dump(summary, file, indent=1)
        if options.record:
            recording.append(options.record, [record_of(summary)])
        print(f"  timeline: {os.path.relpath(merged)} (open it in ui.perfetto.dev), drawn in {os.path.relpath(picture)}")
        return 0 if summary["bit_identical"] and (summary["accuracy"] > 0.95 or options.turns < 4) else 1
    except (JobError, netlab.LabError, recording.RecordError, subprocess.TimeoutExpired) as error:
        print(f"\nfailed: {error}\nlogs: {directory}", file=sys.stderr)
        directory = None
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    finally:
        stage.close()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
