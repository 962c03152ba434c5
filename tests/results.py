#!/usr/bin/env python3
"""What came of a run of `meson test`, from the meson-logs/testlog.json that it left.

    tests/results.py BUILD

Standard output: one line, how many passed, failed and were skipped, then the names of those that failed. Standard error: each test that
failed, and the last lines that it printed; then which took longest. A run without a log, or with one that ends in the middle of a
line, counts as one more that failed. Status: 0.
"""
import json
import os
import sys

LAST_LINES = 100
SLOWEST = 12
PASSED = ("OK", "EXPECTEDFAIL")
SKIPPED = ("SKIP",)


def ends(text):
    """Its last lines, and how many there were before."""
    lines = text.rstrip().splitlines()
    left_out = len(lines) - LAST_LINES
    return [f"... {left_out} lines before", *lines[-LAST_LINES:]] if left_out > 0 else lines


def short(name):
    """Of a test, as Meson logs it: without its suites."""
    return name.split(" / ")[-1]


def explain(test):
    """The failed test, why Meson calls it so, and what it said."""
    why = test["result"].lower()
    if test["result"] == "FAIL":
        why = f"status {test['returncode']}" if test["returncode"] >= 0 else f"signal {-test['returncode']}"
    lines = [f"-- {test['name']}: failed ({why}) after {test['duration']:.1f} s"]
    for stream in ("stdout", "stderr"):
        said = ends(test.get(stream) or "")
        lines += [f"   {stream}:", *said] if said else []
    return lines


def slowest(seconds):
    """A line about which of the tests, seconds by name, took longest."""
    longest = sorted(seconds.items(), key=lambda test: -test[1])[:SLOWEST]
    return "-- slowest, s: " + ", ".join(f"{short(name)} {took:.0f}" for name, took in longest)


def summary(log):
    """((passed, failed, skipped, name of what failed...), lines about that and about what took longest) of the lines of a
    log, one test each."""
    passed, failed, skipped, lines, seconds, names = 0, 0, 0, [], {}, []
    tests = 0
    for number, line in enumerate(log, 1):
        tests += 1
        try:
            test = json.loads(line)
            result = test["result"]
            seconds[test["name"]] = float(test["duration"])
            if result in PASSED:
                passed += 1
            elif result in SKIPPED:
                skipped += 1
            else:
                lines += explain(test)
                names.append(short(test["name"]))
                failed += 1
        except (ValueError, KeyError, TypeError) as error:
            failed += 1
            lines.append(f"-- testlog.json:{number}: expected a test as Meson logs it: {error!r}")
    if seconds:
        lines.append(slowest(seconds))
    if tests == 0:
        failed += 1
        lines.append("-- no test ran: what stands above says why")
    return (passed, failed, skipped, *names), lines


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        with open(os.path.join(sys.argv[1], "meson-logs", "testlog.json"), encoding="utf-8") as file:
            counts, lines = summary(file)
    except FileNotFoundError:
        counts, lines = summary([])
    print("\n".join(lines), file=sys.stderr, end="\n" if lines else "")
    print(*counts)


if __name__ == "__main__":
    main()
