#!/usr/bin/python3
"""Which policy is ahead of Mercury, in settings that are drawn at random.

    benchmarks/papers/behind.py --settings 100
    benchmarks/papers/behind.py --settings 1 --seed 23          one of them again
    benchmarks/papers/behind.py --light --settings 30           smaller ones, some seconds of a core each
    benchmarks/papers/behind.py --many --settings 10            16 to 64 hosts a side, some minutes of a core each

Each seed draws a setting: model, workers and servers, bandwidth, links that are alike, differ or change, marks, room
before links, delay, frames, jitter. With --light a seed draws a small model, up to four hosts a side, frames of 9000,
and more often servers whose links are slower than the workers', where Mercury was furthest behind. With --many it draws
16, 32 or 64 workers and servers, a small model, and links that are slow for it, where a tensor has a few chunks for each
server. All policies are simulated in it. Prints a line for each setting: how much longer Mercury's iteration is than the
best of the others', in percent (below zero: it is ahead), and whose that is; the worst ones first. Leaves BEHIND.csv in
out/papers. Answers are kept, as sweep.py's. Status: 0; 1 when a simulation fails or, with --most, where Mercury is
further behind than that; 2 for a wrong command line.
"""
import argparse
import csv
import os
import pathlib
import random
import shlex
import sys

from lab import ROOT, Lab, status_of

sys.path.insert(0, str(ROOT / "tools"))
import recording  # noqa: E402

MERCURY = "mercury"
OTHERS = ("mercury-fifo", "p3", "byteps", "bytescheduler", "wfbp")
MODELS = ("alexnet", "vgg16", "vgg19", "resnet50", "mobilenet", "bert-base")
# A core simulates a million frames a second: more hosts than these are --many's, and scale.csv's.
CLUSTERS = ((2, 2), (2, 2), (2, 1), (2, 4), (4, 4), (4, 2), (8, 4), (8, 8))
GBPS = (1, 2, 5, 10, 10, 25, 40, 100)
# As in the paper's sections on links that change; P3 becomes steady after some iterations.
STEADY = ("--iterations", "10", "--warmup", "4")
# Small models, few hosts, and servers' links as wide as others', slower, or changing.
LIGHT_MODELS = ("resnet50", "mobilenet")
LIGHT_CLUSTERS = ((2, 2), (2, 1), (2, 4), (4, 2), (4, 4))
LIGHT_STEADY = ("--iterations", "6", "--warmup", "3")
# Of links that draw new rates: a faster policy meets other rates, and few iterations would compare those.
LIGHT_CHANGING = ("--iterations", "60", "--warmup", "3")
MANY = (16, 32, 64)
MANY_STEADY = ("--iterations", "2")
COLUMNS = ("seed", "behind_percent", "best", "mercury_s", "best_s", "setting")


def links(draw, gbps):
    """Rules of links: most often none, or of those that one side has."""
    who = draw.choice(("servers", "workers", "all", "servers.down", "servers.up", "workers.down", "workers.up"))
    changing = f"{who}=random:{gbps * 100}Mbps-{gbps}Gbps/{draw.choice((50, 200, 500, 2000))}ms"
    slower = f"{draw.choice(('server0', 'worker0', 'servers', 'workers'))}={gbps * draw.choice((100, 300, 500, 800))}Mbps"
    return draw.choice(((), ("--link", changing), ("--link", changing), ("--link", slower)))


def setting(seed):
    """mercury-sim's options but for the policy."""
    draw = random.Random(seed)
    workers, servers = draw.choice(CLUSTERS)
    gbps = draw.choice(GBPS)
    options = ["--trace", draw.choice(MODELS), "--workers", str(workers), "--servers", str(servers),
               "--bandwidth", f"{gbps}Gbps", "--seed", str(seed), *links(draw, gbps)]
    frame = draw.choice((9000, 9000, 1500))
    marks = draw.choice((None, None, f"{65 * frame // 6}B"))  # 65 frames of 1500 at 10 Gb/s, as DCTCP's
    room = draw.choice((None, None, None, "400KB", "1MB"))
    options += ["--mtu", str(frame), "--delay", draw.choice(("1us", "1us", "5us", "25us"))]
    options += ["--ecn", marks] if marks else []
    options += ["--queue", room] if room else []
    options += ["--jitter", "0.1"] if draw.random() < 0.25 else []
    return tuple(options)


def light_setting(seed):
    """As setting(), and cheap."""
    draw = random.Random(seed)
    workers, servers = draw.choice(LIGHT_CLUSTERS)
    gbps = draw.choice((1, 2, 5, 10))
    rules = draw.choice(((), ("--link", f"servers={gbps * draw.choice((100, 300, 500))}Mbps"),
                         ("--link", f"server0={gbps * draw.choice((100, 300, 500))}Mbps"), links(draw, gbps)))
    marks = draw.choice(((), (), ("--ecn", "97500B")))
    return ("--trace", draw.choice(LIGHT_MODELS), "--workers", str(workers), "--servers", str(servers), "--bandwidth",
            f"{gbps}Gbps", "--seed", str(seed), *rules, *marks)


def many_setting(seed):
    """As setting(), of many hosts."""
    draw = random.Random(seed)
    workers = draw.choice(MANY)
    servers = draw.choice(MANY)
    frame = draw.choice((9000, 9000, 1500))
    marks = draw.choice((None, None, f"{65 * frame // 6}B"))
    jitter = draw.choice((None, None, "0.1"))
    return ("--trace", draw.choice(LIGHT_MODELS), "--workers", str(workers), "--servers", str(servers), "--bandwidth",
            f"{draw.choice((2, 3, 5, 10))}Gbps", "--seed", str(seed), "--mtu", str(frame), *(("--ecn", marks) if marks else ()),
            *(("--jitter", jitter) if jitter else ()))


def asked(seed, kind):
    """What of a setting does not depend on the policy."""
    if kind == "many":
        return (*many_setting(seed), *MANY_STEADY)
    if kind != "light":
        return (*setting(seed), *STEADY)
    drawn = light_setting(seed)
    return (*drawn, *(LIGHT_CHANGING if any("random:" in option for option in drawn) else LIGHT_STEADY))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=20, metavar="N", help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first; the others follow [%(default)s]")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--light", dest="kind", action="store_const", const="light", help="settings that cost seconds")
    kind.add_argument("--many", dest="kind", action="store_const", const="many", help="settings of many hosts")
    parser.add_argument("--policies", nargs="+", default=list(OTHERS), metavar="POLICY", help="the others %(default)s")
    parser.add_argument("--most", type=float, metavar="PERCENT", help="fail where Mercury is further behind")
    parser.add_argument("--sim", default=ROOT / "build" / "apps" / "sim" / "mercury-sim", help="[%(default)s]")
    parser.add_argument("--out", default=ROOT / "out" / "papers", type=pathlib.Path, help="[%(default)s]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="append to this CSV file, such as docs/records/behind.csv")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster [the local cores]")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="without --scheduler [%(default)s]")
    arguments = parser.parse_args()
    if arguments.settings < 1 or arguments.cores < 1:
        parser.error("--settings, --cores: at least 1")
    return arguments


def row(seed, times, policies, kind):
    best = min(policies, key=lambda policy: times[seed, policy])
    mine, theirs = times[seed, MERCURY], times[seed, best]
    return {"seed": seed, "behind_percent": 100 * (mine / theirs - 1), "best": best, "mercury_s": mine, "best_s": theirs,
            "setting": shlex.join(asked(seed, kind))}


def report(rows, path):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for one in rows:
        print(f"{one['behind_percent']:+7.2f} %  {one['best']:<13} {one['mercury_s']:.6f} s, {one['best_s']:.6f} s  "
              f"seed {one['seed']}: {one['setting']}")
    behind = sum(one["behind_percent"] > 0.1 for one in rows)
    worst = rows[0]
    print(f"Mercury is more than 0.1 % behind in {behind} of {len(rows)} settings, by {worst['behind_percent']:.2f} % at most")
    return {"settings": len(rows), "behind": behind, "most_behind_percent": f"{worst['behind_percent']:.2f}", "by": worst["best"]}


def main():
    arguments = parse()
    seeds = range(arguments.seed, arguments.seed + arguments.settings)
    with Lab(arguments.sim, arguments.out, scheduler=arguments.scheduler, cores=arguments.cores) as lab:
        answers = lab.ask_all({(seed, policy): ("--quiet", "--policy", policy, *asked(seed, arguments.kind))
                               for seed in seeds for policy in (MERCURY, *arguments.policies)})
    times = {key: answer["iteration_s"] for key, answer in answers.items()}
    rows = [row(seed, times, arguments.policies, arguments.kind) for seed in seeds]
    rows.sort(key=lambda one: -one["behind_percent"])
    summary = report(rows, arguments.out / "BEHIND.csv")
    if arguments.record:
        recording.append(arguments.record, [summary], in_virtual_time=True)
    return int(arguments.most is not None and rows[0]["behind_percent"] > arguments.most)


if __name__ == "__main__":
    sys.exit(status_of(main))
