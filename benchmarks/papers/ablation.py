"""What Mercury's engine has beside the paper's: each taken off, alone and together."""
import models
from lab import simulation
from report import Figure
from shared import MIXES, shared_job

# The knobs (scheduler/policy.h). All three off: the paper's Mercury.
ALONE = {"answers first-in first-out": "mercury:answers=fifo", "even grants": "mercury:grants=even",
         "units of 30 KB": "mercury:unit=30KB"}
THE_PAPERS = "the paper's Mercury"
OFF = {**ALONE, THE_PAPERS: "mercury:answers=fifo,grants=even,unit=30KB"}
SIX = (*models.PAPER_MODELS, "vgg16-cifar")
# Where a cluster's links decide most, and with fewer servers than workers, where sums that come late stay late.
TWO = ("resnet50", "bert-base")
CLUSTERS = {(2, 2, 10): SIX, (2, 2, 1): TWO, (4, 2, 10): SIX, (4, 2, 1): TWO}
# Percent: a piece that is off may gain or lose so much, in the worst of the models. What is lost is what it is worth.
LEAST, MOST = -0.6, 1


def ablation(lab):
    """What is not in the paper, off: answers by priority, urgent grants, packets of a frame; turns of jobs."""
    figure = Figure()
    clusters = {(2, 2, 10): ("alexnet", "resnet50")} if lab.quick else CLUSTERS
    traces = {model: models.table2_trace(lab, model) for model in SIX}
    policies = {"Mercury": "mercury", **OFF, "native": "wfbp", "native, keys on one server": "wfbp:place=key"}
    times = {key: answer["iteration_s"] for key, answer in lab.ask_all({
        (cluster, model, name): simulation(traces[model], policy, *STEADY, gbps=cluster[2], workers=cluster[0],
                                           servers=cluster[1])
        for cluster, chosen in clusters.items() for model in chosen for name, policy in policies.items()}).items()}
    for cluster, chosen in clusters.items():
        where = f"{cluster[0]} and {cluster[1]} at {cluster[2]} Gb/s"
        chart = figure.panel(where, "", "longer than Mercury, %", kind="bars")
        for name in OFF:
            longer = {model: 100 * (times[cluster, model, name] / times[cluster, model, "Mercury"] - 1)
                      for model in chosen}
            chart[name] = {"x": [models.TITLES[model] for model in chosen], "y": list(longer.values())}
            for which, choose in (("most", max), ("least", min)):
                model = choose(longer, key=longer.get)
                figure.add(f"{where}, {name}: {which} longer, {models.TITLES[model]}", "", longer[model], LEAST, MOST,
                           " %", own=True)
        for name in ("native", "native, keys on one server"):
            for whose in ("Mercury", THE_PAPERS):
                gains = {model: 100 * (times[cluster, model, name] / times[cluster, model, whose] - 1)
                         for model in chosen}
                best = max(gains, key=gains.get)
                figure.add(f"{where}, {whose} over {name}: most, {models.TITLES[best]}",
                           "130 %" if cluster[2] == 10 else "", gains[best], unit=" %")
    turns(lab, figure)
    return figure


STEADY = ("--iterations", "7", "--warmup", "1")  # without servers as many as workers, iterations differ


def turns(lab, figure):
    """Fig. 20 (d) without turns of jobs: all packets of a link in one order."""
    asked = {(how, name): shared_job(lab, MIXES["d"], policy, "--turns", how)
             for how in ("fair", "urgency") for name, policy in (("Mercury", "mercury"), ("native", "wfbp"),
                                                                 ("ByteScheduler", "bytescheduler"))}
    times = {key: [job["iteration_s"] for job in [answer, *answer["other_jobs"]]]
             for key, answer in lab.ask_all(asked).items()}
    for how in ("fair", "urgency"):
        for number, model in enumerate(MIXES["d"]):
            for name in ("native", "ByteScheduler"):
                figure.add(f"Fig. 20(d), turns {how}: {models.TITLES[model]}, Mercury over {name}",
                           "gains" if model == "vgg16-cifar" else "unharmed",
                           100 * (times[how, name][number] / times[how, "Mercury"][number] - 1), unit=" %")


FIGURES = {"ablation": ablation}
