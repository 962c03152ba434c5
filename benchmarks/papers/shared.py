"""Jobs that share hosts, and hosts that differ: Figs. 20 and 21."""
import models
import reasons
from lab import simulation
from report import Figure
from static import AS_MEASURED, SERIAL

# The paper names the models in parts; what is printed of (d) and of batch sizes is kept.
MIXES = {"a": ("vgg16", "resnet50"), "b": ("vgg16", "vgg19"), "c": ("vgg19", "bert-base"),
         "d": ("vgg16-cifar", "alexnet", "resnet50")}
HALVED = ("vgg16", "vgg19", "bert-base")  # batches of 16 instead of 32 in (a), (b) and (c)


def fig20(lab):
    """Fig. 20: jobs that share 4 workers and 4 servers."""
    figure = Figure()
    mixes = {"a": MIXES["a"], "d": MIXES["d"]} if lab.quick else MIXES
    policies = {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps",
                "ByteScheduler": "bytescheduler", SERIAL: AS_MEASURED}
    workers = 2 if lab.quick else 4
    asked = {}
    for part, mix in mixes.items():
        # Jobs take turns on the GPU.
        traces = [models.table2_trace(lab, model, len(mix) * models.GTX_1080_TI_MS[model] *
                                      (0.5 if model in HALVED else 1)) for model in mix]
        also = [word for trace in traces[1:] for word in ("--also", str(trace))]
        for name, policy in policies.items():
            # Jobs drift against each other, so that one iteration is not like the next.
            asked[part, name] = simulation(traces[0], policy, *also, "--iterations",
                                           "2" if lab.quick else "6", workers=workers)
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
                    figure.add(f"({part}) {models.TITLES[model]}, over native",
                               "up to 100 %" if part != "d" else
                               "gains" if model == "vgg16-cifar" else "unharmed",
                               100 * (speed - 1), -3, 130, " %")
                    gains.append(100 * (speed - 1))
    figure.add("largest over native", "~100 %", max(gains), 20, 130, " %")

    def most_over(part, name):
        return 100 * (max(slow / fast for slow, fast in
                          zip(times[part, name], times[part, "Mercury"])) - 1)

    if "b" in mixes:
        for name, paper in (("native", 100), ("BytePS", 38), ("ByteScheduler", 48), (SERIAL, 43)):
            figure.add(f"(b) most over {name}", f"~{paper} %" if name != SERIAL else "38 to 48 %",
                       most_over("b", name), (100 + paper) * 0.75 - 100, (100 + paper) * 1.25 - 100,
                       " %", differs=reasons.SHARED_LINK)
    alexnet = MIXES["d"].index("alexnet")
    figure.add("(d) AlexNet: Mercury over ByteScheduler", "< 0 %", 100 * (
        times["d", "ByteScheduler"][alexnet] / times["d", "Mercury"][alexnet] - 1), None, 0, " %",
        differs=reasons.TURNS, order=True)
    return figure


def fig21(lab):
    """Fig. 21: (a) GPUs of two speeds, (b) a link of half the bandwidth."""
    figure = Figure()
    workers = 2 if lab.quick else 4
    slow = ("--slow", "1=2", "--slow", "3=2") if workers == 4 else ("--slow", "1=2")
    parts = {"a": slow, "b": ("--link", "worker1=5Gbps")}
    chosen = ("vgg19", "resnet50") if lab.quick else ("vgg19", "bert-base", "resnet50")
    policies = {"Mercury": "mercury", "native": "wfbp", "BytePS": "byteps"}
    asked = {(part, model, name): simulation(models.table2_trace(lab, model), policy, *options,
                                             workers=workers)
             for part, options in parts.items() for model in chosen
             for name, policy in policies.items()}
    times = {key: answer["iteration_s"] for key, answer in lab.ask_all(asked).items()}
    printed = {("a", "vgg19"): ("93 %", "37 %"), ("a", "bert-base"): ("26 %", "14 %"),
               ("a", "resnet50"): ("0 %", "0 %")}
    for part in parts:
        chart = figure.panel(f"({part})", "", "Mercury's gain, %", kind="bars")
        for number, name in enumerate(("native", "BytePS")):
            gains = [100 * (times[part, model, name] / times[part, model, "Mercury"] - 1)
                     for model in chosen]
            chart[f"over {name}"] = {"x": [models.TITLES[model] for model in chosen], "y": gains}
            for model, gain in zip(chosen, gains):
                paper = printed.get((part, model), ("> 0 %", "> 0 %"))[number]
                figure.add(f"({part}) {models.TITLES[model]}, over {name}", paper, gain, -0.1,
                           5 if paper == "0 %" else 93 * 1.5, " %")
    return figure


FIGURES = {"fig20": fig20, "fig21": fig21}
