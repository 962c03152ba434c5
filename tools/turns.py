"""What two commits' benchmarks say when they run in turns: before, after, after, before, before and so on."""
import math
import statistics
import typing

FEWEST_RUNS = 3  # of which a spread can be said


class NotMeasured(RuntimeError):
    """Why there is no figure."""


def orders(runs):
    """Who goes first in each run, and who last: whatever else the machine does, and how it drifts, meets both alike."""
    return [("before", "after") if run % 2 == 0 else ("after", "before") for run in range(runs)]


class Figures(typing.NamedTuple):
    """Of one benchmark, in the order of the runs; those of one run are a pair. Less is better."""
    before: list
    after: list

    def ratios(self):
        return [after / before for before, after in zip(self.before, self.after)]

    def own_ratios(self):
        """Of who went last in a run, and so first in the next one: what is the same, as far apart in time as a pair is."""
        last_of = [getattr(self, last) for _, last in orders(len(self.before))]
        return [last[run + 1] / last[run] for run, last in enumerate(last_of[:-1])]

    def verdict(self):
        """"slower" or "faster" if every run says so, and the median is further from one than whatever is the same was from
        itself. Else nothing was told apart: ""."""
        ratios = self.ratios()
        away = abs(math.log(statistics.median(ratios)))
        if min(ratios) <= 1 <= max(ratios) or away <= max(abs(math.log(ratio)) for ratio in self.own_ratios()):
            return ""
        return "slower" if min(ratios) > 1 else "faster"


def run_in_turns(run_of, runs):
    """`run_of` has a function for "before" and one for "after", which return {benchmark: figure or NotMeasured}. Returns
    {benchmark: Figures}, and {benchmark: why} of each that had no figure once, or has them on one side alone."""
    said = {"before": [], "after": []}
    for order in orders(runs):
        for way in order:
            said[way].append(run_of[way]())
    figures, missing = {}, {}
    for what in dict.fromkeys(what for of in said.values() for run in of for what in run):
        both = {way: [run.get(what, NotMeasured("there is no such benchmark")) for run in of] for way, of in said.items()}
        whys = [f"{way}: {figure}" for way, of in both.items() for figure in of if isinstance(figure, NotMeasured)]
        if whys:
            missing[what] = whys[0]
        else:
            figures[what] = Figures(**both)
    return figures, missing


def row_of(what, unit, figures):
    spread_of = lambda values: {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {"what": what, "unit": unit, "runs": len(figures.before), "before": spread_of(figures.before), "after": spread_of(figures.after),
            "ratio": spread_of(figures.ratios()), "own_ratio": spread_of(figures.own_ratios()), "verdict": figures.verdict()}


def table_of(rows):
    cell = lambda of, form: f"{of['median']:{form}} [{of['least']:{form}}, {of['most']:{form}}]"
    lines = ["| | | before | after | after / before | the same to itself | |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {row['what']} | {row['unit']} | {cell(row['before'], '.4g')} | {cell(row['after'], '.4g')} | {cell(row['ratio'], '.3f')} | "
              f"{row['own_ratio']['least']:.3f} to {row['own_ratio']['most']:.3f} | {row['verdict']} |" for row in rows]
    return "\n".join(lines)
