"""HELLOs and ARP questions of many hosts on a link that are not there, some hundred a second, as whoever is on the link may
send them, in an order by chance. Says "ready", and "done" when all are sent.

usage: spoof.py INTERFACE MAC ADDRESS PORT NETWORK SOURCES SEED
"""
import ipaddress
import random
import socket
import struct
import sys
import time

import frames

PAUSE_S = 0.0025  # fewer a second than those for which tokens are asked
BROADCAST = b"\xff" * 6


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


def main(interface, mac, address, port, network, sources, seed):
    server, to = bytes.fromhex(mac.replace(":", "")), ipaddress.ip_address(address).packed
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((interface, 0))
    first, generator = int(ipaddress.ip_network(network)[1]), random.Random(seed)
    print("ready", flush=True)
    for i in generator.sample(range(int(sources)), int(sources)):
        own, source = b"\x02\x5b" + struct.pack(">I", i), ipaddress.ip_address(first + i).packed
        hello = frames.hello(f"spoof-{i}", session=1 + i, nonce=generator.randbytes(16), incarnation=1 + i)
        wire.send(who_has(own, source, to))
        wire.send(udp(own, source, server, to, int(port), frames.frame(frames.HELLO, hello)))
        time.sleep(PAUSE_S)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
