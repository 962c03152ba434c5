#!/usr/bin/env python3
"""Many connections between two hosts that do nothing, over the kernel's TCP and over Mercury.

    sudo benchmarks/sockets/idle.py                      10,000 connections, about two minutes
    sudo benchmarks/sockets/idle.py --connections 300    fewer: a smoke test

Four programs on one host open them to a fifth on the other, each one after the other. Some are asked for
an echo before and after all have been idle for --seconds. Needs root, and 20,000 descriptors (ulimit -n): until a connection is
accepted it takes three of the daemon's, so each program lets a hundred wait for that at most.

Of the daemons: memory and descriptors, after all connections are open less before, and after an echo on
some; of daemons and programs: CPU time and wake-ups while all is idle. Memory of the kernel is not
counted. Fails if one connection is not Mercury's, or costs a daemon more than 64 KB; and, of 5 seconds and more, if
an idle daemon takes more than 5 % of a core or wakes for more than its ticks, however many connections it has.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import time

import lab  # beside this program
import recording
import usage
from two_hosts import DEBIAN_PYTHON, wait_until

PROGRAM = pathlib.Path(__file__).with_name("idle_program.py")
CLIENTS = 4
PORTS = {False: 7101, True: 7102}
ECHOES = 50  # of each client
MOST_BYTES = 64_000  # 640 MB for 10,000
MOST_CORE = 0.05  # of a daemon
MOST_WAKEUPS = 150  # of a daemon in a second: its engine ticks 100 times
REST_S = 5  # for less, what the echoes have left to do weighs too much
PATIENCE_S = 300


def opened(hosts, mercury, connections):
    """The programs, with all connections open, and how long each took."""
    server = hosts.popen("b", [DEBIAN_PYTHON, PROGRAM, "serve", hosts.address("b"), PORTS[mercury]], mercury)
    if hosts.line(server) != "listens":
        raise SystemExit(f"idle.py: the server does not listen: {hosts.words(server)}")
    clients = [hosts.popen("a", [DEBIAN_PYTHON, PROGRAM, "connect", hosts.address("b"), PORTS[mercury], connections // CLIENTS],
                           mercury, stdin=subprocess.PIPE) for _ in range(CLIENTS)]
    took = [one for client in clients for one in json.loads(hosts.line(client, PATIENCE_S))]
    return [server, *clients], took


def echo(hosts, clients):
    for client in clients:
        client.stdin.write(f"{ECHOES}\n")
        client.stdin.flush()
    for client in clients:
        if hosts.line(client) != "echoed":
            raise SystemExit(f"idle.py: {client.how}: {hosts.words(client)}")


def of_each(measure, processes):
    return [measure(process) for process in processes]


def idle(processes, seconds):
    """CPU time and wake-ups of each meanwhile, for a second."""
    before = of_each(usage.run_s, processes), of_each(usage.wakeups, processes), time.monotonic()
    time.sleep(seconds)
    after = of_each(usage.run_s, processes), of_each(usage.wakeups, processes), time.monotonic()
    passed_s = after[2] - before[2]
    return [[(now - then) / passed_s for then, now in zip(*pair)] for pair in zip(before[:2], after[:2])]


class Measured:
    """One run: over the kernel the daemons have nothing to do with it."""

    def __init__(self, hosts, mercury, connections, seconds):
        daemons = [hosts.daemons[name] for name in "ab"]
        before = of_each(usage.resident_bytes, daemons), of_each(usage.descriptors, daemons)
        began = time.monotonic()
        programs, self.took_us = opened(hosts, mercury, connections)
        self.all_s = time.monotonic() - began
        echo(hosts, programs[1:])
        self.carried = [hosts.sockets(name)["connections"] for name in "ab"]
        after = of_each(usage.resident_bytes, daemons), of_each(usage.descriptors, daemons)
        self.bytes, self.descriptors = [[(now - then) / connections for then, now in zip(*pair)] for pair in zip(before, after)]
        self.resident = after[0]
        run, self.wakeups = idle([*daemons, *programs], seconds)
        self.cores = [sum(run[:2]), sum(run[2:])]
        self.busiest = max(run[:2])
        echo(hosts, programs[1:])
        hosts.end_programs()
        if not wait_until(hosts.is_idle):
            raise SystemExit(f"idle.py: connections are left: {[hosts.sockets(name) for name in 'ab']}")
        self.left = of_each(usage.resident_bytes, daemons)


def rows_of(kernel, mercury, connections):
    """(what, unit, kernel, Mercury) as docs/records/sockets.csv has them."""
    each = f"{connections} idle connections"
    most = lambda values: max(values)
    yield f"{each}: set-up of one p50", "us", statistics.median(kernel.took_us), statistics.median(mercury.took_us)
    yield f"{each}: set-up of all", "s", kernel.all_s, mercury.all_s
    yield f"{each}: daemon's memory for one", "bytes", None, most(mercury.bytes)
    yield f"{each}: daemon's memory for all", "MB", None, most(mercury.bytes) * connections / 1e6
    yield f"{each}: daemon's descriptors for one", "1", None, most(mercury.descriptors)
    yield f"{each}: CPU of both daemons", "ms/s", None, 1000 * mercury.cores[0]
    yield f"{each}: CPU of all programs", "ms/s", 1000 * kernel.cores[1], 1000 * mercury.cores[1]
    yield f"{each}: wake-ups of a daemon", "1/s", None, most(mercury.wakeups[:2])
    yield f"{each}: wake-ups of all programs", "1/s", sum(kernel.wakeups[2:]), sum(mercury.wakeups[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    parser.add_argument("--connections", type=int, default=10_000, help="between the two hosts (default 10,000)")
    parser.add_argument("--seconds", type=float, default=20, help="for which they are idle (default 20)")
    parser.add_argument("--record", type=pathlib.Path, help="append to this CSV file, such as docs/records/sockets.csv")
    arguments = parser.parse_args()
    connections = arguments.connections - arguments.connections % CLIENTS
    lab.use_build(arguments.build)
    hosts = lab.two_hosts()
    try:
        kernel, mercury = (Measured(hosts, mercury, connections, arguments.seconds) for mercury in (False, True))
    finally:
        hosts.close()
    rows = []
    print("| | | kernel | Mercury |\n|---|---|---|---|")
    for what, unit, *figures in rows_of(kernel, mercury, connections):
        shown = ["" if figure is None else f"{figure:.4g}" for figure in figures]
        print(f"| {what} | {unit} | {shown[0]} | {shown[1]} |")
        ratio = f"{figures[1] / figures[0]:.2f}" if figures[0] else ""
        rows.append({"what": what.replace(",", ""), "unit": unit, "kernel": shown[0], "mercury": shown[1], "ratio": ratio})
    print(f"resident memory of the daemons: {[one // 1000 for one in mercury.resident]} KB with them, "
          f"{[one // 1000 for one in mercury.left]} KB after they have ended")
    if kernel.carried != [0, 0] or mercury.carried != [connections] * 2:
        raise SystemExit(f"idle.py: Mercury carried {mercury.carried} of {connections} connections")
    if max(mercury.bytes) > MOST_BYTES:
        raise SystemExit(f"idle.py: a connection costs a daemon {max(mercury.bytes):.0f} bytes, more than {MOST_BYTES}")
    came_to_rest = arguments.seconds >= REST_S
    if came_to_rest and (mercury.busiest > MOST_CORE or max(mercury.wakeups[:2]) > MOST_WAKEUPS):
        raise SystemExit(f"idle.py: an idle daemon takes {100 * mercury.busiest:.2g} % of a core, at most {100 * MOST_CORE:.0f} %, and "
                         f"wakes {max(mercury.wakeups[:2]):.0f} times a second, at most {MOST_WAKEUPS}")
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
