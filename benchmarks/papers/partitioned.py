"""What partitions cost, as the paper's section III observes it: Figs. 3 to 7. Figs. 5 and 7 are
simulated; the others are sweeps over the equations.
"""
import models
import reasons
from lab import equations, partitions, simulation
from report import Figure
from static import AS_MEASURED, tuned

MB = 1e6
SIZES_MB = (0.1, 0.2, 0.4, 0.8, 1, 2, 4, 8, 10, 20, 40, 80)
CREDITS = (1, 2, 4, 5, 8, 16, 32)  # partitions
CREDIT_MB = 1  # the partition of Fig. 3 (b)
# "less than 1 ms" is printed. Of the values below it this one makes Fig. 4's swap cost 40 %.
STARTUP = "startup=700us"


def grid(lab, trace, rates):
    """Iterations by the equations, 1 worker and 1 server: {(Gb/s, MB, credit in partitions): s}"""
    sizes = (0.1, 0.4, 1, 4, 8, 10, 40) if lab.quick else SIZES_MB
    answers = lab.ask_all({
        (gbps, size, credit): equations(
            trace, partitions("bytescheduler", size * MB, credit * size * MB, STARTUP), gbps=gbps,
            workers=1)
        for gbps in rates for size in sizes for credit in CREDITS})
    return {key: answer["iteration_s"] for key, answer in answers.items()}


def at_best_credit(times, gbps):
    """{partition in MB: (iteration, credit in partitions)} with the least of the best credits."""
    best = {}
    for (rate, size, credit), seconds in times.items():
        if rate == gbps and (size not in best or seconds < best[size][0] * (1 - 1e-6)):
            best[size] = (seconds, credit)
    return best


def traces_of(lab):
    """VGG-16 as long as the paper prints it (with PHub's time, optima are larger), MobileNet."""
    return {"VGG-16": models.table2_trace(lab, "vgg16", models.PRINTED_VGG16_MS),
            "MobileNet": models.table2_trace(lab, "mobilenet")}


def fig3(lab):
    """Fig. 3: ByteScheduler's partition (a) and credit (b), 1 worker and 1 server."""
    figure = Figure()
    rates = (10, 1, 0.5)
    best_credit = {}
    for model, trace in traces_of(lab).items():
        times = grid(lab, trace, rates)
        chart = figure.panel(f"(a) {model}", "partition, MB", "speed / the best", log=True)
        other = figure.panel(f"(b) {model}", "credit, partitions", "speed / the best", log=True)
        optima = {}
        for gbps in rates:
            best = at_best_credit(times, gbps)
            least = min(seconds for seconds, _ in best.values())
            optima[gbps] = min(best, key=lambda size: best[size][0])
            chart[f"{gbps} Gb/s"] = {"x": list(best), "y": [least / s for s, _ in best.values()]}
            of_size = [times[gbps, CREDIT_MB, credit] for credit in CREDITS]
            other[f"{gbps} Gb/s"] = {"x": list(CREDITS),
                                     "y": [min(of_size) / seconds for seconds in of_size]}
            if gbps == 10:
                best_credit[model] = CREDIT_MB * CREDITS[of_size.index(min(of_size))]
                for which, end in (("smallest", 0), ("largest", -1)):
                    figure.add(f"(b) {model}, {CREDIT_MB} MB: {which} credit below the best", "> 0",
                               100 * (1 - min(of_size) / of_size[end]), 1, unit=" %",
                               differs=reasons.NO_TRADE if model == "MobileNet" else None)
                figure.add(f"(a) {model} at 10 Gb/s, smallest partition below the best", "> 0",
                           100 * (1 - least / best[min(best)][0]), 5, unit=" %")
                figure.add(f"(a) {model} at 10 Gb/s, largest partition below the best", "> 0",
                           100 * (1 - least / best[max(best)][0]),
                           *((5,) if model == "VGG-16" else ()), unit=" %")
        for gbps, paper in ((1, 9), (0.5, 32)):
            best = at_best_credit(times, gbps)
            kept = best[optima[10]][0] / min(seconds for seconds, _ in best.values())
            if model == "VGG-16":
                figure.add(f"(a) VGG-16, the best of 10 Gb/s kept at {gbps} Gb/s costs",
                           f"{paper} %", 100 * (1 - 1 / kept), max(0, paper - 10), paper + 10,
                           " %", differs=reasons.BOUND)
    for model, best in best_credit.items():
        figure.add(f"(b) {model}, {CREDIT_MB} MB: best credit", "differ", best, unit=" MB")
    return figure


def fig4(lab):
    """Fig. 4: ByteScheduler's partition and credit together, VGG-16."""
    figure = Figure()
    times = grid(lab, traces_of(lab)["VGG-16"], (10, 0.5))
    sizes = sorted({size for _, size, _ in times})
    printed = {10: (4, 5), 0.5: (0.4, 4)}  # MB, partitions
    for gbps, (size, credit) in printed.items():
        best = min((seconds, one, many) for (rate, one, many), seconds in times.items()
                   if rate == gbps)
        figure.add(f"{gbps} Gb/s, best partition", f"{size} MB", best[1], size / 2, 2 * size,
                   " MB", differs=reasons.FLAT)
        figure.add(f"{gbps} Gb/s, best credit", f"{size * credit:g} MB", best[1] * best[2],
                   size * credit / 2, 2 * size * credit, " MB", differs=reasons.FLAT)
        figure.add(f"{gbps} Gb/s, the paper's best below ours", "0",
                   100 * (1 - best[0] / times[gbps, size, credit]), 0, 3, " %")
        chart = figure.panel(f"{gbps} Gb/s, speed / the best", "credit, partitions",
                             "partition, MB", kind="heat")
        chart[str(gbps)] = {"x": list(CREDITS), "y": [f"{size:g}" for size in sizes],
                            "z": [[best[0] / times[gbps, one, many] for many in CREDITS]
                                  for one in sizes]}
    for at, other in ((10, 0.5), (0.5, 10)):
        mine, kept = times[at, *printed[at]], times[at, *printed[other]]
        figure.add(f"{other} Gb/s's at {at} Gb/s costs", "up to 40 %", 100 * (1 - mine / kept),
                   25, 55, " %", differs=reasons.BOUND if at != 10 else None)
    return figure


def fig5(lab):
    """Fig. 5: how busy ByteScheduler's uplink is, VGG-16, 2 workers at 10 Gb/s."""
    figure = Figure()
    trace = traces_of(lab)["VGG-16"]
    policy, best = tuned(lab, {"": (trace, {})})[""]
    answers = lab.ask_all({"native": simulation(trace, "wfbp"),
                           "start-ups of 1 ms that do not overlap": simulation(trace, AS_MEASURED),
                           "Mercury": simulation(trace, "mercury")})
    answers["ByteScheduler, tuned"] = best
    shares = {}
    for name, answer in answers.items():
        begin_s = min(tensor["ready_s"] for tensor in answer["tensors"])
        end_s = max(tensor["pulled_s"] for tensor in answer["tensors"])
        shares[name] = 100 * (8 * answer["hosts"][0]["wire_bytes_up"] /
                              answer["worker_up_bps"]) / (end_s - begin_s)
    figure.add(f"tuned: {policy.split(':')[-1][:34]}", "~73 %", shares["ByteScheduler, tuned"], 65,
               85, " %", differs=reasons.OVERLAP)
    figure.add("4 MB, start-ups of 1 ms that do not overlap", "~73 %",
               shares["start-ups of 1 ms that do not overlap"], 65, 85, " %")
    figure.add("native", "", shares["native"], unit=" %")
    figure.add("Mercury", "", shares["Mercury"], 90, unit=" %")
    chart = figure.panel("from the first push to the last pull", "", "uplink busy, %",
                         kind="bars")
    chart["uplink"] = {"x": list(shares), "y": list(shares.values())}
    return figure


def fig6(lab):
    """Fig. 6: ByteScheduler's throughput against its speed, VGG-16 at 10 Gb/s."""
    figure = Figure()
    trace = traces_of(lab)["VGG-16"]
    sizes = (1, 4, 10, 40) if lab.quick else SIZES_MB[4:] + (3, 5, 6, 15)
    credits = {"credit of one partition": (1,), "best credit": CREDITS}
    answers = lab.ask_all({
        (name, size, many): equations(trace, partitions("bytescheduler", size * MB,
                                                        many * size * MB, STARTUP))
        for name, counts in credits.items() for many in counts for size in sizes})
    speeds = figure.panel("speed", "partition, MB", "speed / a lone worker's", log=True)
    throughput = figure.panel("uplink", "partition, MB", "busy while pushing", log=True)
    best = {}
    for name in credits:
        chosen = {size: max((answer for (which, one, _), answer in answers.items()
                             if (which, one) == (name, size)), key=lambda a: a["speed"])
                  for size in sorted(sizes)}
        best[name] = max(chosen, key=lambda size: chosen[size]["speed"])
        speeds[name] = {"x": list(chosen), "y": [a["speed"] for a in chosen.values()]}
        throughput[name] = {"x": list(chosen), "y": [a["uplink_busy"] for a in chosen.values()]}
        busy = list(throughput[name]["y"])
        figure.add(f"{name}: least gain of a larger partition in throughput", ">= 1",
                   min(b / a for a, b in zip(busy, busy[1:])),
                   *((0.999,) if name == "credit of one partition" else ()))
    figure.add("credit of one partition: best partition", "~10 MB",
               best["credit of one partition"], 5, 20, " MB", differs=reasons.FLAT)
    figure.add("best credit: best partition", "4 MB", best["best credit"], 2, 8, " MB",
               differs=reasons.FLAT)
    for name, printed in (("credit of one partition", 10), ("best credit", 4)):
        of_all = dict(zip(speeds[name]["x"], speeds[name]["y"]))
        figure.add(f"{name}: speed with {printed} MB below the best", "0",
                   100 * (1 - of_all[printed] / max(of_all.values())), 0, 3, " %")
    figure.add("best speed, with credits over without", "> 1",
               max(speeds["best credit"]["y"]) / max(speeds["credit of one partition"]["y"]), 1)
    return figure


def fig7(lab):
    """Fig. 7: how small pieces may be, one large tensor at 10 Gb/s."""
    figure = Figure()
    trace = lab.out / "traces" / "one-tensor.csv"
    trace.parent.mkdir(parents=True, exist_ok=True)
    trace.write_text("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n"
                     "0,big,25000000,f32,1000,1000,0\n", encoding="utf-8")
    frames = (1500, 9000, 16384, 32768)
    sizes_mb = (0.4, 1, 4) if lab.quick else (0.1, 0.2, 0.4, 1, 2, 4, 10)
    # A queue that holds as many of the largest frames as the default holds of 9000 bytes.
    asked = {("Mercury", size): simulation(trace, "mercury-fifo", "--mtu", str(size),
                                           "--incast-queue", "1MiB", workers=1)
             for size in frames}
    asked |= {("ByteScheduler", size * MB): simulation(
        trace, partitions("bytescheduler", size * MB, size * MB, STARTUP), workers=1)
        for size in sizes_mb}
    chart = figure.panel("a tensor of 100 MB", "bytes of a piece", "payload / 10 Gb/s", log=True)
    rates = {}
    for (name, size), answer in lab.ask_all(asked).items():
        rates[name, size] = answer["bytes_up"] * 8 / answer["iteration_s"] / 10e9
        series = chart.setdefault(name, {"x": [], "y": []})
        series["x"].append(size)
        series["y"].append(rates[name, size])
    for size in frames:
        figure.add(f"Mercury with frames of {size} bytes, share of line rate", "full",
                   100 * rates["Mercury", size], 91 if size == 1500 else 95, 100, " %")
    figure.add("ByteScheduler with 4 MB", "< 100 %", 100 * rates["ByteScheduler", 4 * MB], 0, 90,
               " %")
    full = min((size for name, size in rates if name == "Mercury" and rates[name, size] >= 0.95))
    figure.add("4 MB over Mercury's smallest piece at full rate", "~100", 4 * MB / full, 100)
    return figure


FIGURES = {"fig3": fig3, "fig4": fig4, "fig5": fig5, "fig6": fig6, "fig7": fig7}
