"""A slower world: what takes time in programs takes so many times as long as links are slower."""
import csv
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the policies that have one: scheduler/policy.cc.
STARTUPS = {"p3": "50us", "byteps": "500us", "bytescheduler": "500us"}
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1, "": 1}


def stretched_trace(model, factor, folder):
    """The shipped trace, all times multiplied."""
    lines = (ROOT / "apps" / "trace" / "traces" / f"{model}.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    path = folder / f"{model}-x{factor:g}.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for row in rows:
            writer.writerow({key: round(int(value) * factor) if key.endswith("_ns") else value
                             for key, value in row.items()})
    return path


def stretched_time(text, factor):
    """500us by 20: 10ms."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us|ns|)", text)
    if not found:
        raise ValueError(f"startup={text}: expected a number and ns, us, ms or s")
    time_ns = round(float(found[1]) * UNITS_NS[found[2]] * factor)
    unit = next(unit for unit, size in UNITS_NS.items() if time_ns % size == 0)
    return f"{time_ns // UNITS_NS[unit]}{unit}"


def stretched_policy(text, factor):
    """The policy with its start-up multiplied, whether that is its own or written as a knob; `text` has real times.
    Policies without start-ups as they are."""
    name, _, knobs = text.partition(":")
    knobs = dict(knob.partition("=")[::2] for knob in knobs.split(",")) if knobs else {}
    if name not in STARTUPS and "startup" not in knobs:
        return text
    knobs["startup"] = stretched_time(knobs.get("startup", STARTUPS.get(name)), factor)
    return name + ":" + ",".join(f"{key}={value}" for key, value in knobs.items())
