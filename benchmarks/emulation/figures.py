#!/usr/bin/python3
"""Figures of the Mercury paper on real ports: some points of each, beside the simulator.

    sudo benchmarks/emulation/figures.py                  all, 2.5 hours, nothing else running
    sudo benchmarks/emulation/figures.py fig13 fig21 --repeats 2
    benchmarks/emulation/figures.py --list

The hosts, links and programs of emulate.py: two workers and two servers, mercury-stackd over af_packet,
mercury-replay with real payloads that are verified. Links have 500 Mb/s for the paper's 10 Gb/s, and
all that takes time in programs (computing, start-ups of partitions, how long a changing link keeps a
rate) takes 20 times as long. mercury-sim gets the same traces, links and policies.

Each point is measured in --repeats runs, of one iteration or more after one of warm-up, the policies of a
figure in turns: a machine that becomes slower is slower for all. Where links change, each run has a seed of
its own, the same for all policies. Printed are medians of the runs and, in brackets, least and most; a gain
is of two runs in the same turn.

Needs root, and `meson compile -C build`. Leaves figures.json in --out, whole after each figure, with
the last run of every one, and a plot of each, emulated-FIGURE.svg.
Status: 0; 1 when a median takes over a tenth more or less than simulated (links that change and jobs that
drift against each other excepted: which iteration meets what is chance), or two policies that differ by
more than that are in another order, or a bound is missed; 2 for a wrong command line.
"""
import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import types

from emulate import (AROUND_S, BUCKET_FRAMES, ENOUGH_RUNS, ROOT, SERVERS, TOLERANCE, WORKERS, Hosts, LabError, Training, ask,
                     middle, run_in_turns, save, scaled, write_json)
from stretch import stretched_policy, stretched_time

import models  # noqa: E402, with recording, report and shared, where emulate.py looks for them
import recording  # noqa: E402
import report  # noqa: E402
from shared import HALVED, MIXES  # noqa: E402

MBIT, GBPS = 500, 10
FACTOR = GBPS * 1000 / MBIT
MB = 1_000_000
BYTEPS, P3 = (stretched_policy(name, FACTOR) for name in ("byteps", "p3"))
# Start-ups of 1 ms, as long as the paper allows, that do not overlap: its 73 % of line rate (Fig. 5).
SERIAL = stretched_policy("bytescheduler:partition=4MB,credit=4MB,startup=1ms", FACTOR)
KEYED = "wfbp:place=key"  # small tensors on one server each, as MXNet's native server places them
NAMES = {"mercury": "Mercury", "mercury-fifo": "without preemption", "wfbp": "native", KEYED: "native, small keys on one server",
         BYTEPS: "BytePS", P3: "P3", SERIAL: "start-ups do not overlap"}


@dataclasses.dataclass
class Case:
    """What trains at once, and over which links."""
    trainings: list
    options: tuple = ()  # of mercury-sim beside
    mbit: dict = dataclasses.field(default_factory=dict)  # host: its link's rate, where it is another
    changes: dict = dataclasses.field(default_factory=dict)  # host: [Mb/s in each PERIOD_S]


@dataclasses.dataclass
class Took:
    """Of one training, for each run: an iteration, in the mean of the workers and of the run, and the share of the first
    worker's uplink, in percent, that is used from its first push to its last pull."""
    simulated_s: list
    emulated_s: list
    uplink: list  # of runs of a single iteration: in others the last sum is there before the program comes for it


FIELDS = ["figure", "what", "unit", "paper", "run", "simulated", "emulated"]  # of docs/records/points.csv
PERIOD_S = 0.5 * FACTOR
DRAWS = 60


class Emulation:
    def __init__(self, hosts, options):
        self.hosts, self.options = hosts, options
        self.traces = types.SimpleNamespace(out=hosts.folder)  # where models.py puts them
        self.simulated = {}  # words of mercury-sim: what came of them

    def trace(self, model, total_ms=None):
        return models.table2_trace(self.traces, model, (total_ms or models.GTX_1080_TI_MS[model]) * FACTOR)

    def simulate(self, case):
        first, *others = case.trainings
        words = ("--quiet", "--trace", first.trace, "--policy", first.policy,
                 *(word for one in others for word in ("--also", f"{one.trace}@{one.policy}")),
                 *(word for rank, times in first.slow.items() for word in ("--slow", f"{rank}={times}")),
                 "--delay", "25us", "--queue", f"{self.options.queue}B", "--bucket", f"{self.hosts.lab.bucket_bytes}B",
                 "--iterations", "6" if others or case.changes else "3", *case.options)
        if words not in self.simulated:
            answer = ask(self.options, *words)
            self.simulated[words] = [job["iteration_s"] for job in (answer, *answer.get("other_jobs", []))]
        return self.simulated[words]

    def lengthened(self, case):
        """Its trainings with so many iterations that they end at about the same time."""
        simulated = self.simulate(case)
        longest = max(one.iterations * seconds for one, seconds in zip(case.trainings, simulated))
        return [one._replace(iterations=max(one.iterations, round(longest / seconds)))
                for one, seconds in zip(case.trainings, simulated)]

    def expected_s(self, case):
        return AROUND_S + max((1 + one.iterations) * seconds for one, seconds in zip(self.lengthened(case), self.simulate(case)))

    def run(self, cases):
        """For each name [Took] of the trainings of its case, --repeats runs of all, in turns. A list of cases has one for
        each run."""
        repeats, took = self.options.repeats, {name: [] for name in cases}
        lists = {name: iter(case if isinstance(case, list) else [case] * repeats) for name, case in cases.items()}
        expected_s = sum(self.expected_s(case[0] if isinstance(case, list) else case) for case in cases.values())
        run_in_turns({name: lambda name=name: self.once(next(lists[name])) for name in cases}, repeats, repeats * expected_s,
                     lambda run, name, answer: took[name].append(answer))
        return {name: [Took(*map(joined, zip(*map(dataclasses.astuple, of_training)))) for of_training in zip(*runs)]
                for name, runs in took.items()}

    def once(self, case):
        """[Took] of the case's trainings, in one run."""
        lab, simulated, trainings = self.hosts.lab, self.simulate(case), self.lengthened(case)
        self.hosts.mbit = {name: case.mbit.get(name, MBIT) for name in self.hosts.names}
        for host in lab.hosts:
            lab.set_rate(host, self.hosts.mbit[host.name])
        before, _ = lab.link_bytes(lab["w0"])
        with self.changing(case.changes):
            reports, _ = self.hosts.train(trainings)
        sent = lab.link_bytes(lab["w0"])[0] - before
        took = []
        for of_ranks, one, seconds in zip(reports, trainings, simulated):
            all_s, tensors = [mean(of_all) for of_all in zip(*(report["iterations_s"] for report in of_ranks))], of_ranks[0]["tensors"]
            exchanging_s = max(tensor["pulled_s"] for tensor in tensors) - min(tensor["ready_s"] for tensor in tensors)
            share = 100 * 8 * sent / (one.iterations + 1) / (MBIT * MB) / exchanging_s
            took.append(Took([seconds], [mean(all_s)], [share] if one.iterations == 1 else []))
        return took

    @contextlib.contextmanager
    def changing(self, changes):
        """Links that have another rate every PERIOD_S."""
        lab, end, failed = self.hosts.lab, threading.Event(), []

        def change():
            try:
                for rates in zip(*changes.values()):
                    for name, mbit in zip(changes, rates):
                        lab.set_rate(lab[name], mbit)
                    if end.wait(PERIOD_S):
                        return
            except Exception as error:  # pylint: disable=broad-except
                failed.append(error)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        if failed:
            raise LabError(f"a link cannot be changed: {failed[0]}")


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def mean(values):
    return sum(values) / len(values)


def gains(mine, others):
    """How far ahead, in percent, in each run."""
    return [100 * (theirs / ours - 1) for ours, theirs in zip(mine, others)]


def parted(some, others):
    """Whether the two can be told apart: enough runs, whose ranges do not overlap."""
    return min(len(some), len(others)) >= ENOUGH_RUNS and (max(some) < min(others) or max(others) < min(some))


class Figure:
    """Rows of one figure, printed as they come: medians of runs [least, most]."""

    def __init__(self, name, emulation):
        self.name, self.emulation, self.rows, self.good = name, emulation, [], True
        print(f"\n{name}: {FIGURES[name].__doc__}\n{'':51}{'paper':>14}{'simulated':>26}{'emulated':>26}", flush=True)

    def row(self, what, paper, simulated, emulated, good=True, form="{:.3f} s"):
        """`simulated` and `emulated`: one value for each run; nothing where nothing was simulated."""
        number, unit = form.split("} ")[0] + "}", form[-1]

        def text(values):
            if not values:
                return ""
            spread = f" [{number.format(min(values))}, {number.format(max(values))}]" if min(values) < max(values) else ""
            return number.format(middle(values)) + spread + " " + unit

        print(f"  {what:49}{paper:>14}{text(simulated):>26}{text(emulated):>26}{'' if good else '   MISSED'}", flush=True)
        self.rows.append({"what": what, "paper": paper, "simulated": simulated, "emulated": emulated, "unit": unit, "good": good})
        self.good = self.good and good

    def plot(self, path):
        """Seconds, and what is in percent, of the simulator and of the ports."""
        chart = report.Figure()
        for unit, what in (("s", "an iteration"), ("%", "gains, and how busy")):
            rows = [row for row in self.rows if row["unit"] == unit]
            if rows:
                series = chart.panel(what, unit, "", kind="rows")
                for kind in ("simulated", "emulated"):
                    chosen = [row for row in rows if row[kind]]
                    middles = [middle(row[kind]) for row in chosen]
                    series[kind] = {"x": [row["what"] for row in chosen], "y": middles,
                                    "range": [[y - min(row[kind]) for row, y in zip(chosen, middles)],
                                              [max(row[kind]) - y for row, y in zip(chosen, middles)]]}
        save(chart, f"{self.name}, {WORKERS} + {SERVERS}, {scaled(MBIT, GBPS)}", path)

    def compare(self, models_of, cases, paper=None, judged=True):
        """Each model's iterations under each policy, `cases[policy]`; how far ahead the first policy is."""
        took = self.emulation.run(cases)
        for index, model in enumerate(models_of):
            of = {policy: answers[index] for policy, answers in took.items()}
            for policy, one in of.items():
                apart = abs(middle(one.emulated_s) / middle(one.simulated_s) - 1)
                self.row(f"{model}, {NAMES.get(policy, policy)}", "", one.simulated_s, one.emulated_s,
                         apart <= TOLERANCE or not judged)
            for a, b in itertools.combinations(of, 2):
                said, seen = gains(of[a].simulated_s, of[b].simulated_s), gains(of[a].emulated_s, of[b].emulated_s)
                same = not judged or not parted(of[a].emulated_s, of[b].emulated_s) or middle(said) * middle(seen) >= 0
                if a == next(iter(of)):
                    self.row(f"{model}, {NAMES.get(a, a)} over {NAMES.get(b, b)}", (paper or {}).get((model, b), ""),
                             said, seen, same, "{:+.1f} %")
                elif not same:
                    self.row(f"{model}, {NAMES.get(a, a)} over {NAMES.get(b, b)}", "", said, seen, False, "{:+.1f} %")
        return took

    def records(self):
        """Rows of docs/records/points.csv."""
        for row in self.rows:
            for run, emulated in enumerate(row["emulated"]):
                simulated = row["simulated"][run] if row["simulated"] else None
                yield dict(zip(FIELDS, (self.name, row["what"], row["unit"], row["paper"], run + 1,
                                        *("" if value is None else f"{value:.4f}" for value in (simulated, emulated)))))


def fig3(figure):
    """ByteScheduler's partitions, VGG-16 that computes 0.580 s, a credit of five: an optimum in between"""
    trace = figure.emulation.trace("vgg16", models.PRINTED_VGG16_MS)
    names = {f"bytescheduler:partition={size:g}MB,credit={5 * size:g}MB,startup={stretched_time('700us', FACTOR)}": f"{size:g} MB"
             for size in (1, 0.25, 40)}
    NAMES.update(names)
    figure.compare(["VGG-16"], {policy: Case([Training(trace, policy, 1)]) for policy in names},
                   {("VGG-16", policy): "> 0" for policy in names})


def fig7(figure):
    """One tensor of 100 MB without priorities, frames of 9000 bytes: of a link's rate, framing left out"""
    path = figure.emulation.hosts.folder / "tensor.csv"
    path.write_text(f"{models.make_traces.COLUMNS}\n0,all,{25 * MB},f32,1000,1000,0\n", encoding="utf-8")
    ((took,),) = figure.emulation.run({"mercury-fifo": Case([Training(path, "mercury-fifo", 3)])}).values()
    shares = [[100 * 8 * 100 * MB / seconds / (MBIT * MB) for seconds in all_s] for all_s in (took.simulated_s, took.emulated_s)]
    figure.row("gradients through each link", "full", *shares, middle(shares[1]) >= 95, "{:.1f} %")


def fig13(figure):
    """10 Gb/s, computing as a GTX 1080 Ti by PHub"""
    chosen = {"vgg19": ["mercury", "mercury-fifo", SERIAL, BYTEPS, P3, "wfbp", KEYED],
              "resnet50": ["mercury", P3, "wfbp", KEYED]}
    for model, policies in chosen.items():
        trace, title = figure.emulation.trace(model), models.TITLES[model]
        figure.compare([title], {policy: Case([Training(trace, policy, 1)]) for policy in policies},
                       {("VGG-19", "wfbp"): "to 130 %", ("VGG-19", BYTEPS): "to 74 %", ("VGG-19", SERIAL): "40 to 74 %",
                        ("VGG-19", "mercury-fifo"): "to 15 %", ("ResNet-50", "wfbp"): "small"})


def fig14(figure):
    """Also Figs. 5 and 15: VGG-16's uplink from the first push to the last pull, and its GPU"""
    for title, total_ms in (("a GTX 1080 Ti by PHub", None), ("0.580 s", models.PRINTED_VGG16_MS)):
        trace = figure.emulation.trace("vgg16", total_ms)
        cases = {policy: Case([Training(trace, policy, 1)]) for policy in ("mercury", "mercury-fifo", SERIAL, "wfbp")}
        took = figure.compare([title], cases)
        for policy, (one,) in took.items():
            if total_ms is None:
                paper, least, most = {"wfbp": ("", 0, 90), SERIAL: ("~73 %", 65, 85)}.get(policy, ("full", 90, 101))
                figure.row(f"uplink busy, {NAMES[policy]}", paper, [], one.uplink, least <= middle(one.uplink) <= most, "{:.1f} %")
            else:
                paper, least, most = {"mercury": ("always", 95, 101), "mercury-fifo": ("some idle", 0, 97)}.get(policy, ("", 0, 101))
                shares = [[100 * total_ms * FACTOR / 1000 / seconds for seconds in all_s] for all_s in (one.simulated_s, one.emulated_s)]
                figure.row(f"GPU busy, {NAMES[policy]}", paper, *shares, least <= middle(shares[1]) <= most, "{:.1f} %")


def changing(figure, least_gbps, paper):
    """AlexNet on links that each draw another rate every 0.5 s, of a seed the same for all policies."""
    trace = figure.emulation.trace("alexnet")

    def case(policy, seed):
        draw = random.Random(seed)
        rates = {name: [round(draw.uniform(least_gbps, GBPS) / GBPS * MBIT) for _ in range(DRAWS)]
                 for name in figure.emulation.hosts.names}
        links = []
        for name, mbit in rates.items():
            kind = {"w": "worker", "s": "server"}[name[0]]
            steps = ",".join(f"{step * PERIOD_S:g}s:{rate}Mbps" if step else f"{rate}Mbps" for step, rate in enumerate(mbit))
            links += ["--link", f"{kind}{name[1:]}={steps}"]
        return Case([Training(trace, policy, 4)], tuple(links), {}, rates)

    seeds = range(1, figure.emulation.options.repeats + 1)
    figure.compare(["AlexNet"], {policy: [case(policy, seed) for seed in seeds] for policy in ("mercury", SERIAL, P3, "wfbp")},
                   paper, judged=False)


def fig18(figure):
    """AlexNet on links that draw 6 to 10 Gb/s every 0.5 s, the same for all policies"""
    changing(figure, 6, {("AlexNet", "wfbp"): "to 85 %", ("AlexNet", SERIAL): "41 to 74 %"})


def fig19(figure):
    """AlexNet on links that draw 1 to 10 Gb/s every 0.5 s, the same for all policies"""
    changing(figure, 1, {("AlexNet", "wfbp"): "to 129 %", ("AlexNet", SERIAL): "99 to 104 %"})


def fig20(figure):
    """Jobs that share hosts and take turns on the GPU"""
    for part in ("a", "d"):
        mix = MIXES[part]
        traces = [figure.emulation.trace(model, len(mix) * models.GTX_1080_TI_MS[model] * (0.5 if model in HALVED else 1))
                  for model in mix]
        titles = [f"({part}) {models.TITLES[model]}" for model in mix]
        paper = {(title, "wfbp"): "to 100 %" if part == "a" else "gains" if model == "vgg16-cifar" else "unharmed"
                 for title, model in zip(titles, mix)}
        figure.compare(titles, {policy: Case([Training(trace, policy, 2) for trace in traces])
                                for policy in ("mercury", P3, "wfbp")}, paper, judged=False)


def fig21(figure):
    """(a) the second worker computes half as fast, (b) its link has 5 Gb/s"""
    printed = {"(a) VGG-19": ("93 %", "37 %"), "(a) ResNet-50": ("0 %", "0 %")}
    for part, model in (("a", "vgg19"), ("a", "resnet50"), ("b", "vgg19")):
        trace, title = figure.emulation.trace(model), f"({part}) {models.TITLES[model]}"
        paper = dict(zip([(title, "wfbp"), (title, BYTEPS)], printed.get(title, ("> 0", "> 0"))))
        if part == "a":
            cases = {policy: Case([Training(trace, policy, 1, {1: 2})]) for policy in ("mercury", BYTEPS, P3, "wfbp")}
        else:
            cases = {policy: Case([Training(trace, policy, 1)], ("--link", f"worker1={MBIT // 2}Mbps"), {"w1": MBIT // 2})
                     for policy in ("mercury", BYTEPS, P3, "wfbp")}
        figure.compare([title], cases, paper)


FIGURES = {"fig3": fig3, "fig7": fig7, "fig13": fig13, "fig14": fig14, "fig18": fig18, "fig19": fig19, "fig20": fig20,
           "fig21": fig21}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)} [all]")
    parser.add_argument("--list", action="store_true", help="the figures, and leave")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "emulation", help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each point [%(default)s]")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="add a row for each run, as in docs/records/points.csv")
    parser.add_argument("--no-verdict", action="store_true", help="status 0 whatever the times are: the sums are right")
    options = parser.parse_args()
    for name in options.figures:
        if name not in FIGURES:
            parser.error(f"no figure {name}: one of {', '.join(FIGURES)}")
    if options.repeats < 1:
        parser.error("--repeats: above 0")
    options.build = options.build.resolve()
    for program in ("apps/stackd/mercury-stackd", "apps/replay/mercury-replay", "apps/sim/mercury-sim"):
        if not (options.build / program).is_file() and not options.list:
            parser.error(f"no {options.build / program}: tools/build {program} makes it")
    # What emulate.py's hosts want to know.
    vars(options).update(mbit=MBIT, mtu=9000, queue=1 << 20, bucket=BUCKET_FRAMES * 9014, device="af_packet", scheduling="urgent", verify=True)
    return options


def main():
    options = parse()
    if options.list:
        for name, figure in FIGURES.items():
            print(f"{name:7}{figure.__doc__}")
        return 0
    if os.geteuid() != 0:
        print("figures.py: virtual hosts need root (network namespaces)", file=sys.stderr)
        return 77 if options.no_verdict else 1
    for number in (signal.SIGTERM, signal.SIGHUP):  # cleans up, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.record:
        recording.check(options.record, FIELDS)
    print(f"{WORKERS} workers, {SERVERS} servers, {scaled(MBIT, GBPS)}; seconds are of these hosts")
    print(f"policies as given to ports and simulator: {', '.join(f'{NAMES[text]} {text}' for text in (P3, BYTEPS, SERIAL))}")
    path = options.out / "figures.json"
    good, results = True, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mercury-")))
        emulation = Emulation(Hosts(options, folder, stack), options)
        for name in options.figures or FIGURES:
            figure = Figure(name, emulation)
            FIGURES[name](figure)
            results[name] = {"mbit": MBIT, "gbps": GBPS, "factor": FACTOR, "repeats": options.repeats, "rows": figure.rows}
            good = good and figure.good
            write_json(path, results)
            if options.record:
                recording.append(options.record, [*figure.records()])
            figure.plot(options.out / f"emulated-{name}.svg")
    print(f"\n{'all as simulated' if good else 'something is not as simulated: see MISSED above'}")
    return 0 if good or options.no_verdict else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, recording.RecordError) as why:
        sys.exit(f"figures.py: {why}")
    except KeyboardInterrupt:
        sys.exit("figures.py: interrupted; figures.json has the figures that are done")
