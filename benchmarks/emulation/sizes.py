#!/usr/bin/python3
"""Sums of one tensor, by its size, over Mercury, Gloo, Open MPI and ps-lite: what one takes.

    sudo benchmarks/emulation/sizes.py                                   2 workers and 1 server, 4 B to 512 MB
    sudo benchmarks/emulation/sizes.py --workers 4 --servers 4 --mbit 250
    sudo benchmarks/emulation/sizes.py --servers 0                       the workers' hosts serve

Virtual hosts, each with a link of --mbit both ways to one switch, and one tensor of float32 under way at a time: pushed, and
pushed again as soon as its sum is there. Mercury has a mercury-stackd over a DPDK port on each host, and mercury-perf in the
workers. Gloo and Open MPI reduce between the workers, ps-lite has the same servers; all three over kernel TCP, on the same
links in the same run, in the scheduling class of Mercury's engines, each call by itself. Every library's sums are compared.

A run is a few seconds of one library at one size, the number of sums decided beforehand. All have one run before any has its
second. Printed are milliseconds: the median of the runs, and the least and the most of them. "least possible" is what the
bytes alone take, without headers: through the links of Mercury's servers and workers, and for a ring of the workers.
ps-lite is no package: benchmarks/emulation/build-pslite builds it. What cannot be run is named, with the reason.

Needs root, and `meson compile -C build`. Leaves sizes.json in --out.
Status: 0; 1 when something could not be run, 2 for a wrong command line.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile

from emulate import BUCKET_FRAMES, RIVALS, ROOT, Hosts, LabError, middle, say, spread, write_json
import recording  # beside netlab, which emulate has found

SIZES = ["4B", "4KB", "32KB", "256KB", "1MB", "8MB", "64MB", "512MB"]
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
RUN_S = 2  # about; one with few sums takes longer
ROUNDS = (3, 500)  # least and most
LIBRARIES = {"gloo": "gloo-unfused", "mpi": "mpi-unfused", "pslite": "pslite"}
NAMED = {"mercury": "Mercury", "gloo": "Gloo", "mpi": "Open MPI", "pslite": RIVALS["pslite"]}
FIELDS = ["workers", "servers", "link", "size", "library", "scheduling", "run", "sum_ms", "least_possible_ms"]


def bytes_of(text):
    unit = text.lstrip("0123456789")
    number = text.removesuffix(unit)
    if not number or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text}: expected a number and B, KB, MB or GB")
    size = int(number) * UNITS[unit] // 4 * 4
    if size == 0:
        raise argparse.ArgumentTypeError(f"{text}: not one float32")
    return size


class Sizes(Hosts):
    def least_s(self, size, library):
        """What the bytes take of the busiest link, in the direction in which it carries more."""
        workers, servers = len(self.workers), len(self.servers)
        each = size * 8 / (self.options.mbit * 1e6)
        if library in ("gloo", "mpi"):
            return each * 2 * (workers - 1) / workers
        if self.servers is self.workers:  # its own part stays on a host, as a worker's and as a server's
            return each * 2 * (workers - 1) / workers
        return each * max(1, workers / servers)

    def rounds(self, size):
        return int(min(max(RUN_S / (self.least_s(size, "mercury") + 1e-3), ROUNDS[0]), ROUNDS[1]))

    def mean_s(self, library, size):
        return self.by_mercury(size) if library == "mercury" else self.by_rival(library, size)

    def by_mercury(self, size):
        with self.daemons():
            reports = self.run_all(
                [(name, [self.options.build / "apps/perf/mercury-perf", "tensors", "--mode", "daemon", "--workers", len(self.workers),
                         "--servers", len(self.servers), "--rank", rank, "--rendezvous", self.rendezvous, "--sizes", f"{size}B",
                         "--rounds", self.rounds(size), "--repeats", 1, "--warmup", "1ms", "--json", "-"],
                  {"MERCURY_SOCKET": f"{self.folder / name}.sock"}) for rank, name in enumerate(self.workers)])
        (row,) = json.loads(reports[0])["rows"]
        return 1 / row["operations_per_s"]["median"]

    def by_rival(self, library, size):
        trace = self.folder / f"{size}.csv"
        trace.write_text(f"layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n0,tensor,{size // 4},f32,0,0,0\n", encoding="utf-8")
        self.options.iterations = self.rounds(size)
        took_s = self.rival(LIBRARIES[library], trace, 1)
        return sum(took_s) / len(took_s)


class Sweep:
    def __init__(self, options, hosts):
        self.options, self.hosts = options, hosts
        self.seconds = {(size, library): [] for size in options.sizes for library in options.libraries}
        self.missing = {}  # library: why

    def run(self):
        for number in range(self.options.runs):
            for size in self.options.sizes:
                for library in self.options.libraries:
                    if library not in self.missing:
                        self.one(size, library)
            say(f"run {number + 1} of {self.options.runs} is done")
            self.save()

    def one(self, size, library):
        try:
            self.seconds[size, library].append(self.hosts.mean_s(library, size))
        except LabError as why:
            if library == "mercury":
                raise
            self.missing[library] = str(why).splitlines()[0]

    def measured(self):
        return [library for library in self.options.libraries if library not in self.missing]

    def save(self):
        rows = [{"bytes": size, "library": library, "least_possible_s": self.hosts.least_s(size, library), "sums_s": self.seconds[size, library]}
                for size in self.options.sizes for library in self.measured()]
        write_json(self.options.out / "sizes.json",
                   {"workers": len(self.hosts.workers), "servers": self.options.servers, "mbit": self.options.mbit,
                    "mtu": self.options.mtu, "rows": rows, "not_run": self.missing})

    def print(self):
        libraries = self.measured()
        servers = f"{self.options.servers} servers" if self.options.servers else "servers on their hosts"
        print(f"{len(self.hosts.workers)} workers, {servers}, links of {self.options.mbit} Mb/s, MTU {self.options.mtu}: a sum, ms\n")
        print(f"| size | least possible, servers | a ring | {' | '.join(NAMED[library] for library in libraries)} | the best of them / Mercury |")
        print("|---|---|---|" + "---|" * len(libraries) + "---|")
        for size in self.options.sizes:
            ms = {library: [1e3 * s for s in self.seconds[size, library]] for library in libraries}
            others = [middle(ms[library]) for library in libraries if library != "mercury"]
            ratio = f"{min(others) / middle(ms['mercury']):.2f}" if others else ""
            least = " | ".join(f"{1e3 * self.hosts.least_s(size, library):.3g}" for library in ("mercury", "gloo"))
            print(f"| {named(size)} | {least} | {' | '.join(spread(ms[library], '{:.3g}') for library in libraries)} | {ratio} |")
        for library, why in self.missing.items():
            print(f"\n{NAMED[library]} was not run: {why}")

    def records(self):
        for (size, library), all_s in self.seconds.items():
            least = 1e3 * self.hosts.least_s(size, library)
            for run, seconds in enumerate(all_s if library not in self.missing else []):
                yield dict(zip(FIELDS, (len(self.hosts.workers), self.options.servers, f"{self.options.mbit}Mbps", named(size), library,
                                        self.options.scheduling, run + 1, f"{1e3 * seconds:.4g}", f"{least:.4g}")))


def named(size):
    return next(f"{round(size / unit)} {name}" for name, unit in reversed(UNITS.items()) if size >= unit)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=bytes_of, default=[bytes_of(text) for text in SIZES], metavar="SIZE",
                        help=f"[{' '.join(SIZES)}]")
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), choices=LIBRARIES, help="beside Mercury [all]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--servers", type=int, default=1, help="hosts that serve; 0: the workers' hosts do [%(default)s]")
    parser.add_argument("--mbit", type=int, default=1000, help="of every link [%(default)s]")
    parser.add_argument("--mtu", type=int, default=9000, help="[%(default)s]")
    parser.add_argument("--device", default="af_packet", choices=["af_packet", "af_xdp"])
    parser.add_argument("--scheduling", default="urgent", choices=["normal", "urgent", "realtime"],
                        help="of Mercury's engines and of the other libraries' processes [%(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns [%(default)s]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for each run, as in docs/records/sizes.csv")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "emulation", help="[%(default)s]")
    options = parser.parse_args()
    if min(options.mbit, options.runs) < 1 or not 2 <= options.workers <= 64 or not 0 <= options.servers <= 64:
        parser.error("--mbit and --runs: above 0; --workers: 2 to 64; --servers: 0 to 64")
    options.build = options.build.resolve()
    wanted = ["apps/stackd/mercury-stackd", "apps/perf/mercury-perf"]
    wanted += ["benchmarks/emulation/rival_replay"] if options.libraries else []
    for program in wanted:
        if not (options.build / program).is_file():
            parser.error(f"no {options.build / program}: tools/build {program} makes it")
    vars(options).update(libraries=["mercury", *dict.fromkeys(options.libraries)], queue=1 << 20, others_scheduling="same", verify=True,
                         bucket=BUCKET_FRAMES * (options.mtu + 14))
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("sizes.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.record:
        recording.check(options.record, FIELDS)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        hosts = Sizes(options, folder, stack, options.workers, options.servers)
        sweep = Sweep(options, hosts)
        sweep.run()
    sweep.print()
    if options.record:
        recording.append(options.record, [*sweep.records()])
    return 1 if sweep.missing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, recording.RecordError) as why:
        sys.exit(f"sizes.py: {why}")
    except KeyboardInterrupt:
        sys.exit("sizes.py: interrupted; sizes.json has the runs that are done")
