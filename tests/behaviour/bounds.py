"""What something may cost: committed figures that are bounds, each with a reason beside it."""
import os

import committed

TOLERANCE = 0.01  # either way
NO_REASON = "has no reason: say beside it what it is spent on"


def with_reasons(found, held):
    """{what: {figure: value}} as the file has it, {"bound": value, "reason": text} for each number. Reasons are those of
    `held`; what is new has none yet."""
    reason_of = lambda what, figure: held.get(what, {}).get(figure, {}).get("reason", "")
    return {what: {figure: {"bound": value, "reason": reason_of(what, figure)} if isinstance(value, (int, float)) else value
                   for figure, value in figures.items()} for what, figures in found.items()}


def differ(was, now):
    """How a figure differs from what is committed, or None."""
    if not isinstance(now, dict):
        return committed.unequal(was, now)
    if not was["reason"]:
        return NO_REASON
    was, now = was["bound"], now["bound"]
    if abs(now - was) <= TOLERANCE * was:
        return None
    change = f"{now} instructions, committed is {was}"
    return f"grew: {change}" if now > was else f"shrank, commit the new figure: {change}"


def held_in(path):
    """What the file holds; nothing, where there is none yet."""
    return committed.load(path) if os.path.exists(path) else {}


def hold(path, found):
    return committed.hold(path, with_reasons(found, held_in(path)), differ)
