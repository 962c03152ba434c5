"""HELLOs of many hosts on a link that are not there, and, unless they are alone, ARP questions of theirs, some hundred a
second, as whoever is on the link may send them, in an order by chance. Says "ready", and when all are sent "done", and how
many frames have come in answer.

usage: spoof.py INTERFACE MAC ADDRESS PORT NETWORK SOURCES SEED [alone]
"""
import ipaddress
import random
import socket
import struct
import sys
import time

import frames

PAUSE_S = 0.0025  # fewer a second than those for which tokens are asked
ETHERTYPE_IPV4 = 0x0800
BROADCAST = b"\xff" * 6
NOBODY = b"\x02\x5b"  # so begin the addresses of those that are not there


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    return 0xFFFF - (total % 0xFFFF or 0xFFFF)


def udp(mac, source, to_mac, to, port, payload):
    """A whole Ethernet frame."""
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0) + source + to
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return to_mac + mac + b"\x08\x00" + ip + struct.pack(">HHHH", 17000, port, 8 + len(payload), 0) + payload


def who_has(mac, source, wanted):
    return BROADCAST + mac + b"\x08\x06" + struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + mac + source + bytes(6) + wanted


def heard(wire):
    """How many frames to hosts that are not there have come since."""
    count = 0
    while True:
        try:
            count += wire.recv(6, socket.MSG_DONTWAIT).startswith(NOBODY)
        except BlockingIOError:
            return count


def main(interface, mac, address, port, network, sources, seed, alone=None):
    server, to = bytes.fromhex(mac.replace(":", "")), ipaddress.ip_address(address).packed
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_IPV4))
    wire.bind((interface, ETHERTYPE_IPV4))
    first, generator = int(ipaddress.ip_network(network)[1]), random.Random(seed)
    print("ready", flush=True)
    answers = 0
    for i in generator.sample(range(int(sources)), int(sources)):
        own, source = NOBODY + struct.pack(">I", i), ipaddress.ip_address(first + i).packed
        hello = frames.hello(f"spoof-{i}", session=1 + i, nonce=generator.randbytes(16), incarnation=1 + i)
        if not alone:
            wire.send(who_has(own, source, to))
        wire.send(udp(own, source, server, to, int(port), frames.frame(frames.HELLO, hello)))
        time.sleep(PAUSE_S)
        answers += heard(wire)
    print("done", answers, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
