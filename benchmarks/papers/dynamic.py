"""Links that change: Figs. 18 and 19."""
import models
import reasons
from lab import simulation
from report import Figure
from static import AS_MEASURED, SERIAL, tuned

# Policies that tie end their iterations at different times and meet different draws, in percent: on
# VGG-16, Mercury against ByteScheduler, four seeds give -0.12 to 0.26.
TIE = 0.3

# The paper draws every 5 s and measures 100 iterations; ten times as often costs ten times less.
PERIOD = "500ms"


def changing(lab, span):
    """Iteration times {(model, policy): seconds} on links that draw their rate from `span`."""
    chosen = ("vgg16", "resnet50") if lab.quick else models.PAPER_MODELS
    iterations = 8 if lab.quick else 24
    links = ("--link", f"all=random:{span}/{PERIOD}", "--iterations", str(iterations))
    traces = {model: models.table2_trace(lab, model) for model in chosen}
    best = tuned(lab, {model: (trace, {}) for model, trace in traces.items()})
    policies = {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps",
                SERIAL: AS_MEASURED}
    asked = {(model, name): simulation(trace, policy, *links)
             for model, trace in traces.items() for name, policy in policies.items()}
    asked |= {(model, "ByteScheduler"): simulation(traces[model], policy, *links)
              for model, (policy, _) in best.items()}
    return {key: answer["iteration_s"] for key, answer in lab.ask_all(asked).items()}


def speed_ups(figure, times):
    """Rows and a panel; {(model, policy): Mercury's gain in percent}."""
    gains = {key: 100 * (slow / times[key[0], "Mercury"] - 1) for key, slow in times.items()}
    chart = figure.panel("2 workers, 2 servers", "", "Mercury's gain, %", kind="bars")
    for name in dict.fromkeys(key[1] for key in gains):
        if name == "Mercury":
            continue
        mine = {model: gain for (model, policy), gain in gains.items() if policy == name}
        chart[f"over {name}"] = {"x": [models.TITLES[model] for model in mine],
                                 "y": list(mine.values())}
        figure.add(f"least over {name}", ">= 0", min(mine.values()), -TIE, unit=" %")
    return gains


def largest(gains, name):
    return max(gain for (_, policy), gain in gains.items() if policy == name)


def fig18(lab):
    """Fig. 18: bandwidth drawn between 6 and 10 Gb/s."""
    figure = Figure()
    gains = speed_ups(figure, changing(lab, "6Gbps-10Gbps"))
    for name, paper, why in (("native", 85, None), ("BytePS", 74, reasons.OVERLAP),
                             ("ByteScheduler", 41, reasons.OVERLAP)):
        figure.add(f"largest over {name}, a quarter of the ratio", f"{paper} %",
                   largest(gains, name), (100 + paper) * 0.75 - 100, (100 + paper) * 1.25 - 100,
                   " %", differs=why)
    figure.add(f"largest over {SERIAL}", "41 to 74 %",
               largest(gains, SERIAL), 141 * 0.75 - 100, 174 * 1.25 - 100, " %")
    return figure


def fig19(lab):
    """Fig. 19: bandwidth drawn between 1 and 10 Gb/s."""
    figure = Figure()
    times = changing(lab, "1Gbps-10Gbps")
    gains = speed_ups(figure, times)
    for name, paper in (("native", 129), ("BytePS", 99), ("ByteScheduler", 104),
                        (SERIAL, 0)):
        figure.add(f"largest over {name}", f"{paper} %" if paper else "99 to 104 %",
                   largest(gains, name), 0, unit=" %", order=True)
    for name in ("BytePS", "ByteScheduler"):
        figure.add(f"{name} over native, most", "7.3 to 9.9 %", max(
            100 * (times[model, "native"] / seconds - 1)
            for (model, policy), seconds in times.items() if policy == name), 0, 15, " %",
            differs=reasons.OVERLAP)
    figure.add("ResNet-50 over native", "up to 20 %", gains["resnet50", "native"], -0.1, 25, " %",
               differs=reasons.SLOW_LINKS)
    return figure


FIGURES = {"fig18": fig18, "fig19": fig19}
