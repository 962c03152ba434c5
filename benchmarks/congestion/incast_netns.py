#!/usr/bin/env python3
"""Eight senders into one server between virtual hosts, Mercury and kernel TCP in turns on the same
links, and a TCP flow beside Mercury. Needs root (network namespaces, tc, nft).

    sudo benchmarks/congestion/incast_netns.py               about four minutes
    sudo benchmarks/congestion/incast_netns.py --seconds 2   a shorter look

Each sender's link carries 500 Mb/s; the server's goes from 500 to 50 and back, and then loses frames
at random, either way. Its queue holds 128 KiB. The kernel has no marking queue here: an nftables rule
before it marks large frames where a queue of 98 % of the link's rate would hold 64 KiB.

link: bytes that the server's link carried, headers included, as a share of its rate. goodput: payload,
as a share of what full frames carry at that rate; Mercury's is what its programs report, TCP's what
the receiving program counted. RTTs: loaded round trips (between two programs that echo over UDP) until
the next 20 of them carried 90 % of what the phase's second half does, with nothing dropped and the queue
below three quarters of its room.
lost: frames that a daemon sent and none received.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

from incast_site import FRAME_BYTES, MBIT, QUEUE_BYTES, Site, Watch
import built  # found by incast_site
from netlab import Lab, LabError

STEPS = ((MBIT, 0), (MBIT // 10, 0), (MBIT, 0))
LOSSES = ((MBIT, 0), (MBIT, 1), (MBIT, 5))
PAYLOAD_BYTES = {"mercury": 1424, "cubic": 1448, "bbr": 1448}
WARM_UP = 2
WINDOW_RTTS = 20
COUNTERS = ("probe_timeouts", "retransmits", "spurious_losses", "push_chunks")


def jain(shares):
    return sum(shares) ** 2 / (len(shares) * sum(x * x for x in shares)) if any(shares) else 0


def rtts_to_settle(samples, began, rtt):
    """None if it never did. `samples`: link_watch.py's."""
    middle, last = samples[len(samples) // 2], samples[-1]
    settled = (last[1] - middle[1]) / (last[0] - middle[0])  # bytes per second
    end = 0
    for first, (at, sent, _, dropped) in enumerate(samples):
        while end < len(samples) and samples[end][0] < at + WINDOW_RTTS * rtt:
            end += 1
        if end == len(samples):
            return None
        carried = samples[end][1] - sent
        if (carried >= 0.9 * settled * (samples[end][0] - at) and samples[end][3] == dropped
                and all(s[2] <= 0.75 * QUEUE_BYTES for s in samples[first:end + 1])):
            return (at - began) / rtt
    return None


def program_rates(reports, began, ended):
    """Payload per second of each of Mercury's programs, between its first and last sum of a phase."""
    rates = []
    for report in reports:
        points = [point for point in report["progress"] if began <= point[0] <= ended]
        rates.append((points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
                     if len(points) > 1 else 0)
    return rates


def ask(server):
    """When, and what each TCP flow has brought so far."""
    server.stdin.write("\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def tcp_rates(before, after):
    earlier = before[1] + [0] * (len(after[1]) - len(before[1]))
    return [(b - a) / (after[0] - before[0]) for a, b in zip(earlier, after[1])]


def measure(site, kind, links, seconds):
    """One set of flows over these links in turn."""
    counters, drops, (lost, marked) = site.counters(), site.queue_drops(), site.lost_and_marked()
    site.set_link(MBIT)
    watch = Watch(site)
    if kind == "mercury":
        programs = site.start_mercury()
    else:
        server = site.start_tcp(site.senders, kind)
    time.sleep(WARM_UP)
    rows = []
    for mbit, loss in links:
        row = {"mbit": mbit, "loss_percent": loss, "began": site.set_link(mbit, loss)}
        row["set"] = time.monotonic()
        if kind != "mercury":
            row["before"] = ask(server)
        time.sleep(seconds)
        if kind != "mercury":
            row["after"] = ask(server)
        row["ended"] = time.monotonic()
        rows.append(row)
    watch.end()
    result = {"kind": kind, "phases": rows}
    if kind == "mercury":
        reports = site.reports(programs)
        result["verified"] = all(report["verified"] for report in reports)
        time.sleep(0.5)  # what is in flight arrives
        after = site.counters()
        result |= {name: after[name] - counters[name] for name in COUNTERS}
        result["lost"] = sum((after[name] - counters[name]) * sign
                             for name, sign in (("tx_frames", 1), ("rx_frames", -1)))
    site.end_all()
    after_lost, after_marked = site.lost_and_marked()
    result |= {"queue_drops": site.queue_drops() - drops, "lost_by_rule": after_lost - lost,
               "marked": after_marked - marked}
    for row in rows:
        rates = (program_rates(reports, row["set"], row["ended"]) if kind == "mercury" else
                 tcp_rates(row.pop("before"), row.pop("after")))
        describe(row, rates, watch, PAYLOAD_BYTES[kind])
    return result


def describe(row, rates, watch, payload_bytes):
    began, ended = row.pop("began"), row.pop("ended")
    full = row["mbit"] * 1e6 / 8
    whole, samples = watch.of(began, ended), watch.of(row.pop("set"), ended)
    first, last = samples[0], samples[-1]
    row["link"] = (last[1] - first[1]) / (last[0] - first[0]) / full
    row["goodput"] = sum(rates) / full * FRAME_BYTES / payload_bytes
    row["jain"] = jain(rates)
    row["dropped"] = last[3] - whole[0][3]
    row["most_queue_bytes"] = max(sample[2] for sample in whole)
    rtt = watch.loaded_rtt(began, ended)
    row["loaded_rtt_ms"] = rtt and rtt * 1e3
    row["rtts"] = rtt and rtts_to_settle(whole, began, rtt)


def beside(site, algorithm, seconds):
    """The shares of the link that one TCP flow and the senders of Mercury have beside each other."""
    site.set_link(MBIT)
    server = site.start_tcp([site.lab["tcp"]], algorithm)
    programs = site.start_mercury()
    time.sleep(WARM_UP)
    before = ask(server)
    time.sleep(seconds)
    after = ask(server)
    reports = site.reports(programs)
    site.end_all()
    full = MBIT * 1e6 / 8 / FRAME_BYTES
    rates = program_rates(reports, before[0], after[0])
    return {"received": [sum(before[1]), sum(after[1])], "seconds": after[0] - before[0],
            "share": sum(tcp_rates(before, after)) / full / PAYLOAD_BYTES[algorithm],
            "mercury_share": sum(rates) / full / PAYLOAD_BYTES["mercury"]}


def show(result):
    kind = result["kind"]
    for row in result["phases"]:
        rtts = "never" if row["rtts"] is None else f"{row['rtts']:5.1f} of {row['loaded_rtt_ms']:.1f} ms"
        print(f"{kind:<8}{row['mbit']:4} Mb/s {row['loss_percent']} % lost: goodput {row['goodput']:.3f} "
              f"link {row['link']:.3f} Jain {row['jain']:.3f} RTTs {rtts} "
              f"dropped {row['dropped']} most queue {row['most_queue_bytes'] / 1024:.0f} KiB", flush=True)
    rest = {name: value for name, value in result.items() if name not in ("kind", "phases")}
    print(f"{kind:<8}{rest}", flush=True)


def show_ratios(result):
    lossless = result["phases"][0]["goodput"]
    for row in result["phases"][1:]:
        row["of_lossless"] = row["goodput"] / lossless if lossless else 0
        print(f"{result['kind']:<8}{row['loss_percent']} % lost: {row['of_lossless']:.3f} of lossless",
              flush=True)


def show_steps(results):
    for kind in dict.fromkeys(result["kind"] for result in results):
        for phase in range(1, len(STEPS)):
            took = [result["phases"][phase]["rtts"] for result in results if result["kind"] == kind]
            settled = sorted(rtts for rtts in took if rtts is not None)
            times = (f"settled after {settled[0]:.1f} to {settled[-1]:.1f} RTTs, median "
                     f"{statistics.median(settled):.1f}" if settled else "settled")
            print(f"{kind:<8}{STEPS[phase - 1][0]} to {STEPS[phase][0]} Mb/s: {times} in {len(settled)} of "
                  f"{len(took)}", flush=True)


def run(site, options):
    results = {"steps": [], "losses": [], "beside": {}}
    for _ in range(options.repeat if "steps" in options.parts else 0):
        for kind in options.kinds:
            results["steps"].append(measure(site, kind, STEPS, options.seconds))
            show(results["steps"][-1])
    show_steps(results["steps"])
    for _ in range(options.repeat if "losses" in options.parts else 0):
        for kind in options.kinds:
            results["losses"].append(measure(site, kind, LOSSES, options.seconds))
            show(results["losses"][-1])
            show_ratios(results["losses"][-1])
    for _ in range(options.readings if "beside" in options.parts else 0):
        for algorithm in ("cubic", "bbr"):
            reading = beside(site, algorithm, options.seconds)
            results["beside"].setdefault(algorithm, []).append(reading)
            print(f"{algorithm} beside Mercury: received {reading['received'][0]} then {reading['received'][1]} "
                  f"bytes, {reading['share']:.2f} of the link, Mercury {reading['mercury_share']:.2f}", flush=True)
    for algorithm, readings in results["beside"].items():
        shares = sorted(reading["share"] for reading in readings)
        print(f"{algorithm} beside Mercury: {shares[0]:.2f} to {shares[-1]:.2f}, median "
              f"{statistics.median(shares):.2f} of {len(shares)}", flush=True)
    return results


def broken(results):
    """What docs/reliability.md promises of Mercury and these results do not show."""
    def mine(part):
        return [result for result in results[part] if result["kind"] == "mercury"]

    for result in mine("steps"):
        for before, row in zip([None, *result["phases"]], result["phases"]):
            what = f"at {row['mbit']} Mb/s"
            if row["goodput"] < 0.9:
                yield f"goodput {row['goodput']:.3f} {what}"
            if before and (row["rtts"] is None or row["rtts"] > 20):
                yield f"settled after {row['rtts']} round trips {what}"
        if result["queue_drops"]:
            yield f"{result['queue_drops']} frames dropped"
    for result in mine("losses"):
        for row, least in zip(result["phases"][1:], (0.9, 0.7)):
            if row["of_lossless"] < least:
                yield f"{row['of_lossless']:.3f} of lossless at {row['loss_percent']} %"
    for result in mine("steps") + mine("losses"):
        if not result["verified"]:
            yield "a sum is wrong"
        for row in result["phases"]:
            if row["jain"] < 0.95:
                yield f"Jain {row['jain']:.3f} at {row['mbit']} Mb/s, {row['loss_percent']} % lost"
    for algorithm, readings in results["beside"].items():
        share = statistics.median(reading["share"] for reading in readings)
        if share < 1 / 3:
            yield f"{algorithm} beside Mercury has {share:.2f} of the link"


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=pathlib.Path(__file__).resolve().parents[2] / "build")
    parser.add_argument("--seconds", type=float, default=4, help="of each phase")
    parser.add_argument("--senders", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1, help="how often all phases run")
    parser.add_argument("--readings", type=int, default=5, help="of each TCP flow beside Mercury")
    parts = ["steps", "losses", "beside"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    kinds = ["mercury", "cubic", "bbr"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--congestion", default="adaptive", choices=["adaptive", "fixed"], help="of Mercury")
    parser.add_argument("--min-probe-timeout", default="2ms", help="of Mercury's sessions")
    parser.add_argument("--prefix", default=f"incast{os.getpid()}", help="of the namespaces")
    parser.add_argument("--json", help="where the numbers go")
    parser.add_argument("--check", action="store_true", help="status 1 if a promise of docs/reliability.md is not kept")
    options = parser.parse_args()
    build = pathlib.Path(options.build)
    built.need(*(build / program for program in (
        "apps/stackd/mercury-stackd", "apps/ctl/mercuryctl", "benchmarks/goodput/goodput_client")))
    names = ["server", "tcp"] + [f"w{i}" for i in range(options.senders)]
    try:
        with (tempfile.TemporaryDirectory(prefix="mercury-incast-") as folder,
              Lab(options.prefix, names, rate_mbit=MBIT, queue_bytes=1 << 20) as lab):
            site = Site(lab, build, pathlib.Path(folder), options)
            try:
                site.start_daemons()
                results = run(site, options)
            finally:
                site.close()
    except LabError as why:
        print(why, file=sys.stderr)
        return 1
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    failures = list(broken(results)) if options.check else []
    for failure in failures:
        print(f"broken: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
