#!/usr/bin/python3
"""What the exchange itself carries as workers are added to a job, or jobs to their hosts: no computing.

    sudo benchmarks/emulation/many.py workers               1, 2, 4 and 8 workers, 1 server
    sudo benchmarks/emulation/many.py workers --servers 4 --counts 4 8 16
    sudo benchmarks/emulation/many.py jobs                  1, 2, 4 and 8 jobs at once, of the same 2 workers' hosts and server

Virtual hosts, each with a link of --mbit both ways to one switch and a mercury-stackd over a DPDK port. mercury-perf pushes all
tensors of a model, each again as soon as its sum is there, and compares sums before and after. Jobs are counted from when the last
of them has begun until the first has ended. All counts have one run before any has its second.

Printed are medians of the runs, with the least and the most. Gbit/s are of the model's bytes through a worker's link in each
direction; with several jobs, of all together. "of possible": by what the links allow for the bytes alone, where those of S
servers carry W/S times as much as those of W workers. "shares" are the least and the most of what a job got, by what each
would get of equal ones.

Needs root, and `tools/build`. Status: 0; 1 when something could not be run, 2 for a wrong command line, 77 without root.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile

from emulate import BUCKET_FRAMES, GBPS, ROOT, Hosts, LabError, middle, say, spread
import recording  # beside netlab, which emulate has found

REPEATS = 12  # of which some are in the time that counts
FIELDS = ["what", "count", "workers", "servers", "link", "model", "size_scale", "run", "gbit_per_s", "models_per_s", "least_share",
          "most_share", "of_possible"]


def rates_together(rows):
    """Gbit/s of each job while all of them ran. A repeat carries its bytes evenly, and nothing passes between two."""
    begin = max(row["repeats_ns"][0][0] for row in rows)
    end = min(row["repeats_ns"][-1][1] for row in rows)
    if begin >= end:
        raise LabError("the jobs did not run at the same time: more --seconds")
    within = lambda repeat: max(0, min(end, repeat[1]) - max(begin, repeat[0]))
    return [sum(row["rounds"] * row["bytes"] * 8 * within(repeat) / (repeat[1] - repeat[0]) for repeat in row["repeats_ns"]) / (end - begin)
            for row in rows]


class Crowd(Hosts):
    def perf(self, workers, job):
        """The commands of a job's workers, as run_all wants them."""
        options = self.options
        return [(name, [options.build / "apps/perf/mercury-perf", "tensors", "--mode", "daemon", "--workers", len(workers), "--servers",
                        len(self.servers), "--rank", rank, "--rendezvous", self.rendezvous, "--job", job, "--model", options.model,
                        "--size-scale", options.size_scale, "--repeats", REPEATS, "--time", f"{max(1, round(1000 * options.seconds / REPEATS))}ms", "--json", "-"],
                 {"MERCURY_SOCKET": f"{self.folder / name}.sock"}) for rank, name in enumerate(workers)]

    def once(self, count):
        """A run's figures."""
        several = self.options.what == "jobs"
        workers = self.workers if several else self.workers[:count]
        jobs = count if several else 1
        with self.daemons():
            reports = self.run_all([command for job in range(jobs) for command in self.perf(workers, f"job{job}")])
        rows = [json.loads(report)["rows"][0] for report in reports[::len(workers)]]  # of each job's first worker
        rates = rates_together(rows)
        possible = self.options.mbit / 1e3 / max(1, len(workers) / len(self.servers))
        return {"count": count, "workers": len(workers), "gbit_per_s": sum(rates), "models_per_s": sum(rates) * 1e9 / 8 / rows[0]["bytes"],
                "least_share": min(rates) * jobs / sum(rates), "most_share": max(rates) * jobs / sum(rates),
                "of_possible": sum(rates) / possible}


def print_table(options, runs):
    servers = f"{options.servers} server{'s' * (options.servers > 1)}"
    print(f"{options.model}, divided by {options.size_scale:g}; {servers}, links of {options.mbit} Mb/s, MTU {options.mtu}\n\n"
          f"| {options.what} | Gbit/s | models/s | of possible | by the first | shares |\n|---|---|---|---|---|---|")
    first = middle([run["gbit_per_s"] for run in runs[options.counts[0]]])
    for count, of in runs.items():
        column = lambda name: [run[name] for run in of]
        print(f"| {count} | {spread(column('gbit_per_s'), '{:.3g}')} | {spread(column('models_per_s'), '{:.3g}')} | "
              f"{spread(column('of_possible'), '{:.2f}')} | {middle(column('gbit_per_s')) / first:.2f} | "
              f"{min(column('least_share')):.2f} to {max(column('most_share')):.2f} |")


def records(options, runs):
    for count, of in runs.items():
        for number, run in enumerate(of):
            about = {"what": options.what, "servers": options.servers, "link": f"{options.mbit}Mbps", "model": options.model,
                     "size_scale": f"{options.size_scale:g}", "run": number + 1}
            yield {name: about[name] if name in about else run[name] if isinstance(run[name], int) else f"{run[name]:.4g}"
                   for name in FIELDS}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["workers", "jobs"], help="of which there are more and more")
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4, 8], help="[1 2 4 8]")
    parser.add_argument("--workers", type=int, default=2, help="jobs: of each [%(default)s]")
    parser.add_argument("--servers", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--model", default="resnet50", choices=GBPS)
    parser.add_argument("--size-scale", type=float, default=10, help="divides the model's tensors [%(default)s]")
    parser.add_argument("--seconds", type=float, default=6, help="of a run, about [%(default)s]")
    parser.add_argument("--mbit", type=int, default=1000, help="of every link [%(default)s]")
    parser.add_argument("--mtu", type=int, default=9000, help="[%(default)s]")
    parser.add_argument("--device", default="af_packet", choices=["af_packet", "af_xdp"])
    parser.add_argument("--scheduling", default="urgent", choices=["normal", "urgent", "realtime"], help="of the engines [%(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns [%(default)s]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for each run, as docs/records has them")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    options = parser.parse_args()
    counts = [*options.counts, options.workers, options.servers]
    if min(*counts, options.mbit, options.runs) < 1 or max(counts) > 64 or min(options.size_scale, options.seconds * 1000) < 1:
        parser.error("--counts, --workers, --servers: 1 to 64; --mbit, --runs, --size-scale: 1 or more; --seconds: 0.001 or more")
    options.build = options.build.resolve()
    for program in ("apps/stackd/mercury-stackd", "apps/perf/mercury-perf"):
        if not (options.build / program).is_file():
            parser.error(f"no {options.build / program}: tools/build {program} makes it")
    vars(options).update(counts=[*dict.fromkeys(options.counts)], queue=1 << 20, bucket=BUCKET_FRAMES * (options.mtu + 14))
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("many.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    if options.record:
        recording.check(options.record, FIELDS)
    runs = {count: [] for count in options.counts}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        workers = options.workers if options.what == "jobs" else max(options.counts)
        crowd = Crowd(options, folder, stack, workers, options.servers)
        for number in range(options.runs):
            for count in options.counts:
                runs[count].append(crowd.once(count))
            say(f"run {number + 1} of {options.runs} is done")
    print_table(options, runs)
    if options.record:
        recording.append(options.record, [*records(options, runs)])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, recording.RecordError) as why:
        sys.exit(f"many.py: {why}")
    except KeyboardInterrupt:
        sys.exit("many.py: interrupted")
