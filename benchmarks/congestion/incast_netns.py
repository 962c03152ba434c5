#!/usr/bin/env python3
"""Eight senders into one server between virtual hosts, Mercury and kernel TCP in turns on the same
links, and a TCP flow beside Mercury. Needs root (network namespaces, tc, nft).

    sudo benchmarks/congestion/incast_netns.py               about three minutes
    sudo benchmarks/congestion/incast_netns.py --seconds 2   a shorter look

Each sender's link carries 500 Mb/s; the server's goes from 500 to 50 and back. Its queue holds 128
KiB. The kernel has no marking queue here: an nftables rule before it marks what exceeds 95 % of the
rate. Figures are bytes on the server's link, headers included, as a share of its rate.
"""
import argparse
import functools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import built  # noqa: E402
from netlab import Lab, LabError, sh  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402

SENDERS = 8
MBIT = 500
RATES = (MBIT, MBIT // 10, MBIT)
QUEUE_BYTES = 128 * 1024
MARK_SHARE = 0.95
MARK_BURST_BYTES = 24 * 1024
SAMPLE_SECONDS = 0.05
TCP_PORT = 5001


def tcp_server():
    """Counts what each connection brings; prints the counts when its input ends."""
    counts = []

    def read(connection, index):
        while data := connection.recv(1 << 18):
            counts[index] += len(data)

    listener = socket.create_server(("", TCP_PORT), backlog=64)
    print("ready", flush=True)

    def accept():
        while True:
            connection, _ = listener.accept()
            counts.append(0)
            threading.Thread(target=read, args=(connection, len(counts) - 1), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()
    print(json.dumps(counts), flush=True)


def tcp_client(address, algorithm, seconds):
    client = socket.socket()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    client.connect((address, TCP_PORT))
    until = time.monotonic() + seconds
    client.settimeout(1)
    data = bytes(1 << 16)
    while time.monotonic() < until:
        try:
            client.send(data)
        except TimeoutError:
            pass
        except ConnectionError:  # the server was told to end
            return


class Site:
    def __init__(self, lab, build, folder, congestion):
        self.congestion = congestion
        self.lab, self.server = lab, lab["server"]
        self.build, self.folder = pathlib.Path(build), folder
        self.running, self.daemons = [], []

    def set_rate(self, mbit):
        port, ns = self.server.port, self.lab.switch
        burst = max(int(mbit * 1e6 / 8 * 0.002), 4 * 1514)
        sh("tc", "qdisc", "replace", "dev", port, "root", "tbf", "rate", f"{mbit}mbit", "burst",
           str(burst), "limit", str(QUEUE_BYTES), ns=ns)
        limit = int(mbit * 1e6 / 8 * MARK_SHARE)
        sh("nft", "flush", "chain", "bridge", "incast", "forward", ns=ns)
        sh("nft", "add", "rule", "bridge", "incast", "forward", "oifname", port, "ip", "ecn", "!=",
           "not-ect", "limit", "rate", "over", str(limit), "bytes/second", "burst",
           str(MARK_BURST_BYTES), "bytes", "ip", "ecn", "set", "ce", ns=ns)

    def prepare(self):
        ns = self.lab.switch
        sh("nft", "add", "table", "bridge", "incast", ns=ns)
        sh("nft", "add", "chain", "bridge", "incast", "forward",
           "{ type filter hook forward priority 0 ; }", ns=ns)

    def start(self, host, command, **options):
        options = {"stdout": subprocess.PIPE, "text": True} | options
        process = host.popen([str(part) for part in command], **options)
        self.running.append(process)
        return process

    def end_all(self):
        for process in self.running:
            process.kill()
            process.communicate()
        self.running.clear()

    def close(self):
        self.end_all()
        for process in self.daemons:
            process.terminate()
        for process in self.daemons:
            process.wait(30)

    def start_tcp(self, senders, algorithm, seconds):
        server = self.start(self.server, [sys.executable, __file__, "--tcp-server"],
                            stdin=subprocess.PIPE)
        server.stdout.readline()
        for host in senders:
            self.start(host, [sys.executable, __file__, "--tcp-client", self.server.ip, algorithm,
                              seconds])
        return server

    def start_daemons(self):
        for host in self.lab.hosts:
            if host.name == "tcp":
                continue
            path = self.folder / host.name
            path.with_suffix(".toml").write_text(
                f'[port]\nkind = "uring"\naddress = ["{host.ip}/24"]\nmtu = 1500\n'
                f'rate = "{MBIT}Mbit"\n[session]\ncongestion = "{self.congestion}"\n[attach]\nsocket = "{path}.sock"\n', encoding="utf-8")
            stackd = str(self.build / "apps" / "stackd" / "mercury-stackd")
            with open(path.with_suffix(".log"), "w+", encoding="utf-8") as log:
                try:
                    self.daemons.append(start_ready(
                        functools.partial(host.popen, [stackd, "--config", f"{path}.toml"], stderr=log),
                        path.with_suffix(".ready"), 60))
                except NotReady as why:
                    log.seek(0)
                    raise LabError(f"{host.name}: mercury-stackd {why}\n{log.read().strip()}") from None

    def counters(self):
        """Sums over all daemons."""
        total = {}
        for host in self.lab.hosts:
            if host.name == "tcp":
                continue
            answer = subprocess.run(
                [str(self.build / "apps" / "ctl" / "mercuryctl"), "--socket",
                 f"{self.folder / host.name}.sock", "stats", "--json"], check=True,
                capture_output=True, text=True)
            for name, value in json.loads(answer.stdout)["engines"][0]["counters"].items():
                total[name] = total.get(name, 0) + value
        return total

    def start_mercury(self, senders, seconds):
        """One job of one worker on each sender's host."""
        client = self.build / "benchmarks" / "goodput" / "goodput_client"
        return [self.start(host, [client, "--server", f"{self.server.ip}:7470", "--job",
                                  f"incast-{host.name}", "--seconds", seconds],
                           env={**os.environ, "MERCURY_SOCKET": f"{self.folder / host.name}.sock"})
                for host in senders]

    def dropped(self):
        text = sh("tc", "-s", "qdisc", "show", "dev", self.server.port, ns=self.lab.switch)
        return int(re.search(r"dropped (\d+)", text).group(1))

    def watch(self, seconds):
        """Bytes that reached the server, as (time, bytes so far)."""
        samples = [(time.monotonic(), self.lab.link_bytes(self.server)[1])]
        while samples[-1][0] - samples[0][0] < seconds:
            time.sleep(SAMPLE_SECONDS)
            samples.append((time.monotonic(), self.lab.link_bytes(self.server)[1]))
        return samples


def jain(shares):
    return sum(shares) ** 2 / (len(shares) * sum(x * x for x in shares)) if any(shares) else 0


def phases(site, seconds):
    rows = []
    for mbit in RATES:
        site.set_rate(mbit)
        dropped = site.dropped()
        samples = site.watch(seconds)
        full = mbit * 1e6 / 8
        share = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0]) / full
        converged = None
        for earlier, later in zip(samples, samples[4:]):
            rate = (later[1] - earlier[1]) / (later[0] - earlier[0])
            if rate >= 0.9 * full:
                converged = later[0] - samples[0][0]
                break
        rows.append({"mbit": mbit, "share": share, "dropped": site.dropped() - dropped,
                     "seconds_to_90": converged})
    return rows


def measure(site, kind, seconds):
    senders = [site.lab[f"w{i}"] for i in range(SENDERS)]
    warm_up = 1
    total = 3 * seconds + warm_up + 3
    site.set_rate(MBIT)
    counters = site.counters()
    if kind == "mercury":
        workers = site.start_mercury(senders, total)
    else:
        server = site.start_tcp(senders, kind, total)
    time.sleep(warm_up)
    rows = phases(site, seconds)
    result = {"kind": kind, "phases": rows}
    if kind == "mercury":
        reports = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
        result["jain"] = jain([r["goodput_bytes_per_s"] for r in reports])
        for name, value in site.counters().items():
            if name in ("probe_timeouts", "retransmits", "push_chunks"):
                result[name] = value - counters[name]
    else:
        result["jain"] = jain(json.loads(server.communicate(timeout=60)[0]))
    site.end_all()
    return result


def beside(site, algorithm, seconds):
    """The share of the link that one TCP flow has beside eight senders of Mercury."""
    site.set_rate(MBIT)
    server = site.start_tcp([site.lab["tcp"]], algorithm, 2 * seconds + 2)
    time.sleep(1)
    site.start_mercury([site.lab[f"w{i}"] for i in range(SENDERS)], 2 * seconds + 2)
    before = site.lab.link_bytes(site.lab["tcp"])[0]
    time.sleep(1)
    before = site.lab.link_bytes(site.lab["tcp"])[0]
    samples = site.watch(seconds)
    tcp = site.lab.link_bytes(site.lab["tcp"])[0] - before
    taken = samples[-1][0] - samples[0][0]
    all_bytes = samples[-1][1] - samples[0][1]
    server.kill()
    site.end_all()
    full = MBIT * 1e6 / 8 * taken
    return {"kind": f"{algorithm} beside mercury", "tcp_share": tcp / full,
            "all_share": all_bytes / full}


def show(result):
    for row in result.get("phases", []):
        converged = "never" if row["seconds_to_90"] is None else f"{row['seconds_to_90']:.2f} s"
        print(f"{result['kind']:<22}{row['mbit']:5} Mb/s {row['share']:6.2f} of the link, "
              f"90 % after {converged}, {row['dropped']} dropped", flush=True)
    rest = {k: round(v, 3) for k, v in result.items() if k not in ("kind", "phases")}
    print(f"{result['kind']:<22}{rest}", flush=True)


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--seconds", type=float, default=5, help="of each phase")
    kinds = ["mercury", "cubic", "bbr"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--congestion", default="adaptive", choices=["adaptive", "fixed"], help="of Mercury")
    parser.add_argument("--prefix", default=f"incast{os.getpid()}", help="of the namespaces")
    parser.add_argument("--json", help="where the numbers go")
    parser.add_argument("--tcp-server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tcp-client", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tcp_server:
        return tcp_server()
    if options.tcp_client:
        address, algorithm, seconds = options.tcp_client
        return tcp_client(address, algorithm, float(seconds))
    built.need(*(pathlib.Path(options.build) / program for program in (
        "apps/stackd/mercury-stackd", "apps/ctl/mercuryctl", "benchmarks/goodput/goodput_client")))
    names = ["server", "tcp"] + [f"w{i}" for i in range(SENDERS)]
    results = []
    try:
        with (tempfile.TemporaryDirectory(prefix="mercury-incast-") as folder,
              Lab(options.prefix, names, rate_mbit=MBIT, queue_bytes=1 << 20) as lab):
            site = Site(lab, options.build, pathlib.Path(folder), options.congestion)
            site.prepare()
            try:
                site.start_daemons()
                for kind in options.kinds:
                    results.append(measure(site, kind, options.seconds))
                    show(results[-1])
                for algorithm in ("cubic", "bbr"):
                    results.append(beside(site, algorithm, options.seconds))
                    show(results[-1])
            finally:
                site.close()
    except LabError as why:
        print(why, file=sys.stderr)
        return 1
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
