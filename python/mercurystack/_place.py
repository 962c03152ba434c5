"""Where the ranks of a group are reached, and how they tell each other."""

from __future__ import annotations

import datetime
import errno
import logging
import os
import random
import socket
from typing import Any

from mercurystack._context import has_served, with_port
from mercurystack._work import GroupError

SERVERS = "MERCURY_GROUP_SERVERS"
_PORTS = range(10000, 30000)  # below those that Kubernetes gives to services
_TRIES = 64
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"  # of IPv6, too


def daemons_of_groups() -> str:
    """The rendezvous of daemons that serve groups; "" where the ranks do. Those of MERCURY_RENDEZVOUS, unless it is known that
    none are there: a job of this program that its workers serve has met there. ValueError: the environment says what it cannot."""
    rendezvous, said = os.environ.get("MERCURY_RENDEZVOUS", ""), os.environ.get(SERVERS, "")
    if said not in ("", "ranks", "daemons"):
        raise ValueError(f"{SERVERS}: expected ranks or daemons, got {said!r}")
    if said == "daemons" and not rendezvous:
        raise ValueError(f"{SERVERS}=daemons, but no MERCURY_RENDEZVOUS says where they are")
    return "" if said == "ranks" or (not said and has_served(rendezvous)) else rendezvous


def warn_of_nobody(rendezvous: str) -> None:
    """Where the first daemon would be on this host, and nobody is."""
    first = with_port(rendezvous.split(",", 1)[0])
    host, _, port = first.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except (OSError, ValueError):  # somebody is, or it is another host's
        return
    logging.getLogger("mercurystack").warning("the group waits for daemons at %s (MERCURY_RENDEZVOUS), and there nobody listens on this host: start "
                                              "one, or set %s=ranks if the ranks are to serve", rendezvous, SERVERS)


def own_host() -> str:
    """The address of this host that packets to the master come from; without MASTER_ADDR, to the first of the daemons."""
    meeting = os.environ.get("MASTER_ADDR") or _host_of(os.environ.get("MERCURY_RENDEZVOUS", "")) or "127.0.0.1"
    master = socket.getaddrinfo(meeting, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(master[0], socket.SOCK_DGRAM) as probe:
        probe.connect(master[4])
        host: str = probe.getsockname()[0]
    return host


def _host_of(rendezvous: str) -> str:
    """Of HOST[:PORT][,...], where an IPv6 address that has a port is in brackets."""
    first = rendezvous.split(",", 1)[0]
    if first.startswith("["):
        return first[1:].partition("]")[0]
    return first if first.count(":") > 1 else first.partition(":")[0]


def own_place() -> str:
    """That address, and a port that is free there."""
    host = own_host()
    port = _free_port(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _free_port(host: str) -> int:
    """None of those that the kernel gives to who asks for any, where it leaves some: the group's first rank listens there when all have
    been told, and by then such a one may be another program's."""
    others = _never_given()
    while True:
        port = others.pop() if others else 0
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:  # somebody has it, or this process may not
                if port == 0:
                    raise
                continue
            free: int = probe.getsockname()[1]
            return free


def _never_given() -> list[int]:
    """Some ports, by chance; none where the kernel does not say, or gives all."""
    try:
        with open(_RANGE, encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return []
    ports = [port for port in _PORTS if not low <= port <= high]
    return random.SystemRandom().sample(ports, min(len(ports), _TRIES))


def told(store: Any, key: str, rank: int, size: int, timeout: datetime.timedelta) -> str:
    """What that rank tells all. GroupError: it has not within the time-out."""
    try:
        store.wait([key], timeout)
    except RuntimeError as error:
        raise GroupError(errno.ETIME, f"rank {rank} of {size} did not come within {timeout.total_seconds():g} s: {error}") from error
    text: str = store.get(key).decode()
    return text


def tell_place(store: Any, rank: int, host: str, port: int) -> None:
    """Where this rank's messages go."""
    store.set(f"messages-{rank}", f"{host} {port}")


def place_of(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> tuple[str, int]:
    """Of that rank, once it has told. GroupError: it has not within the time-out."""
    host, port = told(store, f"messages-{rank}", rank, size, timeout).split()
    return host, int(port)
