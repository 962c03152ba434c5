#!/usr/bin/env python3
"""Kernel TCP beside Mercury: a server that counts what it receives, and clients that never stop.

    tcp_flows.py server                        a line of input: [monotonic seconds, bytes of each flow]
    tcp_flows.py client ADDRESS ALGORITHM      until the server ends
"""
import json
import socket
import sys
import threading
import time

PORT = 5001


def server():
    counts = []

    def read(connection, index):
        while data := connection.recv(1 << 18):
            counts[index] += len(data)

    listener = socket.create_server(("", PORT), backlog=64)
    print("ready", flush=True)

    def accept():
        while True:
            connection, _ = listener.accept()
            counts.append(0)
            threading.Thread(target=read, args=(connection, len(counts) - 1), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps([time.monotonic(), counts]), flush=True)


def client(address, algorithm):
    flow = socket.socket()
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    flow.connect((address, PORT))
    data = bytes(1 << 16)
    try:
        while True:
            flow.send(data)
    except ConnectionError:
        pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        server()
    else:
        client(sys.argv[2], sys.argv[3])
