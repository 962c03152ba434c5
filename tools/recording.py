"""Rows of docs/records: what was measured, when, at which commit, on what and with which command."""
import csv
import datetime
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ABOUT = ["date", "commit", "machine", "command"]
# What decides a figure, in virtual time too: the simulator runs the engine itself.
ENGINE = ["transport", "scheduler", "aggregator", "shim", "apps/sim"]


class RecordError(RuntimeError):
    pass


def git(*words, root=ROOT):
    """What git says, or None where there is no repository, or none that has what is asked for."""
    try:  # programs that need root read a checkout that is the user's
        done = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit(root=ROOT):
    """Of the sources, with a + where they differ from it; documents do not count."""
    found = git("rev-parse", "--short=7", "HEAD", root=root)
    if found is None:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", root=root)
    return found + ("+" if changed else "")


def changes_since(recorded, root=ROOT):
    """How many commits have changed the engine since this one; None: this is no checkout, or does not have it."""
    said = git("rev-list", "--count", f"{recorded.rstrip('+')}..HEAD", "--", *ENGINE, root=root)
    return None if said is None else int(said)


# What is measured is what was there when the program began.
COMMIT = commit()


def machine():
    text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    model = re.search(r"^Model name:\s*(.+)$", text, re.M)
    return f"{model[1].strip() if model else 'unknown'}, {os.cpu_count()} cores"


def command(by="sudo"):
    """As `by` types it, but for what changes nothing in what is measured."""
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word in ("--record", "--build", "--out", "--json"):
            next(given, None)
        elif word.split("=")[0] not in ("--record", "--build", "--out", "--json", "--no-plot"):
            words.append(word)
    program = pathlib.Path(sys.argv[0]).resolve()
    run = [by] if by else []
    if not os.access(program, os.X_OK):
        run.append("python3")
    return shlex.join([*run, str(program.relative_to(ROOT) if program.is_relative_to(ROOT) else program), *words])


def append(path, rows, in_virtual_time=False):
    """Rows, dictionaries of the same keys, behind those that the file has. Virtual time is the same on each machine, and nobody's
    privilege."""
    where = ("virtual time", command(by="")) if in_virtual_time else (machine(), command())
    about = dict(zip(ABOUT, (datetime.date.today().isoformat(), COMMIT, *where)))
    check(path, list(rows[0]))
    new = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*ABOUT, *rows[0]], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({**about, **row} for row in rows)


def check(path, fields):
    """That rows of these fields, behind ABOUT, fit to those that the file has."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, newline="", encoding="utf-8") as file:
        header = next(csv.reader(file))
    if header != [*ABOUT, *fields]:
        raise RecordError(f"{path}:1: has the columns {','.join(header)}, not {','.join([*ABOUT, *fields])}: "
                          "record to another file")
