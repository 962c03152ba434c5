"""What a figure consists of: rows that are judged, and panels that are drawn."""
import json
import statistics

# What a row says of the paper, and what it is held to: a range on both sides, always.
REPRODUCED = "reproduced"  # the range is the paper's number with its tolerance
IN_KIND = "in kind"  # the range says who is ahead, or where the curve turns, not by how much
NOT_REPRODUCED = "not reproduced"  # outside that range, for a stated reason, in a stated range of its own
OWN = "own"  # held to a value of ours: says nothing of the paper
STATED = "stated"  # not judged
OUTSIDE = "OUTSIDE"


class Figure:
    """Rows: the paper's value beside ours and the range that ours has to be in. Panels: data in
    the form that draw() takes.
    """

    def __init__(self):
        self.rows = []
        self.panels = []

    def add(self, what, paper, ours, least=None, most=None, unit="", differs=None, order=False,
            own=False):
        """`least` and `most`: the paper's range. `differs`: (why, least, most) where ours is known to be outside
        of it, and where it is then; a row that comes back into the paper's range fails as well, so that what is
        written about it is mended. `order`: the range says who is ahead, not by how much. `own`: the range is
        around a value of ours.
        """
        if (least is None) != (most is None) or (differs and least is None):
            raise ValueError(f"{what}: a judged row has a range on both sides")
        inside = least is not None and least <= ours <= most
        verdict, why = STATED, None
        if least is not None:
            verdict = OWN if own else IN_KIND if order else REPRODUCED
        if differs:
            verdict = NOT_REPRODUCED
            why, lower, upper = differs
            inside = lower <= ours <= upper and not inside
            least, most = lower, upper
        self.rows.append({"what": what, "paper": paper, "ours": ours, "unit": unit, "least": least, "most": most,
                          "verdict": verdict, "check": "" if least is None else "ok" if inside else OUTSIDE,
                          "why": why})

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
        return [row for row in self.rows if row["check"] == OUTSIDE]

    def table(self):
        lines = []
        for row in self.rows:
            judged = ""
            if row["verdict"] != STATED:
                failed = f"{OUTSIDE} " if row["check"] == OUTSIDE else ""
                judged = f"{failed}{row['verdict']:<15}[{row['least']:.6g}, {row['most']:.6g}]"
            runs = row.get("runs", ())
            spread = f"  {len(runs)} runs {min(runs):.4g} to {max(runs):.4g}" if runs else ""
            lines.append(f"  {row['what']:<58} {row['paper']:>12}  {row['ours']:>10.4g}"
                         f"{row['unit']:<6} {judged}{spread}".rstrip())
        for why in dict.fromkeys(row["why"] for row in self.rows if row["why"]):
            lines.append(f"  not reproduced: {why}")
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
