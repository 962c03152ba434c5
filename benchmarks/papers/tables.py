"""What follows from arithmetic and equations: Table II, the header, Figs. 2, 10 and 12."""
import csv

import models
import reasons
from lab import SHIPPED, equations, partitions, simulation
from report import Figure

TRIVIAL_FRAME_BYTES = 8896  # elements of a frame with MTU 9000, of at most 64 workers
WIRE_FRAME_BYTES = TRIVIAL_FRAME_BYTES + 114


def table2(_):
    """Table II: parameters of the models."""
    figure = Figure()
    # In millions. The paper rounds; "~35" is a multiple of five, the others are whole.
    printed = {"vgg16-cifar": (35, 2.5), "vgg16": (135, 0.5), "vgg19": (140, 0.5),
               "alexnet": (57, 0.5), "resnet50": (24, 0.5), "bert-base": (109, 0.5)}
    for model, (millions, rounding) in printed.items():
        figure.add(f"{models.TITLES[model]}, parameters", f"~{millions}",
                   models.parameters(model) / 1e6, millions - rounding, millions + rounding, " M")
    chart = figure.panel("parameters", "", "millions", kind="bars")
    names = [models.TITLES[model] for model in printed]
    chart["paper"] = {"x": names, "y": [millions for millions, _ in printed.values()]}
    chart["here"] = {"x": names, "y": [models.parameters(model) / 1e6 for model in printed]}
    both_s = 2 * 4 * models.parameters("vgg16") * 8 / 10e9
    figure.add("VGG-16, push and pull one after the other at 10 Gb/s", "0.864 s", both_s, 0.855,
               0.873, " s")
    return figure


def header(lab):
    """Header overhead (section IV.C)."""
    figure = Figure()
    chart = figure.panel("beside the elements", "", "%", kind="bars")
    shares = chart["overhead"] = {"x": ["paper, 30 KB"], "y": [100 * 24 / 30000]}
    # Its own numbers: nothing of ours is in it.
    figure.add("the paper's header of 24 B to 30 KB", "~0.1 %", 100 * 24 / 30000, unit=" %")
    # Ethernet 38, IPv4 20 and TCP 32 with timestamps, around each 1448 bytes.
    figure.add("the same with what TCP at MTU 1500 adds", "not counted",
               100 * (24 + 30000 / 1448 * 90) / 30000, unit=" %")
    for mtu, expected in ((9000, 114 / 8896), (1500, 114 / 1408)):
        answer = lab.ask(equations("vgg16", "mercury", "--mtu", str(mtu)))
        overhead = answer["wire_bytes_up"] / answer["bytes_up"] - 1
        figure.add(f"all framing of Mercury's, Ethernet included, MTU {mtu}", "not counted",
                   100 * overhead, 100 * expected - 0.01, 100 * expected + 0.01, " %", own=True)
        shares["x"].append(f"all, MTU {mtu}")
        shares["y"].append(100 * overhead)
    return figure


def three_layers(lab, unit_frames):
    """Fig. 2's model: tensors of one, four and three pieces; a piece is sent in one unit of time,
    and is so many full frames. At 8 Mb/s per frame's worth of microseconds, exactly.
    """
    unit_ns = 1000 * WIRE_FRAME_BYTES
    text = ["layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority"]
    for layer, (pieces, backward) in enumerate(((1, 1), (4, 2), (3, 1))):
        numel = pieces * unit_frames * TRIVIAL_FRAME_BYTES // 4
        text.append(f"{layer},TS{layer + 1},{numel},f32,{unit_ns},{backward * unit_ns},{layer}")
    path = lab.out / "traces" / "three-layers.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path, unit_ns * 1e-9, 8e-3 * unit_frames  # the trace, a unit in s, Gb/s


def fig2(lab):
    """Fig. 2: one iteration of a model with three layers."""
    figure = Figure()
    trace, unit_s, gbps = three_layers(lab, unit_frames=1000)
    piece = 1000 * TRIVIAL_FRAME_BYTES
    # By hand, in units: sizes 1, 4, 3; backward 1, 2, 1; forward 1 each.
    policies = {"WFBP": ("wfbp", 16), "WFBP, equation 7": ("wfbp-eq7", 14),
                "ByteScheduler, start-ups of a fifth": (
                    partitions("bytescheduler", piece, piece,
                               f"startup={unit_s * 2e8:.0f}ns"), 12.6),
                "ByteScheduler, no start-ups": (
                    partitions("bytescheduler", piece, piece, "startup=0s"), 11),
                "Mercury": ("mercury", 10)}
    asked = {name: equations(trace, policy, gbps=gbps)
             for name, (policy, _) in policies.items()}
    asked |= {f"{name}, simulated": simulation(trace, policy, gbps=gbps)
              for name, (policy, _) in policies.items() if policy != "wfbp-eq7"}
    answers = lab.ask_all(asked)
    units = {name: answer["iteration_s"] / unit_s for name, answer in answers.items()}
    for name, (policy, exact) in policies.items():
        figure.add(f"{name}, by the equations", f"{exact} by hand", units[name], exact - 1e-6,
                   exact + 1e-6, " units", own=True)
        if policy != "wfbp-eq7":
            figure.add(f"{name}, simulated, over the equations", "1",
                       units[f"{name}, simulated"] / units[name], 0.999, 1.02, own=True)
    slow, middle, fast = (units[f"{name}, simulated"] for name in
                          ("WFBP", "ByteScheduler, start-ups of a fifth", "Mercury"))
    figure.add("WFBP over ByteScheduler", "> 1", slow / middle, 1.001, 2, order=True)
    figure.add("ByteScheduler over Mercury", "> 1", middle / fast, 1.001, 2, order=True)
    figure.add("Mercury, share of its pushing in which the uplink sends", "all",
               100 * answers["Mercury"]["uplink_busy"], 99.999, 100.001, " %")
    lag = max(t["pulled_s"] - t["pushed_s"] for t in answers["Mercury"]["tensors"])
    figure.add("Mercury, a tensor's pull behind its push", "0", lag / unit_s, -1e-6, 1e-6, " units")
    chart = figure.panel("iteration", "", "units of time", kind="bars")
    for source in ("equations", "simulated"):
        names = [name for name in policies if source == "equations" or
                 f"{name}, simulated" in units]
        chart[source] = {"x": names, "y": [units[name if source == "equations" else
                                                 f"{name}, simulated"] for name in names]}
    return figure


def layers(model):
    """[name, bytes, computing seconds] of a shipped trace's layers; a block of BERT is one."""
    found = {}
    with open(SHIPPED / f"{model}.csv", encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            parts = row["name"].split(".")
            name = ".".join(parts[:2]) if parts[0] == "encoder" else parts[0]
            layer = found.setdefault(name, [name, 0, 0.0])
            layer[1] += 4 * int(row["numel"])
            layer[2] += 1e-9 * (int(row["forward_pass_ns"]) + int(row["backward_pass_ns"]))
    return list(found.values())


def fig10(_):
    """Fig. 10: time of each layer at 20 Gb/s."""
    figure = Figure()
    for model, count in (("vgg16", 16), ("bert-base", 14)):
        times = [(name, 1e3 * size * 8 / 20e9, 1e3 * compute)
                 for name, size, compute in layers(model)]
        figure.add(f"{models.TITLES[model]}, layers", str(count), len(times), count, count)
        chart = figure.panel(models.TITLES[model], "", "ms", kind="bars", log=True)
        chart["communication"] = {"x": [t[0] for t in times], "y": [t[1] for t in times]}
        chart["computing"] = {"x": [t[0] for t in times], "y": [t[2] for t in times]}
        if model == "vgg16":
            dense = [t for t in times if t[0].startswith("fc")]
            conv = [t for t in times if t[0].startswith("conv")]
            figure.add("VGG-16 fc6, communication", "exact", dense[0][1], 164.423, 164.424, " ms", own=True)
            # By shares of the arithmetic. Measured, fully connected layers compute up to 60 times as long.
            for name, sending, computing in dense:
                figure.add(f"VGG-16 {name}, communication over computing", ">> 1",
                           sending / computing, 60, 1000, order=True)
                figure.add(f"VGG-16 {name}, the same if it computes 60 times as long", ">> 1", sending / computing / 60)
            figure.add("VGG-16, convolutions, communication over computing", "< 1",
                       sum(t[1] for t in conv) / sum(t[2] for t in conv), 0, 1, order=True)
        else:
            embeddings = times[0]
            figure.add("BERT-Base, embeddings' share of the communication", "large",
                       100 * embeddings[1] / sum(t[1] for t in times), 20, 25, " %", order=True)
    return figure


def fig12(lab):
    """Fig. 12: least bandwidth for 0.99 of a lone worker's speed, 0.90 for BERT-Base."""
    figure = Figure()
    policies = {"Mercury": "mercury", "without preemption": "mercury-fifo",
                "WFBP, equation 7": "wfbp-eq7", "WFBP, pulls share the link": "wfbp"}
    answers = lab.ask_all({
        (model, name): equations(model, policy, "--reach", "0.90" if model == "bert-base"
                                 else "0.99")
        for model in models.PAPER_MODELS for name, policy in policies.items()})
    gbps = {key: 10 * answer["reach"]["bandwidth_factor"] for key, answer in answers.items()}
    # As tests/apps/sim_paper_test.cc has them.
    golden = {"vgg16": 35.24, "vgg19": 31.26, "alexnet": 123.23, "resnet50": 7.67,
              "bert-base": 33.22}
    for model, expected in golden.items():
        title = models.TITLES[model]
        figure.add(f"{title}, Mercury", "a curve", gbps[model, "Mercury"], 0.99 * expected,
                   1.01 * expected, " Gb/s", own=True)
        figure.add(f"{title}, less than WFBP as the paper models it", "up to ~50 %",
                   100 * (1 - gbps[model, "Mercury"] / gbps[model, "WFBP, equation 7"]), 30, 55,
                   " %")
        less = 100 * (1 - gbps[model, "Mercury"] / gbps[model, "WFBP, pulls share the link"])
        figure.add(f"{title}, less than WFBP whose pulls share the link", "up to ~50 %", less, 30, 55,
                   " %", differs=(reasons.PULLS, 55, 65) if model in ("vgg16", "vgg19", "alexnet") else None)
    # There the simulator has to say the same, which adds latency and acknowledgements.
    shown = {"mercury": "Mercury", "wfbp": "WFBP, pulls share the link"}
    asked = {(model, policy): simulation(model, policy, gbps=round(1.005 * gbps[model, name], 3))
             for model in golden for policy, name in shown.items()}
    for (model, policy), answer in lab.ask_all(asked).items():
        wanted = 0.90 if model == "bert-base" else 0.99
        figure.add(f"{models.TITLES[model]}, {policy}, simulated speed there", f"> {wanted}",
                   answer["speed"], wanted - 0.005, wanted + 0.005, own=True)
    chart = figure.panel("the smaller, the better", "", "Gb/s", kind="bars", log=True)
    for name in policies:
        chart[name] = {"x": [models.TITLES[model] for model in golden],
                       "y": [gbps[model, name] for model in golden]}
    return figure


FIGURES = {"table2": table2, "header": header, "fig2": fig2, "fig10": fig10, "fig12": fig12}
