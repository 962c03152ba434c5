"""Jobs that share hosts, and hosts that differ: Figs. 20 and 21."""
import models
import reasons
from lab import simulation
from report import Figure
from static import AS_MEASURED, P3, SERIAL, around

# The paper names the models in parts; what is printed of (d) and of batch sizes is kept.
MIXES = {"a": ("vgg16", "resnet50"), "b": ("vgg16", "vgg19"), "c": ("vgg19", "bert-base"),
         "d": ("vgg16-cifar", "alexnet", "resnet50")}
HALVED = ("vgg16", "vgg19", "bert-base")  # batches of 16 instead of 32 in (a), (b) and (c)


def shared_job(lab, mix, policy, *options):
    """Jobs that take turns on the GPUs of the same workers."""
    traces = [models.table2_trace(lab, model, len(mix) * models.GTX_1080_TI_MS[model] *
                                  (0.5 if model in HALVED else 1)) for model in mix]
    also = [word for trace in traces[1:] for word in ("--also", str(trace))]
    # They drift against each other, so that one iteration is not like the next.
    return simulation(traces[0], policy, *also, "--iterations", "2" if lab.quick else "6", *options,
                      workers=2 if lab.quick else 4)


def fig20(lab):
    """Fig. 20: jobs that share 4 workers and 4 servers."""
    figure = Figure()
    mixes = {part: mix for part, mix in MIXES.items() if part != "c" or not lab.quick}
    policies = {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps",
                "ByteScheduler": "bytescheduler", P3: "p3", SERIAL: AS_MEASURED}
    asked = {(part, name): shared_job(lab, mix, policy)
             for part, mix in mixes.items() for name, policy in policies.items()}
    times = {}
    for (part, name), answer in lab.ask_all(asked).items():
        times[part, name] = [job["iteration_s"] for job in [answer, *answer["other_jobs"]]]
    gains = []
    for part, mix in mixes.items():
        chart = figure.panel(f"({part})", "", "speed / native", kind="bars")
        for name in policies:
            speeds = [native / mine for native, mine in
                      zip(times[part, "native"], times[part, name])]
            chart[name] = {"x": [models.TITLES[model] for model in mix], "y": speeds}
            if name == "Mercury":
                for model, speed in zip(mix, speeds):
                    # No job may lose three percent to what serves the others.
                    figure.add(f"({part}) {models.TITLES[model]}, over native",
                               "up to 100 %" if part != "d" else
                               "gains" if model == "vgg16-cifar" else "unharmed",
                               100 * (speed - 1), -3, 130, " %", order=True)

    def most_over(part, name):
        return 100 * (max(slow / fast for slow, fast in
                          zip(times[part, name], times[part, "Mercury"])) - 1)

    if "b" in mixes:
        for name, paper in (("native", 100), ("BytePS", 38), ("ByteScheduler", 48)):
            figure.add(f"(b) most over {name}", f"~{paper} %", most_over("b", name), 1, 130, " %", order=True,
                       differs=(reasons.SHARED_LINK, -0.1, 1) if name != "native" else None)
        for name in (P3, SERIAL):
            figure.add(f"(b) most over {name}", "", most_over("b", name), unit=" %")
    alexnet = MIXES["d"].index("alexnet")
    figure.add("(d) AlexNet: Mercury over ByteScheduler", "< 0 %", 100 * (
        times["d", "ByteScheduler"][alexnet] / times["d", "Mercury"][alexnet] - 1), -60, -1, " %", order=True,
        differs=(reasons.TURNS, -1, 3))
    return figure


def fig21(lab):
    """Fig. 21: (a) GPUs of two speeds, (b) a worker's link, and a server's, of half the bandwidth."""
    figure = Figure()
    workers = 2 if lab.quick else 4
    slow = ("--slow", "1=2", "--slow", "3=2") if workers == 4 else ("--slow", "1=2")
    parts = {"a": slow, "b, a worker": ("--link", "worker1=5Gbps"), "b, a server": ("--link", "server1=5Gbps")}
    chosen = ("vgg19", "resnet50") if lab.quick else ("vgg19", "bert-base", "resnet50")
    policies = {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps", P3: "p3"}
    asked = {(part, model, name): simulation(models.table2_trace(lab, model), policy, *options,
                                             workers=workers)
             for part, options in parts.items() for model in chosen
             for name, policy in policies.items()}
    times = {key: answer["iteration_s"] for key, answer in lab.ask_all(asked).items()}
    printed = {("vgg19", "native"): 93, ("vgg19", "BytePS"): 37, ("bert-base", "native"): 26,
               ("bert-base", "BytePS"): 14, ("resnet50", "native"): 0, ("resnet50", "BytePS"): 0}
    for part in parts:
        chart = figure.panel(f"({part})", "", "Mercury's gain, %", kind="bars")
        for name in ("native", "BytePS", P3):
            gains = {model: 100 * (times[part, model, name] / times[part, model, "Mercury"] - 1)
                     for model in chosen}
            chart[f"over {name}"] = {"x": [models.TITLES[model] for model in gains], "y": list(gains.values())}
            for model, gain in gains.items():
                what, differs = f"({part}) {models.TITLES[model]}, over {name}", EXPECTED_21.get((part, model, name))
                if name == P3:
                    figure.add(what, "", gain, unit=" %")
                elif part == "a":
                    paper = printed[model, name]
                    figure.add(what, f"{paper} %", gain, *(around(paper) if paper else (-1, 5)), " %", differs=differs)
                else:
                    figure.add(what, "> 0 %", gain, 0.5, 130, " %", order=True, differs=differs)
    return figure


# What is known to be outside the paper's range: (why, least, most in percent).
EXPECTED_21 = {("a", "vgg19", "BytePS"): (reasons.OVERLAP, 0, 9)}


FIGURES = {"fig20": fig20, "fig21": fig21}
