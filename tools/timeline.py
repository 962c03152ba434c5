"""Timelines in Chrome's trace format (which ui.perfetto.dev opens): merging and drawing them.

An event is {"name", "cat", "ph": "X", "ts", "dur", "pid", "tid", "args"}, times in microseconds;
category "compute" is a layer's forward or backward pass, "exchange" a tensor's push to sum.
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


def middle_iteration(events):
    """The events of one iteration in the middle of the run, with times from its start."""
    spans = [event for event in events if event.get("ph") == "X"]
    iterations = sorted({event["args"]["iteration"] for event in spans})
    chosen = iterations[len(iterations) // 2]
    spans = [event for event in spans if event["args"]["iteration"] == chosen]
    start = min(event["ts"] for event in spans)
    return [{**event, "ts": event["ts"] - start} for event in spans]


def draw(priority_path, fifo_path, target):
    """A picture of one iteration with priority and one without."""
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(10, 6))
    for axis, path, title in zip(axes, (priority_path, fifo_path), ("priority per frame", "first in, first out")):
        spans = middle_iteration(load(path))
        rows = ["compute"] + sorted({e["name"] for e in spans if e["cat"] == "exchange"})
        for event in spans:
            row = 0 if event["cat"] == "compute" else rows.index(event["name"])
            color = "tab:gray" if event["cat"] == "compute" else "tab:blue"
            if event["cat"] == "compute" and event["name"].startswith("backward"):
                color = "tab:olive"
            axis.barh(row, event["dur"] / 1000, left=event["ts"] / 1000, color=color, edgecolor="white", linewidth=0.3)
        axis.set_yticks(range(len(rows)), rows, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=10)
    axes[-1].set_xlabel("ms; grey forward, olive backward, blue from push to sum")
    figure.tight_layout()
    figure.savefig(target)
    plt.close(figure)
