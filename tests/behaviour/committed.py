"""Figures that hold until a change says that it alters them: {what: {figure: value}} in a committed
JSON file, one figure a line, so that a commit shows which it altered."""
import json
import os
import shlex
import sys

MOST_LINES = 20  # of differences, for each `what`


def unequal(committed, found):
    return None if found == committed else f"{found!r}, committed is {committed!r}"


def differences(committed, found, differ=unequal):
    """A line for each figure that is not as committed. `differ` says how a figure differs, or None."""
    lines = []
    for what in [*committed, *(what for what in found if what not in committed)]:
        if what not in found or what not in committed:
            lines.append(f"{what}: {'is no longer run' if what in committed else 'is not committed'}")
            continue
        old, new = committed[what], found[what]
        mine = []
        for figure in [*old, *(figure for figure in new if figure not in old)]:
            if figure not in new or figure not in old:
                how = "is no longer there" if figure in old else f"{new[figure]!r} is not committed"
            else:
                how = differ(old[figure], new[figure])
            if how:
                mine.append(f"{what}: {figure}: {how}")
        lines += mine[:MOST_LINES]
        if len(mine) > MOST_LINES:
            lines.append(f"{what}: and {len(mine) - MOST_LINES} more")
    return lines


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: expected what --rewrite writes: {error}")


def hold(path, found, differ=unequal):
    """Compares with the file, or rewrites it if the command line ends in --rewrite; an exit status."""
    if sys.argv[-1] == "--rewrite":
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=1) + "\n")
        print(f"{path} is rewritten: commit it with the change that it is of, which says why")
        return 0
    lines = differences(load(path), found, differ)
    for line in lines:
        print(line)
    if not lines:
        return 0
    command = [os.path.relpath(argument) if os.path.exists(argument) else argument for argument in sys.argv]
    print(f"FAILED: {os.path.relpath(path)} holds what must not change by accident. A change that means to "
          f"alter it rewrites it, and its commit says why:\n  {shlex.join(['python3', *command, '--rewrite'])}")
    return 1
