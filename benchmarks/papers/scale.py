#!/usr/bin/python3
"""How near Mercury comes to the least possible iteration as hosts are added, and what it is that the rest goes into.

    benchmarks/papers/scale.py                                              8+8, 8+4, 64+64 and 256+256, minutes to an hour of a core
    benchmarks/papers/scale.py --clusters 64+64 --mtus 9000 --most 1.02     one of them, some minutes, held to a bound

Each cluster, workers + servers, is simulated with frames of each of --mtus, on links that mark frames (--marks, a part of 97,500
bytes for 10 Gb/s) and on links that do not. Prints a line for each: the iteration by the least that any policy can take (Theorem 1,
which knows no frames), and, in percent of that least, how much of it is

    framing    frames' headers, checksums and gaps, as the equations have them
    latency    propagation, and what the last frames wait for each other
    protocol   all else: acknowledgements, waiting, frames that were sent again; below zero: what overlaps

Framing apart, the iteration takes 1 plus latency and protocol. Answers are kept, as sweep.py's. Leaves SCALE.csv in out/papers.
Status: 0; 1 when a simulation fails or, with --most, where one is above that, framing apart; 2 for a wrong command line.
"""
import argparse
import csv
import os
import pathlib
import sys

from lab import ROOT, Lab, status_of, steady

MERCURY = "mercury"
PARTS = ("framing", "latency", "protocol")
COLUMNS = ("workers", "servers", "mtu", "marks", "iteration_s", "optimum_s", "ratio", "framing_apart", *(f"{part}_percent" for part in PARTS),
           "frames", "sent_again", "lost")


def cluster(text):
    workers, plus, servers = text.partition("+")
    if not (plus and workers.isdigit() and servers.isdigit() and 1 <= int(workers) <= 1024 and 1 <= int(servers) <= 1024):
        raise argparse.ArgumentTypeError(f"{text}: expected WORKERS+SERVERS, 1 to 1024 of each")
    return int(workers), int(servers)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", type=cluster, metavar="W+S", default=[(8, 8), (8, 4), (64, 64), (256, 256)],
                        help="[8+8 8+4 64+64 256+256]")
    parser.add_argument("--mtus", nargs="+", type=int, default=[9000, 1500], metavar="BYTES", help="[9000 1500]")
    parser.add_argument("--marks", nargs="+", default=["none", "97500B"], help="none, or as mercury-sim's --ecn [none 97500B]")
    parser.add_argument("--trace", default="resnet50", help="a shipped model's name, or a file [%(default)s]")
    parser.add_argument("--bandwidth", default="10Gbps", help="of every link [%(default)s]")
    parser.add_argument("--most", type=float, metavar="RATIO", help="fail where Mercury, framing apart, takes more of the least possible")
    parser.add_argument("--sim", default=ROOT / "build" / "apps" / "sim" / "mercury-sim", help="[%(default)s]")
    parser.add_argument("--out", default=ROOT / "out" / "papers", type=pathlib.Path, help="[%(default)s]")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster [the local cores]")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="without --scheduler [%(default)s]")
    arguments = parser.parse_args()
    if arguments.cores < 1:
        parser.error("--cores: at least 1")
    return arguments


def question(arguments, workers, servers, mtu, marks):
    options = ("--mtu", str(mtu), *(() if marks == "none" else ("--ecn", marks)))
    path = pathlib.Path(arguments.trace)
    trace = str(path.resolve()) if path.is_file() else arguments.trace
    return ("--quiet", "--trace", trace, "--policy", MERCURY, "--bandwidth", arguments.bandwidth, "--workers", str(workers), "--servers",
            str(servers), *options, *steady(MERCURY, workers == servers, options))


def row(workers, servers, mtu, marks, answer):
    least = answer["optimum_s"]
    parts = {f"{part}_percent": 100 * answer[f"{part}_s"] / least for part in PARTS}
    return {"workers": workers, "servers": servers, "mtu": mtu, "marks": marks, "iteration_s": answer["iteration_s"], "optimum_s": least,
            "ratio": answer["iteration_s"] / least, "framing_apart": (answer["iteration_s"] - answer["framing_s"]) / least, **parts,
            "frames": answer["frames"], "sent_again": answer["retransmits"], "lost": answer["drops"]}


def report(rows, path):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("| hosts | MTU | marks | iteration / least | framing apart | framing % | latency % | protocol % | sent again | lost |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    for one in rows:
        parts = " | ".join(f"{one[f'{part}_percent']:.2f}" for part in PARTS)
        print(f"| {one['workers']}+{one['servers']} | {one['mtu']} | {one['marks']} | {one['ratio']:.4f} | {one['framing_apart']:.4f} | {parts} | "
              f"{one['sent_again']} | {one['lost']} |")


def main():
    arguments = parse()
    asked = {(*hosts, mtu, marks): question(arguments, *hosts, mtu, marks)
             for hosts in arguments.clusters for mtu in arguments.mtus for marks in arguments.marks}
    with Lab(arguments.sim, arguments.out, scheduler=arguments.scheduler, cores=arguments.cores) as lab:
        answers = lab.ask_all(asked)
    rows = [row(*key, answer) for key, answer in answers.items()]
    report(rows, arguments.out / "SCALE.csv")
    return int(arguments.most is not None and max(one["framing_apart"] for one in rows) > arguments.most)


if __name__ == "__main__":
    sys.exit(status_of(main))
