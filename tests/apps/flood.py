"""Datagrams to one port as fast as they go, until it is killed: from many ports of this host, each frame whole and with
its checksums right, of sessions and jobs that nobody has.

usage: flood.py hellos|pushes ADDRESS PORT SEED
"""
import contextlib
import random
import socket
import sys

import frames

FRAMES = 500
SOURCES = 64


def hello(generator):
    """Of a worker of an open job that no other asks for."""
    body = frames.hello(f"flood-{generator.randrange(1 << 32):x}", session=generator.randrange(1, 1 << 31),
                        nonce=generator.randbytes(16), incarnation=generator.randrange(1, 1 << 32))
    return frames.frame(frames.HELLO, body)


def push(generator):
    chunk = (1, generator.randrange(100), 0, 0, 0, generator.randrange(1 << 32))
    return frames.frame(frames.PUSH, generator.randbytes(64), session=generator.randrange(1, 1 << 31),
                        number=generator.randrange(1 << 20), chunk=chunk)


def main(kind, address, port, seed):
    generator = random.Random(int(seed))
    made = [{"hellos": hello, "pushes": push}[kind](generator) for _ in range(FRAMES)]
    sources = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOURCES)]
    for source in sources:
        source.connect((address, int(port)))
    print("ready", flush=True)
    while True:
        with contextlib.suppress(OSError):  # no room in this host's queue
            generator.choice(sources).send(generator.choice(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
