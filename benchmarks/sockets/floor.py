#!/usr/bin/env python3
"""What processes between programs and the network cost that do nothing else, beside Mercury.

    sudo benchmarks/sockets/floor.py             5 runs of each, about ten minutes
    sudo benchmarks/sockets/floor.py --quick     one short run of each: a smoke test

The same programs of ZeroMQ on the same links as sockets.py, in turns, by:

    kernel         TCP from program to program
    one relay      Unix socket, benchmarks/sockets/least_relay, Unix socket, on one host: no network at all
    two relays     Unix socket, least_relay, TCP between the hosts, least_relay, Unix socket: by copies
    splice         the same without copies in the relays
    Mercury

A relay does nothing but to hand bytes on, one read and one write at a time. So what two relays are slower than the kernel
comes of being in between, not of a protocol. It is no bound for every daemon: these sleep, and use the kernel's TCP. Needs root.

Median, and in brackets least and largest. CPU: user and system time of programs, and of relays or daemons.
"""
import argparse
import json
import os
import pathlib
import statistics

import lab  # beside this program
import recording
from sockets import SIZES, Bench, named
from two_hosts import wait_until

KERNEL, MERCURY = "kernel", "Mercury"
RELAYS = {"one relay": None, "two relays": "copy", "splice": "splice"}
WAYS = (KERNEL, *RELAYS, MERCURY)


class Floor(Bench):
    def __init__(self, hosts, program, relay, scale):
        super().__init__(hosts, program, scale, "between")
        self.relay, self.measured = relay, {}  # (what, unit): {way: [figure of each run]}

    def note(self, what, unit, way, figure):
        self.measured.setdefault((what, unit), {way: [] for way in WAYS})[way].append(figure)

    def start_relays(self, how, path):
        """From the client's Unix socket to the server's."""
        here, there = f"unix:{path}.a", f"unix:{path}.b"
        network = f"tcp:{self.address}:{self.port()}"
        hops = [("b", "copy", here, there)] if how is None else [("b", how, network, there), ("a", how, here, network)]
        relays = [self.hosts.popen(host, [self.relay, *hop], mercury=False) for host, *hop in hops]
        for relay in relays:
            if self.hosts.line(relay) != "listens":
                raise SystemExit(f"floor.py: {relay.how} does not listen: {self.hosts.words(relay)}")
        return relays

    def by_relays(self, one, other, count, size, how):
        """As ends()."""
        path = self.hosts.path(f"floor-{self.port()}")
        server = self.hosts.popen("b", [self.program, one, f"ipc://{path}.b", count, size], mercury=False)
        if not wait_until(lambda: os.path.exists(f"{path}.b")):
            raise SystemExit(f"floor.py: the server does not listen: {self.hosts.words(server)}")
        relays = self.start_relays(how, path)
        client_host = "b" if how is None else "a"
        client = json.loads(self.hosts.run(client_host, [self.program, other, f"ipc://{path}.a", count, size], mercury=False))
        server = json.loads(self.hosts.output(server))
        said = [json.loads(self.hosts.output(relay).splitlines()[-1]) for relay in relays]
        return server, client, sum(one["cpu_s"] for one in (server, client, *said))

    def by(self, way, *what):
        return self.by_relays(*what, RELAYS[way]) if way in RELAYS else self.ends(*what, way == MERCURY)

    def run(self):
        for size, counts in SIZES.items():
            asked, sent = (max(10, int(count * self.scale)) for count in counts)
            for way in WAYS:
                _, client, cpu = self.by(way, "reply", "request", asked, size)
                self.note(f"request and reply, {named(size)}, p50", "us", way, client["p50_us"])
                self.note(f"request and reply, {named(size)}, p99", "us", way, client["p99_us"])
                self.note(f"request and reply, {named(size)}, CPU", "us", way, cpu / asked * 1e6)
                if size < 1000:
                    continue
                server, _, cpu = self.by(way, "pull", "push", sent, size)
                self.note(f"push, {named(size)}", "MB/s", way, (sent - 1) * size / server["seconds"] / 1e6)
                self.note(f"push, {named(size)}, CPU", "ns/byte", way, cpu / (sent * size) * 1e9)
        self.hosts.end_programs()

    def print(self):
        cell = lambda figures: f"{statistics.median(figures):.3g} ({min(figures):.3g} to {max(figures):.3g})"
        print("| | | " + " | ".join(WAYS) + " |\n|---|---|" + "---|" * len(WAYS))
        for (what, unit), of in self.measured.items():
            print(f"| {what} | {unit} | " + " | ".join(cell(of[way]) for way in WAYS) + " |")

    def records(self):
        for (what, unit), of in self.measured.items():
            kernel = statistics.median(of[KERNEL])
            for way in WAYS:
                median = statistics.median(of[way])
                yield {"what": what.replace(",", ""), "unit": unit, "way": way, "median": f"{median:.4g}", "least": f"{min(of[way]):.4g}",
                       "most": f"{max(of[way]):.4g}", "ratio": f"{median / kernel:.2f}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_build(parser)
    lab.add_settings(parser)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--record", type=pathlib.Path, help="append to this CSV file, such as docs/records/sockets_floor.csv")
    arguments = parser.parse_args()
    folder = arguments.build.resolve() / "benchmarks/sockets"
    lab.use_build(arguments.build, folder / "zeromq_bench", folder / "least_relay")
    hosts = lab.two_hosts(settings=arguments.settings)
    try:
        floor = Floor(hosts, folder / "zeromq_bench", folder / "least_relay", 0.02 if arguments.quick else 1)
        for _ in range(1 if arguments.quick else arguments.repeat):
            floor.run()
    finally:
        hosts.close()
    floor.print()
    if arguments.record:
        recording.append(arguments.record, list(floor.records()))


if __name__ == "__main__":
    main()
