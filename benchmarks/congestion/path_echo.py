#!/usr/bin/env python3
"""Round trips between two programs, over UDP: what a path takes with the hosts at its ends, whose
programs wait for a core as Mercury's daemons do.

    path_echo.py server
    path_echo.py client ADDRESS SECONDS_BETWEEN     until its input ends

The client prints [[monotonic seconds, seconds it took], ...].
"""
import json
import select
import socket
import struct
import sys
import time

PORT = 5002


def server():
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind(("", PORT))
    print("ready", flush=True)
    while True:
        data, address = end.recvfrom(64)
        end.sendto(data, address)


def client(address, interval):
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.connect((address, PORT))
    round_trips, due = [], time.monotonic()
    while True:
        ready = select.select([end, sys.stdin], [], [], max(due - time.monotonic(), 0))[0]
        now = time.monotonic()
        if end in ready:
            sent, = struct.unpack("=d", end.recv(64))
            round_trips.append([sent, now - sent])
        if sys.stdin in ready:
            break
        if now >= due:
            end.send(struct.pack("=d", now))
            due = now + interval
    print(json.dumps(round_trips))


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        server()
    else:
        client(sys.argv[2], float(sys.argv[3]))
