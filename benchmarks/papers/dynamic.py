"""Links that change: Figs. 18 and 19. Each is computed with several seeds: medians and ranges."""
import statistics

import models
import reasons
from lab import simulation
from report import Figure
from static import AS_MEASURED, SERIAL, tuned

# Policies that tie end their iterations at different times and meet different draws. In percent, by how
# much the median of the seeds may then be behind; single seeds are, by up to 0.7 (docs/papers.md).
TIE = 0.3
BEHIND = 0.1  # what counts as none

# The paper draws every 5 s and measures 100 iterations; ten times as often costs ten times less.
PERIOD = "500ms"


def changing(lab, span):
    """Iteration times {(model, policy): [s with each seed]} on links that draw their rate from
    `span`. With one seed, all policies meet the same rates.
    """
    chosen = ("vgg16", "resnet50") if lab.quick else models.PAPER_MODELS
    seeds = range(1, 4 if lab.quick else 6)
    iterations = 4 if lab.quick else 12
    links = ("--link", f"all=random:{span}/{PERIOD}", "--iterations", str(iterations))
    traces = {model: models.table2_trace(lab, model) for model in chosen}
    best = tuned(lab, {model: (trace, {}) for model, trace in traces.items()})
    policies = {(model, name): policy for model in chosen for name, policy in
                {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps",
                 "ByteScheduler": best[model][0], SERIAL: AS_MEASURED}.items()}
    answers = lab.ask_all({
        (*key, seed): simulation(traces[key[0]], policy, *links, "--seed", str(seed))
        for key, policy in policies.items() for seed in seeds})
    return {key: [answers[*key, seed]["iteration_s"] for seed in seeds] for key in policies}


def gains(times, fast, slow):
    """{model: [percent that `fast` is ahead of `slow`, with each seed]}"""
    return {model: [100 * (behind / ahead - 1) for ahead, behind in
                    zip(times[model, fast], times[model, slow])]
            for model in dict.fromkeys(model for model, _ in times)}


def add(figure, choose, what, paper, found, *bounds, **about):
    """A row of the model whose median is most or least."""
    model = choose(found, key=lambda one: statistics.median(found[one]))
    figure.add_runs(f"{what}: {models.TITLES[model]}", paper, found[model], *bounds, **about)


def speed_ups(figure, times):
    """Rows and a panel; {policy: Mercury's gains}."""
    found = {name: gains(times, "Mercury", name)
             for name in dict.fromkeys(name for _, name in times) if name != "Mercury"}
    chart = figure.panel("2 workers, 2 servers", "", "Mercury's gain, %", kind="bars")
    for name, mine in found.items():
        middles = [statistics.median(values) for values in mine.values()]
        chart[f"over {name}"] = {
            "x": [models.TITLES[model] for model in mine], "y": middles,
            "range": [[middle - min(values) for middle, values in zip(middles, mine.values())],
                      [max(values) - middle for middle, values in zip(middles, mine.values())]]}
        worst = min(middles)
        add(figure, min, f"least over {name}", ">= 0", mine, -BEHIND, unit=" %",
            differs=reasons.DRAWS if worst >= -TIE else None)
    return found


def fig18(lab):
    """Fig. 18: bandwidth drawn between 6 and 10 Gb/s."""
    figure = Figure()
    found = speed_ups(figure, changing(lab, "6Gbps-10Gbps"))
    for name, paper, why in (("native", 85, None), ("BytePS", 74, reasons.OVERLAP),
                             ("ByteScheduler", 41, reasons.OVERLAP)):
        add(figure, max, f"largest over {name}, a quarter of the ratio", f"{paper} %",
            found[name], (100 + paper) * 0.75 - 100, (100 + paper) * 1.25 - 100, " %",
            differs=why)
    add(figure, max, f"largest over {SERIAL}", "41 to 74 %", found[SERIAL],
        141 * 0.75 - 100, 174 * 1.25 - 100, " %")
    return figure


def fig19(lab):
    """Fig. 19: bandwidth drawn between 1 and 10 Gb/s."""
    figure = Figure()
    times = changing(lab, "1Gbps-10Gbps")
    found = speed_ups(figure, times)
    for name, paper in (("native", 129), ("BytePS", 99), ("ByteScheduler", 104),
                        (SERIAL, 0)):
        add(figure, max, f"largest over {name}", f"{paper} %" if paper else "99 to 104 %",
            found[name], 0, unit=" %", order=True)
    for name in ("BytePS", "ByteScheduler"):
        add(figure, max, f"{name} over native, most", "7.3 to 9.9 %",
            gains(times, name, "native"), 0, 15, " %", differs=reasons.OVERLAP)
    add(figure, max, f"{SERIAL} over native, most", "7.3 to 9.9 %", gains(times, SERIAL, "native"),
        0, unit=" %", order=True)
    figure.add_runs("ResNet-50 over native", "up to 20 %", found["native"]["resnet50"], -0.1, 20,
                    " %", differs=reasons.SLOW_LINKS)
    return figure


FIGURES = {"fig18": fig18, "fig19": fig19}
