"""What came of the pairs of a session: a peer and Mercury, measured one after the other, so many times."""
import statistics
import typing


class NotMeasured(RuntimeError):
    """Why there is no figure."""


class Measure(typing.NamedTuple):
    what: str
    unit: str
    better: str  # "more" or "less"


MERCURY = "Mercury"
FIELDS = ["group", "what", "unit", "better", "peer", "peer_median", "peer_least", "peer_most", "mercury_median", "mercury_least",
          "mercury_most", "ratio", "ratio_least", "ratio_most", "runs"]


class Pairs:
    """Figures of peers, each with Mercury's of the same run. Who has failed once has no figure left."""

    def __init__(self):
        self.measured = {}  # (group, measure, peer): [(the peer's, Mercury's)]
        self.missing = {}  # (group, peer): why

    def add(self, group, peer, measure, figure, mercury):
        if (group, peer) not in self.missing and (group, MERCURY) not in self.missing:
            self.measured.setdefault((group, measure, peer), []).append((figure, mercury))

    def miss(self, group, peer, why):
        """`peer` may be MERCURY, without whom the group has no pair."""
        self.missing.setdefault((group, peer), " ".join(str(why).split()) or "no reason was given")
        for key in [key for key in self.measured if key[0] == group and peer in (key[2], MERCURY)]:
            del self.measured[key]

    def misses(self, group, peer):
        return (group, peer) in self.missing

    def rows(self):
        """Of what was measured, as FIELDS says; figures are numbers."""
        for (group, measure, peer), figures in self.measured.items():
            peers, mercurys = zip(*figures)
            ratios = [mercury / figure for figure, mercury in figures]
            spreads = [of(values) for values in (peers, mercurys, ratios) for of in (statistics.median, min, max)]
            yield dict(zip(FIELDS, (group, *measure, peer, *spreads, len(figures))))

    def reasons(self):
        return [{"group": group, "peer": peer, "why": why} for (group, peer), why in self.missing.items()]


def table_of(rows, reasons):
    """For people: by group; what has no figure below, with the reason."""
    lines, group = [], None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += ["", f"{group}", "", "| | | peer | the peer's | Mercury's | Mercury / peer |", "|---|---|---|---|---|---|"]
        lines.append(f"| {row['what']} | {row['unit']}, {row['better']} is better | {row['peer']} | {spread_of(row, 'peer')} | "
                     f"{spread_of(row, 'mercury')} | {spread_of(row, 'ratio', '.3g')} |")
    lines += [""] * bool(reasons)
    lines += [f"not measured, {each['group']}: {each['peer']}: {each['why']}" for each in reasons]
    return "\n".join(lines)


def spread_of(row, which, form=".4g"):
    """Median [least, most]."""
    middle = row["ratio" if which == "ratio" else f"{which}_median"]
    return f"{middle:{form}} [{row[f'{which}_least']:{form}}, {row[f'{which}_most']:{form}}]"


def record_of(row):
    """As a file of docs/records has it."""
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
