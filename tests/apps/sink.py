"""Who says HELLO here, and for which job: one who answers nobody, at ports of this host.

usage: sink.py FIRST_PORT PORTS. For each line that it reads it says what has come so far, as JSON: a list of
[port, job, HELLOs].
"""
import collections
import json
import select
import socket
import sys

import frames


def main(first, ports):
    places = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(ports)]
    for i, place in enumerate(places):
        place.bind(("", first + i))
    came = collections.Counter()
    print("ready", flush=True)
    while True:
        for heard in select.select([sys.stdin, *places], [], [])[0]:
            if heard is sys.stdin:
                if not sys.stdin.readline():
                    return
                print(json.dumps([[*who, times] for who, times in came.items()]), flush=True)
                continue
            kind, _, payload = frames.parse(heard.recv(2048))
            if kind == frames.HELLO:
                came[heard.getsockname()[1], payload[72:].decode()] += 1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
