#!/usr/bin/env python3
"""Reads, every few milliseconds until its input ends, what a device's queue has sent, holds and has
dropped; runs in the device's network namespace.

    link_watch.py DEVICE SECONDS_BETWEEN

Prints "ready", and [[monotonic seconds, bytes sent, bytes waiting, frames dropped], ...]. By rtnetlink: `tc`
takes longer to start than a round trip.
"""
import json
import os
import select
import socket
import struct
import sys
import time

RTM_NEWQDISC, RTM_GETQDISC = 36, 38
NLM_F_REQUEST, NLM_F_ECHO = 1, 8
TC_H_ROOT = 0xFFFFFFFF
TCA_STATS2, TCA_STATS_BASIC, TCA_STATS_QUEUE = 7, 1, 3


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3:]


class QueueReader:
    def __init__(self, device):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.socket.settimeout(10)
        self.request = struct.pack("=IHHIIBxxxiIII", 36, RTM_GETQDISC, NLM_F_REQUEST | NLM_F_ECHO, 0, 0,
                                   socket.AF_UNSPEC, socket.if_nametoindex(device), 0, TC_H_ROOT, 0)

    def read(self):
        self.socket.send(self.request)
        answer = self.socket.recv(1 << 16)
        if struct.unpack_from("=H", answer, 4)[0] != RTM_NEWQDISC:
            raise OSError(-struct.unpack_from("=i", answer, 16)[0], "no such queue")
        stats = dict(attributes(dict(attributes(answer[36:]))[TCA_STATS2]))
        sent, = struct.unpack_from("=Q", stats[TCA_STATS_BASIC])
        _, waiting, dropped = struct.unpack_from("=III", stats[TCA_STATS_QUEUE])
        return [time.monotonic(), sent, waiting, dropped]


def main():
    device, interval = sys.argv[1], float(sys.argv[2])
    try:  # beside more programs than cores: it sleeps nearly always
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pass
    reader = QueueReader(device)
    samples = []
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], interval)[0]:
        samples.append(reader.read())
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
