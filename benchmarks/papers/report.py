"""What a figure consists of: rows that are judged, and panels that are drawn."""
import json
import statistics

WITHIN, ORDER, DIFFERS, OUTSIDE, STATED = "within", "order", "differs", "OUTSIDE", ""


class Figure:
    """Rows: the paper's value beside ours and the range that ours has to be in. Panels: data in
    the form that draw() takes.
    """

    def __init__(self):
        self.rows = []
        self.panels = []

    def add(self, what, paper, ours, least=None, most=None, unit="", differs=None,
            order=False):
        """`differs`: why ours is known to be outside; without it, outside is a failure. `order`: the
        range says who is ahead, not by how much.
        """
        verdict = STATED
        if least is not None or most is not None:
            inside = (least is None or ours >= least) and (most is None or ours <= most)
            verdict = (ORDER if order else WITHIN) if inside else DIFFERS if differs else OUTSIDE
        self.rows.append({"what": what, "paper": paper, "ours": ours, "unit": unit, "least": least,
                          "most": most, "verdict": verdict,
                          "why": differs if verdict == DIFFERS else None})

    def add_runs(self, what, paper, runs, *bounds, **about):
        """A row of what each of several runs gave: their median is judged, their range stated."""
        self.add(what, paper, statistics.median(runs), *bounds, **about)
        self.rows[-1]["runs"] = list(runs)

    def panel(self, title, xlabel, ylabel, log=False, kind="lines"):
        """An empty panel; its "series" are named lists of x and y.

        kind: "lines"; "bars", of which x are names, with an optional "range" below and above y;
        "rows", the same on their side, for long names; panel["line"] is a name and a value to compare with;
        "heat", one series {"x", "y", "z"};
        "spans", x lists of (begin, length), y the row's name.
        """
        panel = {"title": title, "xlabel": xlabel, "ylabel": ylabel, "log": log, "kind": kind,
                 "series": {}}
        self.panels.append(panel)
        return panel["series"]

    def failed(self):
        return [row for row in self.rows if row["verdict"] == OUTSIDE]

    def table(self):
        lines = []
        for row in self.rows:
            bounds = ""
            if row["verdict"] != STATED:
                least, most = (f"{bound:g}" if bound is not None else "" for bound in
                               (row["least"], row["most"]))
                bounds = f"{row['verdict']:<8}[{least}, {most}]"
            runs = row.get("runs", ())
            spread = f"  {len(runs)} runs {min(runs):.4g} to {max(runs):.4g}" if runs else ""
            lines.append(f"  {row['what']:<58} {row['paper']:>12}  {row['ours']:>10.4g}"
                         f"{row['unit']:<6} {bounds}{spread}".rstrip())
        for why in dict.fromkeys(row["why"] for row in self.rows if row["why"]):
            lines.append(f"  differs: {why}")
        return "\n".join(lines)

    def write(self, folder, name, about):
        """NAME.json and, where there is something to draw and matplotlib, NAME.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{name}.json.part"
        unfinished.write_text(json.dumps({"figure": name, **about, "rows": self.rows,
                                          "panels": self.panels}, indent=1), encoding="utf-8")
        unfinished.rename(folder / f"{name}.json")


def pyplot():
    """matplotlib's pyplot, or None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    # The same data, the same bytes; text stays text, which is small and can be searched.
    matplotlib.rcParams.update({"svg.hashsalt": "mercury", "svg.fonttype": "none", "font.size": 9,
                                "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})
    import matplotlib.pyplot
    return matplotlib.pyplot


def draw(panels, title, path):
    """Draws panels, at most three in a row. False: matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return False
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    long = any(panel["kind"] == "rows" for panel in panels)
    size = (7.2, 4.2) if len(panels) == 1 else (1 + (6 if long else 4.2) * columns, 0.6 + 3.2 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for axis, panel in zip(axes.flat, panels):
        DRAWERS[panel["kind"]](figure, axis, panel)
        axis.set_title(panel["title"] if len(panels) > 1 else title, fontsize=10)
        axis.set_xlabel(panel["xlabel"])
        axis.set_ylabel(panel["ylabel"])
    for axis in list(axes.flat)[len(panels):]:
        axis.set_visible(False)
    if len(panels) > 1:
        figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return True


def _lines(_, axis, panel):
    for number, (name, series) in enumerate(panel["series"].items()):
        axis.plot(series["x"], series["y"], label=name, linewidth=1.2 if number else 2,
                  zorder=2 if number else 3, markersize=4,
                  marker="." if len(series["x"]) < 30 else None)
    if panel["log"]:
        axis.set_xscale("log")
        ticks = sorted({x for series in panel["series"].values() for x in series["x"]})
        ticks = ticks[::max(1, len(ticks) // 7)]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axis.set_ylim(0, 1.06 * max(max(series["y"]) for series in panel["series"].values()))
    axis.legend(fontsize=7)


def _bars(_, axis, panel):
    names = list(dict.fromkeys(x for series in panel["series"].values() for x in series["x"]))
    width = 0.8 / len(panel["series"])
    for number, (name, series) in enumerate(panel["series"].items()):
        axis.bar([names.index(x) + (number + 0.5) * width - 0.4 for x in series["x"]], series["y"],
                 width, label=name, yerr=series.get("range"), error_kw={"elinewidth": 0.8})
    axis.set_xticks(range(len(names)), names, fontsize=7, rotation=30 if len(names) > 4 else 0)
    if panel["log"]:
        axis.set_yscale("log")
    axis.grid(axis="x", visible=False)
    axis.legend(fontsize=7)


def _rows(_, axis, panel):
    names = list(dict.fromkeys(x for series in panel["series"].values() for x in series["x"]))
    width = 0.8 / len(panel["series"])
    for number, (name, series) in enumerate(panel["series"].items()):
        axis.barh([names.index(x) + (number + 0.5) * width - 0.4 for x in series["x"]], series["y"],
                  width, label=name, xerr=series.get("range"), error_kw={"elinewidth": 0.8})
    if "line" in panel:
        axis.axvline(panel["line"][1], color="black", linewidth=1, label=panel["line"][0])
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.legend(fontsize=7)


def _heat(figure, axis, panel):
    (series,) = panel["series"].values()
    image = axis.imshow(series["z"], origin="lower", aspect="auto", cmap="viridis")
    axis.set_xticks(range(len(series["x"])), series["x"], fontsize=7)
    axis.set_yticks(range(len(series["y"])), series["y"], fontsize=7)
    axis.grid(visible=False)
    figure.colorbar(image, ax=axis)


def _spans(_, axis, panel):
    names = []
    for name, series in panel["series"].items():
        for row, spans in zip(series["y"], series["x"]):
            if row not in names:
                names.append(row)
            axis.broken_barh(spans, (names.index(row) - 0.4, 0.8), linewidth=0,
                             facecolors=series["color"])
        axis.plot([], [], color=series["color"], linewidth=4, label=name)
    axis.legend(fontsize=7, loc="lower right")
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()


DRAWERS = {"lines": _lines, "bars": _bars, "rows": _rows, "heat": _heat, "spans": _spans}
