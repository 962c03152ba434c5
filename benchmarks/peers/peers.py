#!/usr/bin/env python3
"""Mercury and what a user would have instead of it, in pairs, in one session: figures of both, and their ratio.

    sudo benchmarks/peers/peers.py                               all groups, 5 runs of each, some hours
    sudo benchmarks/peers/peers.py --groups sockets ports        two of them
    sudo benchmarks/peers/peers.py --quick                       one short run of the three that take seconds: a smoke test

    sockets   one connection between two hosts: mercury-perf, beside epoll, io_uring, iperf3, ZeroMQ and UCX over kernel TCP
    programs  the same program over Mercury and over the kernel's TCP (benchmarks/sockets/sockets.py)
    ports     Mercury's goodput over a port, beside a loop without a protocol and dpdk-testpmd (benchmarks/goodput/goodput.py)
    sums      sums of one tensor beside Gloo, Open MPI and ps-lite (benchmarks/emulation/sizes.py)
    models    an iteration of a model, fused as their users have it (benchmarks/emulation/emulate.py)
    pytorch   an iteration of PyTorch, beside DDP over Gloo (benchmarks/pytorch/compare.py)

A run measures each peer and Mercury once, one after the other, and all have one run before any has its second. Printed are
median, least and most of the runs, and of the runs' own ratios. All processes, Mercury's daemons too, run at nice -20, where
Mercury's engines are by default. benchmarks/README.md says how to read the result, and what is not comparable.

A peer that is not there, or fails in any run, is named with the reason, and has no figure in its group. Needs root, and
`tools/build`. Status: 0; 1 when something was not measured; 2 for a wrong command line; 77 without root.
"""
import argparse
import json
import os
import pathlib
import platform
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools")]
import recording  # noqa: E402
from called import Models, Ports, Programs, PyTorch, Sums  # noqa: E402
from pairs import FIELDS, MERCURY, NotMeasured, Pairs, record_of, table_of  # noqa: E402
from wire import MESSAGES, Sockets  # noqa: E402

GROUPS = {group.NAME: group for group in (Sockets, Programs, Ports, Sums, Models, PyTorch)}
URGENT = -20  # Mercury's engines' by default
# Workers and servers: rings of 2, 4 and 8; one server; the workers' hosts serve (0).
CLUSTERS = ["2+1", "2+2", "2+0", "4+4", "8+8"]
SIZES = ["4B", "4KB", "32KB", "256KB", "1MB", "8MB", "64MB", "512MB"]
SETTINGS = ["memif-1500", "memif-9000", "af_xdp-1500", "af_xdp-3502", "af_packet-9000", "uring"]
QUICK = {"groups": ["sockets", "ports", "sums"], "runs": 1, "scale": 0.01, "message_sizes": [64], "seconds": 0.3,
         "port_settings": ["uring"], "working_sets": ["1MB"], "clusters": [(2, 1)], "sizes": ["4KB"], "models": ["resnet50"],
         "iterations": 2, "gradients": ["even"]}


def cluster(text):
    workers, plus, servers = text.partition("+")
    if not (plus and workers.isdigit() and servers.isdigit() and 2 <= int(workers) <= 64 and int(servers) <= 64):
        raise argparse.ArgumentTypeError(f"{text}: expected WORKERS+SERVERS, 2 to 64 and 0 to 64")
    return int(workers), int(servers)


def above_zero(text):
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return number


def about(options):
    """What decides the figures besides the commit."""
    return {"machine": recording.machine(), "kernel": platform.release(), "cores": options.cores, "commit": recording.COMMIT,
            "scheduling": f"nice {os.getpriority(os.PRIO_PROCESS, 0)}", "runs": options.runs, "command": recording.command()}


def say(text):
    print(text, file=sys.stderr, flush=True)


def become_urgent():
    """And all that is started from now on. Who may not, whose engines may not either: then all stay as they are."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    except PermissionError:
        say(f"peers.py: nice {URGENT} needs CAP_SYS_NICE")


class Session:
    def __init__(self, options):
        self.options, self.pairs = options, Pairs()
        self.groups = [GROUPS[name](options) for name in options.groups]

    def run(self):
        for run in range(self.options.runs):
            for group in self.groups:
                if not self.pairs.misses(group.NAME, MERCURY):
                    self.one(group, run)
                    say(f"run {run + 1} of {self.options.runs}: {group.NAME}")
            self.save()

    def one(self, group, run):
        """Hosts and daemons of a group are there while it is measured. Whatever happens, none stays."""
        try:
            group.open()
            group.check(self.pairs)
            group.turn(run, self.pairs)
        except (AssertionError, NotMeasured) as why:  # TwoHosts says so that a daemon has failed
            self.pairs.miss(group.NAME, MERCURY, why)
        finally:
            group.close()

    def save(self):
        if self.options.json:
            report = about(self.options) | {"rows": [*self.pairs.rows()], "not_measured": self.pairs.reasons()}
            self.options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, help="[all]")
    parser.add_argument("--runs", type=above_zero, default=5, help="of each pair, in turns [%(default)s]")
    parser.add_argument("--peers", nargs="+", choices=Sockets.PEERS, default=list(Sockets.PEERS), help="sockets: beside Mercury [all]")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE",
                        help="sockets, programs: of both daemons' configuration, such as engine.spin=50us; more than once")
    parser.add_argument("--message-sizes", nargs="+", type=int, choices=MESSAGES, default=list(MESSAGES), help="sockets: bytes [all]")
    parser.add_argument("--port-settings", nargs="+", choices=SETTINGS, default=SETTINGS, help="ports [all]")
    parser.add_argument("--working-sets", nargs="+", choices=["1MB", "256MB"], default=["1MB", "256MB"], help="ports [both]")
    parser.add_argument("--seconds", type=float, default=1, help="ports: of one measurement [%(default)s]")
    parser.add_argument("--clusters", nargs="+", type=cluster, default=[cluster(text) for text in CLUSTERS], metavar="W+S",
                        help=f"sums: workers and servers; 0: the workers' hosts serve [{' '.join(CLUSTERS)}]")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE", help=f"sums: as sizes.py's [{' '.join(SIZES)}]")
    parser.add_argument("--mbit", type=above_zero, default=1000, help="sums: of every link [%(default)s]")
    parser.add_argument("--models", nargs="+", choices=["resnet50", "vgg16", "vgg19", "alexnet", "bert-base"],
                        default=["resnet50", "vgg16"], help="models [%(default)s]")
    parser.add_argument("--iterations", type=above_zero, default=30, help="pytorch: of a run [%(default)s]")
    parser.add_argument("--gradients", nargs="+", choices=["last", "even", "first"], default=["last", "even", "first"],
                        help="pytorch: where a model's weight lies [all]")
    parser.add_argument("--quick", action="store_true", help="one short run of sockets, ports and sums; other options say otherwise")
    parser.add_argument("--json", type=pathlib.Path, help="all of it, after each run")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for each pair, as docs/records has them")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="[%(default)s]")
    parser.set_defaults(scale=1.0)
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args()
    options.groups = list(dict.fromkeys(options.groups or GROUPS))
    options.build, options.cores = options.build.resolve(), len(os.sched_getaffinity(0))
    return options


def main():
    options = parse()
    if os.geteuid() != 0:
        print("peers.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77
    if options.record:
        recording.check(options.record, FIELDS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    become_urgent()
    session = Session(options)
    for what, is_so in about(options).items():
        print(f"{what}: {is_so}", flush=True)
    session.run()
    rows, reasons = [*session.pairs.rows()], session.pairs.reasons()
    print(table_of(rows, reasons))
    if options.record and rows:
        recording.append(options.record, [record_of(row) for row in rows])
    return 1 if reasons else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except recording.RecordError as why:
        sys.exit(f"peers.py: {why}")
    except KeyboardInterrupt:
        sys.exit("peers.py: interrupted")
