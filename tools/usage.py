"""What processes have used, as the kernel counts it: those of one, of all its threads that live."""
import os
import re
import time


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


class Others:
    """Processors that programs other than this one and its children were using, and other guests of this machine's host."""

    def __init__(self):
        self.begin_s, self.begin_spent_s = time.monotonic(), self._spent_s()

    def processors(self):
        """Mean, since this was made. Of children, those that have ended and were waited for are known."""
        return (self._spent_s() - self.begin_spent_s) / (time.monotonic() - self.begin_s)

    @staticmethod
    def _spent_s():
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _, _, _, _, stolen, *_ = map(int, file.readline().split()[1:])
        return (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def _number(name, status):
    return int(re.search(rf"^{name}:\s*(\d+)", status, re.M)[1])


def _of_tasks(process, name):
    for task in os.listdir(f"/proc/{process.pid}/task"):
        with open(f"/proc/{process.pid}/task/{task}/{name}") as file:
            yield file.read()
