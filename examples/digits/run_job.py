#!/usr/bin/python3
"""Trains the digits classifier on 2 workers and 2 servers over Mercury, and shows what it gained.

As root: four virtual hosts with shaped links, one mercury-stackd in each, over a DPDK port. Without
root, or with --embedded: the same programs over io_uring on 127.0.0.0/8, with no daemon.
"""
import argparse
import contextlib
import filecmp
import functools
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
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
import timeline  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402

TRAINER = os.path.join("examples", "digits", "digits-train")
DAEMON = os.path.join("apps", "stackd", "mercury-stackd")
WORKERS = 2
SERVERS = 2
RATES_MBIT = (10, 300)
# The engines of all hosts share this machine's cores with the workers: where more is moved per core, they leave
# so little of it that computing takes longer than the exchange, and hides it.
CORE_MBIT = 60


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


def train(stage, options, order, spawn_worker, spawn_server=None):
    """One training run; returns rank 0's and rank 1's reports."""
    begun = time.monotonic()
    servers = [spawn_server(rank, order) for rank in range(SERVERS)] if spawn_server else []
    workers = [spawn_worker(rank, order) for rank in range(WORKERS)]
    printer = threading.Thread(target=relay, args=(workers[0].stdout,), daemon=True)
    printer.start()
    for process in workers + servers:
        code = process.wait(timeout=options.limit)
        if code != 0:
            raise JobError(f"{process.name} ended with {code}: {stage.tail(process.name)}")
    printer.join()
    reports = []
    for rank in range(WORKERS):
        with open(stage.path(f"report-{order}-{rank}.json")) as file:
            reports.append(json.load(file))
    reports[0]["wall_s"] = time.monotonic() - begun
    return reports


def relay(stream):
    for line in stream:
        print("      " + line.rstrip(), flush=True)


def trainer_command(stage, options, order, role, rank, rendezvous):
    command = [program(options, TRAINER), "--role", role, "--rank", str(rank), "--workers", str(WORKERS), "--servers",
               str(SERVERS), "--rendezvous", rendezvous, "--iterations", str(options.iterations),
               "--batch", str(options.batch), "--order", order]
    if role == "worker":
        command += ["--weights", stage.path(f"weights-{order}-{rank}.bin"),
                    "--report", stage.path(f"report-{order}-{rank}.json"),
                    "--timeline", stage.path(f"timeline-{order}-{rank}.json")]
        if rank == 0:
            command.append("--progress")
    return command


def run_on_hosts(stage, options):
    secret = secrets.token_hex(16)
    with netlab.Lab(f"mq{os.getpid()}", [f"worker{i}" for i in range(WORKERS)] +
                    [f"server{i}" for i in range(SERVERS)],
                    rate_mbit=options.rate, mtu=options.mtu) as lab:
        try:
            print(f"      four virtual hosts, links of {options.rate} Mbit/s, MTU {options.mtu}")
            device = start_daemons(stage, lab, options, secret)
            port = f"DPDK {device}"
            print(f"      one mercury-stackd in each, over {port}")
            rendezvous = ",".join(f"{lab[f'server{i}'].ip}:7470" for i in range(SERVERS))

            def worker(rank, order):
                host = lab[f"worker{rank}"]
                env = {**os.environ, "MERCURY_SOCKET": stage.path(host.name + ".sock"),
                       "MERCURY_SECRET": secret}
                return stage.start(f"worker{rank}-{order}", host.popen,
                                   trainer_command(stage, options, order, "worker", rank, rendezvous)
                                   + ["--mode", "daemon"],
                                   env=env, stdout=subprocess.PIPE, text=True)
            return port, *run_orders(stage, options, worker, None,
                                     lambda: [sum(lab.link_bytes(host)) for host in lab.hosts[:WORKERS]])
        finally:
            stage.close()  # before the namespaces go


def run_embedded(stage, options):
    print("      no daemon and no root: each program runs the engine itself, over io_uring on 127.0.0.0/8")
    base = free_port()
    rendezvous = f"127.0.77.1:{base}"

    def spawn(role, order, rank, listen):
        command = trainer_command(stage, options, order, role, rank, rendezvous)
        return stage.start(f"{role}{rank}-{order}", subprocess.Popen,
                           command + ["--mode", "embedded", "--listen", listen],
                           env={**os.environ, "MERCURY_SECRET": "quickstart"},
                           stdout=subprocess.PIPE if role == "worker" else None, text=True)

    def worker(rank, order):
        return spawn("worker", order, rank, f"127.0.77.{10 + rank}:0")

    def server(rank, order):
        return spawn("server", order, rank, rendezvous if rank == 0 else f"127.0.77.{1 + rank}:0")
    try:
        return "io_uring (embedded)", *run_orders(stage, options, worker, server, None)
    finally:
        stage.close()


def free_port():
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.bind(("127.0.77.1", 0))
        return probe.getsockname()[1]


def run_orders(stage, options, worker, server, link_bytes):
    results = {}
    for order in ("priority", "fifo"):
        print(f"[4/5] Training with {'priority per frame' if order == 'priority' else 'priority off (first in, first out)'}")
        before = link_bytes() if link_bytes else None
        reports = train(stage, options, order, worker, server)
        moved = [a - b for a, b in zip(link_bytes(), before)] if link_bytes else None
        results[order] = {"reports": reports, "link_bytes": moved}
    return (results,)


def reference(stage, options):
    """The single-process run whose weights the job's must equal; seconds that an iteration takes."""
    command = [program(options, TRAINER), "--role", "reference", "--workers", str(WORKERS), "--iterations",
               str(options.iterations), "--batch", str(options.batch), "--weights",
               stage.path("weights-reference.bin"), "--progress"]
    begun = time.monotonic()
    process = stage.start("reference", subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
    printer = threading.Thread(target=relay, args=(process.stdout,), daemon=True)
    printer.start()
    code = process.wait(timeout=options.limit)
    printer.join()
    if code != 0:
        raise JobError(f"single-process run failed: {stage.tail('reference')}")
    return (time.monotonic() - begun) / options.iterations


def comparable_rate(stage, iteration_s):
    """Mbit/s at which a worker's gradients travel for as long as it computes, to the next 10, within limits."""
    gradient_bits = 8 * os.path.getsize(stage.path("weights-reference.bin"))
    rate = gradient_bits / (iteration_s / WORKERS) / 1e6
    most = min(CORE_MBIT * len(os.sched_getaffinity(0)), RATES_MBIT[1])
    return int(min(max(round(rate / 10) * 10, RATES_MBIT[0]), most))


def table(stage, options, port, results):
    same = all(filecmp.cmp(stage.path(f"weights-{order}-{rank}.bin"),
                           stage.path("weights-reference.bin"), shallow=False)
               for order in results for rank in range(WORKERS))
    first = results["priority"]["reports"][0]
    lines = [f"Digits classifier, {first['parameters']:,} parameters, {WORKERS} workers, {SERVERS} servers"]
    network = f"{port}, {options.rate} Mbit/s links, MTU {options.mtu}" if "DPDK" in port else port
    lines.append(f"network: {network}; {options.iterations} iterations of {options.batch} images")
    lines.append("")
    lines.append(f"{'':22}{'priority':>12}{'fifo':>12}")

    def row(name, value, form):
        cells = [form.format(value(results[order])) for order in ("priority", "fifo")]
        lines.append(f"{name:22}{cells[0]:>12}{cells[1]:>12}")
    report = lambda result: result["reports"][0]
    row("test accuracy", lambda r: 100 * report(r)["accuracy"], "{:.1f} %")
    row("iteration, median", lambda r: report(r)["iteration_ms_median"], "{:.1f} ms")
    row("  of it computing", lambda r: report(r)["compute_ms_median"], "{:.1f} ms")
    row("gradients per worker", lambda r: report(r)["bytes_pushed"] / 1e6, "{:.1f} MB")
    if results["priority"]["link_bytes"]:
        row("on a worker's link", lambda r: r["link_bytes"][0] / 1e6, "{:.1f} MB")
    gain = report(results["fifo"])["iteration_ms_median"] / report(results["priority"])["iteration_ms_median"]
    lines.append("")
    lines.append(f"priority makes an iteration {gain:.2f} times as fast")
    lines.append("weights bit-identical to a single-process run: " + ("yes" if same else "NO"))
    print("\n" + "\n".join("  " + line for line in lines) + "\n")
    accurate = all(report(results[order])["accuracy"] > 0.95 for order in results)
    return same and accurate, {"port": port, "rate_mbit": options.rate, "mtu": options.mtu,
                               "bit_identical": same, "results": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedded", action="store_true", help="no daemons, no root: io_uring on loopback")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128, help="images per iteration, all workers together")
    parser.add_argument("--rate", type=int, help="link rate in Mbit/s; default: as long for the exchange as for computing")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--device", choices=["af_xdp", "af_packet"], help="DPDK device; default: af_xdp if it starts")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory (%(default)s)")
    parser.add_argument("--out", default=os.path.join(ROOT, "out"))
    parser.add_argument("--limit", type=float, default=240, help="seconds that one training run may take")
    options = parser.parse_args()
    if not options.embedded and os.geteuid() != 0:
        print("      not root: running embedded (sudo ./quickstart shows the daemons over DPDK)")
        options.embedded = True
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(f"{sys.executable} has no matplotlib, which draws the timeline: run this with /usr/bin/python3, "
                 "for which apt-get install python3-matplotlib brings it")
    built.need(*(program(options, path) for path in [TRAINER] + [DAEMON] * (not options.embedded)))
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        os.makedirs(options.out, exist_ok=True)
        for name in ("timeline.json", "timeline.svg", "result.json"):
            with open(os.path.join(options.out, name), "a"):
                pass
    except OSError as error:
        sys.exit(f"cannot write the results: {error}; --out names another folder")
    directory = tempfile.mkdtemp(prefix="mercury-")
    stage = Stage(directory)
    try:
        print("[3/5] A single process first: its weights are what the job's must equal, bit by bit", flush=True)
        iteration_s = reference(stage, options)
        options.rate = options.rate or comparable_rate(stage, iteration_s)
        port, results = (run_embedded if options.embedded else run_on_hosts)(stage, options)
        print("[5/5] Result")
        good, summary = table(stage, options, port, results)
        merged = os.path.join(options.out, "timeline.json")
        picture = os.path.join(options.out, "timeline.svg")
        timeline.merge({f"{order}, worker {rank}": stage.path(f"timeline-{order}-{rank}.json")
                        for order in results for rank in range(WORKERS)}, merged)
        timeline.draw(stage.path("timeline-priority-0.json"), stage.path("timeline-fifo-0.json"), picture)
        with open(os.path.join(options.out, "result.json"), "w") as file:
            json.dump(summary, file, indent=1)
        print(f"  timeline: {os.path.relpath(merged)} (open it in ui.perfetto.dev), drawn in {os.path.relpath(picture)}")
        return 0 if good else 1
    except (JobError, netlab.LabError, subprocess.TimeoutExpired) as error:
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
