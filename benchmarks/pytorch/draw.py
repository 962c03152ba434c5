#!/usr/bin/python3
"""Draws what compare.py recorded: an iteration of ScheduledOptimizer beside DDP over Gloo, for each model.

    benchmarks/pytorch/draw.py docs/records/pytorch.csv docs/images/pytorch.svg

Of each model the newest row of two workers that are servers too and know their links' rate: medians as bars, the least and the most run as lines.
"""
import argparse
import csv
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "benchmarks", "papers"))
import report  # noqa: E402

MODELS = {"first": "in its first layers", "even": "evenly in all", "last": "in its last layers"}  # from the bottom
SYSTEMS = {"mercury": ("ScheduledOptimizer over Mercury", "#1f77b4"), "gloo": ("DistributedDataParallel over Gloo", "#999999")}
HEIGHT = 0.36  # of a bar, of which two are side by side


def newest(path):
    """The row of each model."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file) if (row["workers"], row["servers"], row["told"]) == ("2", "0", "1")}
    missing = [model for model in MODELS if model not in rows]
    if missing:
        sys.exit(f"{path}: no row of two workers for {', '.join(missing)}: sudo benchmarks/pytorch/compare.py --record {path}")
    return rows


def draw(plt, rows, path):
    figure, axis = plt.subplots(figsize=(7.2, 2.9))
    for side, (system, (title, color)) in enumerate(SYSTEMS.items()):
        places = [place + (side - 0.5) * HEIGHT for place in range(len(MODELS))]
        median, least, most = ([float(rows[model][f"{system}_{what}"]) for model in MODELS] for what in ("ms", "least_ms", "most_ms"))
        errors = [[a - b for a, b in zip(median, least)], [a - b for a, b in zip(most, median)]]
        axis.barh(places, median, HEIGHT, xerr=errors, color=color, ecolor="#333333", capsize=2, label=title)
        for place, value, end, model in zip(places, median, most, MODELS):
            of_gloo = "" if system == "gloo" else f": {float(rows[model]['mercury_of_gloo']):.2f} of DDP's"
            axis.text(end + 6, place, f"{value:.0f} ms{of_gloo}", va="center", fontsize=8)
    axis.set_yticks(range(len(MODELS)), MODELS.values())
    axis.set_ylabel("the model's weight lies")
    axis.set_xlabel("an iteration, ms (less is better)")
    axis.set_xlim(0, 1.45 * max(float(rows[model]["gloo_most_ms"]) for model in MODELS))
    handles, titles = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], titles[::-1], loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2, frameon=False)  # as the bars are
    axis.grid(axis="y", visible=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record")
    parser.add_argument("picture", help="a file that ends with .svg")
    arguments = parser.parse_args()
    rows, plt = newest(arguments.record), report.pyplot()
    if plt is None:
        sys.exit("no plot: apt-get install python3-matplotlib, and run this with /usr/bin/python3")
    draw(plt, rows, arguments.picture)


if __name__ == "__main__":
    main()
