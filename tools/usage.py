"""What a process has used, as the kernel counts it: of all its threads that live."""
import os
import re


def cpu_s(process):
    """User and system time, in the kernel's ticks."""
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_s(process):
    """Time on a processor, to the nanosecond."""
    return sum(int(text.split()[0]) for text in _of_tasks(process, "schedstat")) / 1e9


def wakeups(process):
    """How often it has gone to sleep of its own accord, and so was woken."""
    return sum(_number("voluntary_ctxt_switches", text) for text in _of_tasks(process, "status"))


def interruptions(process):
    """How often it was running, and another took its place."""
    return sum(_number("nonvoluntary_ctxt_switches", text) for text in _of_tasks(process, "status"))


def sleeps(process):
    """Whether its first thread waits for something."""
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def resident_bytes(process):
    with open(f"/proc/{process.pid}/status") as file:
        return _number("VmRSS", file.read()) * 1024


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def _number(name, status):
    return int(re.search(rf"^{name}:\s*(\d+)", status, re.M)[1])


def _of_tasks(process, name):
    for task in os.listdir(f"/proc/{process.pid}/task"):
        with open(f"/proc/{process.pid}/task/{task}/{name}") as file:
            yield file.read()
