"""Where this process is reached by the others of a group."""

from __future__ import annotations

import os
import socket


def own_host() -> str:
    """The address of this host that packets to the master come from."""
    master = socket.getaddrinfo(os.environ.get("MASTER_ADDR", "127.0.0.1"), 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(master[0], socket.SOCK_DGRAM) as probe:
        probe.connect(master[4])
        host: str = probe.getsockname()[0]
    return host


def own_place() -> str:
    """That address, and a port that is free there."""
    host = own_host()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
