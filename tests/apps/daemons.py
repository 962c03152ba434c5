"""mercury-stackd on an address of 127.0.0.0/8, over io_uring: no root needed."""
import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import ready  # noqa: E402

UDP_PORT = 17470


def cpu_s(process):
    """CPU time that it has taken, which other load does not add to."""
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def least_busy(*processes, seconds=0.5):
    """The part of a core that each takes at rest: in the calmest of some intervals, so that what it was
    just asked does not count."""
    parts = []
    for _ in range(4):
        begun = [(cpu_s(process), time.monotonic()) for process in processes]
        time.sleep(seconds)
        parts.append([(cpu_s(process) - spent) / (time.monotonic() - start)
                      for process, (spent, start) in zip(processes, begun)])
    return [min(part) for part in zip(*parts)]


def some_address():
    """Test runs beside each other do not share an address."""
    return f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def config(directory, address, extra="", name="stackd"):
    path = os.path.join(directory, f"{name}.toml")
    with open(path, "w") as file:
        file.write(f"""
[port]
kind = "uring"
address = ["{address}/8"]
udp_port = {UDP_PORT}
[attach]
socket = "{directory}/{name}.sock"
{extra}""")
    return path


def open_jobs(path):
    """Tests' jobs have no secret, and are listed nowhere, unless the configuration speaks of open jobs itself."""
    with open(path) as file:
        return () if "\nopen = " in file.read() else ("--set", "jobs.open=true")


class Daemon:
    """A running daemon; ready when the constructor returns."""

    def __init__(self, stackd, ctl, directory, path):
        name = os.path.splitext(os.path.basename(path))[0]
        self.ctl_program = ctl
        self.socket = f"{directory}/{name}.sock"
        self.log_path = f"{directory}/{name}.log"
        with open(self.log_path, "w") as log:
            start = functools.partial(subprocess.Popen, [stackd, "--config", path, *open_jobs(path)], stderr=log)
            try:
                self.process = ready.start_ready(start, f"{directory}/{name}.notify")
            except ready.NotReady as error:
                raise AssertionError(f"{error}: {self.log()}") from None

    def ctl(self, *arguments):
        return subprocess.run([self.ctl_program, "--socket", self.socket, *arguments], capture_output=True, text=True)

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    def counters(self):
        """Of the first engine."""
        return json.loads(self.ctl("stats", "--json").stdout)["engines"][0]["counters"]

    def attach(self):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.socket)
        connection.settimeout(5)
        return connection

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def holds(self):
        """For others, as it says and as the kernel does: all that must go back to where it was."""
        status = self.status()
        for changing in ("uptime_s", "resident_bytes", "heap_bytes"):
            del status[changing]
        process, kinds = f"/proc/{self.process.pid}", {}
        for number in os.listdir(f"{process}/fd"):
            with contextlib.suppress(FileNotFoundError):
                kind = os.readlink(f"{process}/fd/{number}").partition(":")[0].partition(" ")[0]
                kinds[kind] = kinds.get(kind, 0) + 1
        with open(f"{process}/maps") as file:
            mapped = sum("/memfd:" in line for line in file)
        with open(f"{process}/status") as file:
            threads = next(int(line.split()[1]) for line in file if line.startswith("Threads:"))
        return {**status, "open": kinds, "mapped memfds": mapped, "threads": threads}

    def log(self):
        with open(self.log_path) as file:
            return file.read()

    def mappings_of(self, name):
        """Of this process's mappings of memfds with this name: KiB by what /proc/PID/smaps calls them, and "VmFlags"."""
        found, inside = [], False
        with open(f"/proc/{self.process.pid}/smaps", encoding="ascii") as file:
            for line in file:
                first, *rest = line.split()
                if "-" in first:
                    inside = f"/memfd:{name}" in line
                    if inside:
                        found.append({})
                elif inside:
                    found[-1][first[:-1]] = int(rest[0]) if rest[-1] == "kB" else rest
        return found

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(20)
        return self.process.returncode, self.log()


def start_one(stackd, add_cleanup):
    """(address, daemon): until the test case, or its class, whose addCleanup this is given has ended."""
    directory = tempfile.TemporaryDirectory()
    add_cleanup(directory.cleanup)
    address = some_address()
    daemon = Daemon(stackd, None, directory.name, config(directory.name, address))
    add_cleanup(daemon.stop)
    return address, daemon
