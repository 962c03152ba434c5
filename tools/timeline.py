"""Timelines in Chrome's trace format (which ui.perfetto.dev opens): merging and drawing them.

An event is {"name", "cat", "ph": "X", "ts", "dur", "pid", "tid", "args"}, times in microseconds;
category "forward", "backward" or "update" is a layer's computing, "wait" what the forward pass waited for the layer's
sum, "exchange" the time from push to sum. "args" name the iteration, its policy and the layer.
"""
import json


def load(path):
    with open(path) as file:
        return json.load(file)["traceEvents"]


def merge(named_paths, target):
    """Writes one trace with one process per named file."""
    events = []
    for pid, (name, path) in enumerate(named_paths.items()):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
        events += [{**event, "pid": pid} for event in load(path)]
    with open(target, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def two_iterations(spans, policy):
    """Of a typical pair: from the begin of a backward pass to the end of the second forward pass after it, and how
    long that is. Times from its begin, milliseconds."""
    of_policy = [span for span in spans if span["args"]["policy"] == policy]
    steady = sorted({span["args"]["iteration"] for span in of_policy if span["args"]["steady"]})
    all_of_it = {span["args"]["iteration"] for span in of_policy}

    def moment(iteration, category, pick, edge):
        return pick(span["ts"] + (span["dur"] if edge else 0) for span in of_policy
                    if span["args"]["iteration"] == iteration and span["cat"] == category)
    pairs = []
    for first in steady:
        if first + 2 in all_of_it and first + 1 in steady:
            begin = moment(first, "backward", min, False)
            pairs.append((moment(first + 2, "forward", max, True) - begin, begin))
    length, begin = sorted(pairs)[len(pairs) // 2]
    inside = [{**span, "ts": (span["ts"] - begin) / 1e3, "dur": span["dur"] / 1e3} for span in of_policy
              if begin <= span["ts"] < begin + length]
    return inside, length / 1e3


COLORS = {"forward": "0.6", "backward": "tab:olive", "update": "0.3", "wait": "tab:red", "exchange": "tab:blue"}


def draw(path, policies, target):
    """Two consecutive iterations of each policy ({name in the file: title}) on one axis."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "mercury", "svg.fonttype": "none"})
    import matplotlib.patches
    import matplotlib.pyplot as plt
    spans = [event for event in load(path) if event.get("ph") == "X"]
    layers = list(dict.fromkeys(span["args"]["layer"] for span in sorted(spans, key=lambda s: s["ts"]) if span["cat"] == "forward"))
    rows = ["computing"] + layers
    figure, axes = plt.subplots(len(policies), 1, sharex=True, figsize=(10, 1.9 * len(policies) + 0.8))
    ends = []
    for axis, (policy, title) in zip(axes, policies.items()):
        inside, length = two_iterations(spans, policy)
        for span in inside:
            row = rows.index(span["args"]["layer"]) if span["cat"] == "exchange" else 0
            axis.barh(row, span["dur"], left=span["ts"], color=COLORS[span["cat"]], edgecolor="white", linewidth=0.3,
                      hatch="///" if span["cat"] == "wait" else None, height=0.8 if row == 0 else 0.5)
        axis.axvline(length, color="black", linewidth=1)
        axis.annotate(f"ends at\n{length:.0f} ms", (length, 1), ha="left", va="center", fontsize=9,
                      textcoords="offset points", xytext=(4, 0))
        ends.append(length)
        waited = sum(span["dur"] for span in inside if span["cat"] == "wait")
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(f"{title}: two iterations in {length:.0f} ms, the forward pass waits for {waited:.0f} ms of them",
                       fontsize=10, loc="left")
    axes[-1].set_xlim(0, 1.08 * max(ends))
    axes[-1].set_xlabel("ms")
    legend = {"backward": "backward pass", "forward": "forward pass", "wait": "forward pass waits for a sum",
              "exchange": "exchange of a layer's gradients, from push to the use of the sum"}
    figure.legend(handles=[matplotlib.patches.Patch(facecolor=COLORS[name], label=text, hatch="///" if name == "wait" else None,
                                                    edgecolor="white") for name, text in legend.items()],
                  loc="lower center", ncols=4, fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    plt.close(figure)
