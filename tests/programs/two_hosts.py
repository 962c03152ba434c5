"""Two virtual hosts with a mercury-stackd each, and programs on them that know nothing of Mercury.

The tests of this folder are started as: TEST STACKD CTL MERCURY_RUN [unittest arguments]. They need root.
"""
import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import netlab  # noqa: E402
import ready  # noqa: E402

SKIPPED = 77  # to Meson
BOTH = (False, True)  # over the kernel, over Mercury
PATIENCE_S = 180  # for what takes seconds where other tests take the processors, too
DEBIAN_PYTHON = "/usr/bin/python3"  # whose packages are Debian's
PATIENT = '[sockets]\nprobe = "5s"\n'  # on a busy machine, too, the first connection is Mercury's
CLEAN = {**{name: value for name, value in os.environ.items() if not name.startswith(("MERCURY_", "LD_PRELOAD"))},
         "PATH": os.environ["PATH"] + ":/usr/sbin"}
numbers = iter(range(1 << 30))


def wait_until(holds, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


class NotCarried(AssertionError):
    """Right, but not over Mercury."""


class Built:
    """What is tested."""
    stackd = ctl = run = None


class TwoHosts:
    """Hosts "a" and "b". `port(host)` gives the [port] section; `prefix` comes before daemons and
    programs, as taskset does; `settings` are the daemons' --set; `open_sockets`: without a secret,
    too. All of it ends with close()."""

    def __init__(self, port=None, ipv6=False, rate_mbit=None, mtu=9000, prefix=(), extra=PATIENT, settings=(), open_sockets=True):
        self.ipv6 = ipv6
        self.prefix = list(prefix)
        self.port = port or self.uring
        self.extra = extra
        self.settings = [word for setting in ("jobs.open=true", *["sockets.open=true"] * open_sockets, *settings) for word in ("--set", setting)]
        self.daemons, self.processes = {}, []
        atexit.register(self.close)  # also if this is interrupted
        self.folder = tempfile.mkdtemp(prefix="mercury-")
        try:
            self.lab = netlab.Lab(f"mp{os.getpid()}x{next(numbers)}", ["a", "b"], rate_mbit=rate_mbit, mtu=mtu)
            for name in "ab":
                self.start_daemon(name)
        except BaseException:
            self.close()
            raise

    def uring(self, host):
        return f'kind = "uring"\naddress = ["{host.ip6}/64"]' if self.ipv6 else f'kind = "uring"\naddress = ["{host.ip}/24"]'

    @staticmethod
    def af_packet(host):
        return (f'kind = "ethdev"\ndevice = "af_packet"\ninterface = "eth0"\nhugepages = "off"\n'
                f'address = ["{host.ip}/24", "{host.ip6}/64"]')

    def path(self, name):
        return os.path.join(self.folder, name)

    def address(self, name):
        return self.lab[name].ip6 if self.ipv6 else self.lab[name].ip

    def endpoint(self, name, port):
        """Of ZeroMQ, and of URLs without their scheme."""
        return f"[{self.address(name)}]:{port}" if self.ipv6 else f"{self.address(name)}:{port}"

    def start_daemon(self, name):
        with open(self.path(f"{name}.toml"), "w") as file:
            file.write(f'[port]\n{self.port(self.lab[name])}\n[attach]\nsocket = "{self.path(name)}.sock"\n{self.extra}')
        with open(self.path(f"{name}.log"), "a") as log:
            start = functools.partial(self.lab[name].popen, [*self.prefix, Built.stackd, "--config", file.name, *self.settings], stderr=log)
            try:
                self.daemons[name] = ready.start_ready(start, self.path(f"{name}.notify"))
            except ready.NotReady as error:
                raise AssertionError(f"{name} {error}: {self.log(name)}") from None

    def kill_daemon(self, name):
        self.daemons[name].kill()
        self.daemons[name].wait()

    def log(self, name):
        with open(self.path(f"{name}.log")) as file:
            return file.read()

    def over_mercury(self, name):
        return [Built.run, "--socket", self.path(f"{name}.sock.tcp")]

    def popen(self, name, command, mercury=True, **options):
        """A program on a host. What it writes is kept in files, unless it is asked for."""
        kept = {stream: open(self.path(f"program-{next(numbers)}.{stream}"), "w+")
                for stream in ("stdout", "stderr") if stream not in options}
        options.setdefault("stdin", subprocess.DEVNULL)
        process = self.lab[name].popen([*self.prefix, *(self.over_mercury(name) if mercury else ()), *map(str, command)],
                                       text=True, env=CLEAN, **options, **kept)
        process.how = f"{command} on {name} over {'Mercury' if mercury else 'the kernel'}"
        process.kept = {stream: open(file.name) for stream, file in kept.items()}  # from its beginning
        for file in kept.values():
            file.close()
        self.processes.append(process)
        return process

    def run(self, name, command, mercury=True, timeout=PATIENCE_S, **options):
        """Its standard output; it must end well."""
        return self.output(self.popen(name, command, mercury, **options), timeout)

    def output(self, process, timeout=PATIENCE_S):
        """What it has written that was not read, once it has ended well."""
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.how}: not done after {timeout} s: {self.words(process)}") from None
        if status != 0:
            raise AssertionError(f"{process.how}: status {status}: {self.words(process)}")
        return process.kept["stdout"].read() if "stdout" in process.kept else ""

    def line(self, process, patience_s=PATIENCE_S):
        """The next that it writes, or "" if it ends before."""
        line = ""

        def whole():
            nonlocal line
            ended = process.poll() is not None
            line += process.kept["stdout"].readline()
            return line.endswith("\n") or ended
        if not wait_until(whole, patience_s):
            raise AssertionError(f"{process.how} has said nothing more for {patience_s} s: {self.words(process)}")
        return line.strip()

    @staticmethod
    def words(process):
        """The last of what it wrote."""
        words = {}
        for stream, kept in process.kept.items():
            with open(kept.name) as file:
                words[stream] = file.read()[-3000:]
        return words

    def listens(self, name, port, process=None):
        """Waits until something listens at that port."""
        def there():
            if process is not None and process.poll() is not None:
                raise AssertionError(f"{process.how} ended: {self.words(process)}")
            return f":{port} " in netlab.sh("ss", "-Hltn", ns=self.lab[name].ns)
        if not wait_until(there):
            raise AssertionError(f"nothing listens at port {port}: {process and self.words(process)}")

    def ask(self, name, question):
        done = subprocess.run([Built.ctl, "--socket", self.path(f"{name}.sock"), question, "--json"],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode != 0:
            raise AssertionError(f"mercuryctl {question}: {done.stderr}\n{self.log(name)}")
        return json.loads(done.stdout)

    def bytes_carried(self):
        """Of programs, by both daemons: {"a": (sent, received), ...}"""
        carried = {}
        for name in "ab":
            counters = [engine["counters"] for engine in self.ask(name, "stats")["engines"]]
            carried[name] = tuple(sum(one[key] for one in counters) for key in ("socket_bytes_sent", "socket_bytes_received"))
        return carried

    def sockets(self, name):
        return self.ask(name, "status")["sockets"]

    def is_idle(self):
        """No connection is left with either daemon."""
        return all(status["connections"] == status["unclaimed"] == 0 for status in map(self.sockets, "ab") if status)

    def cut(self, name):
        netlab.sh("ip", "link", "set", self.lab[name].port, "down", ns=self.lab.switch)

    def heal(self, name):
        netlab.sh("ip", "link", "set", self.lab[name].port, "up", ns=self.lab.switch)

    def lose(self, name, percent):
        """Of the packets to that host."""
        netlab.sh("nft", f"add table inet lossy {{ chain in {{ type filter hook input priority 0; "
                  f"numgen random mod 100 < {percent} drop; }}; }}", ns=self.lab[name].ns)

    def lose_nothing(self, name):
        netlab.sh("nft", "delete table inet lossy", ns=self.lab[name].ns)

    @contextlib.contextmanager
    def counts_tcp(self):
        """Gives a function: how many bytes of TCP, headers too, have come from either host to the other since."""
        namespaces = [self.lab[name].ns for name in "ab"]
        for ns in namespaces:
            netlab.sh("nft", "add table inet counted { chain in { type filter hook input priority -1; "
                      'iifname "eth0" meta l4proto tcp counter; }; }', ns=ns)

        def counted():
            tables = [netlab.sh("nft", "list", "table", "inet", "counted", ns=ns) for ns in namespaces]
            return sum(int(re.search(r"bytes (\d+)", table).group(1)) for table in tables)
        try:
            yield counted
        finally:
            for ns in namespaces:
                netlab.sh("nft", "delete table inet counted", ns=ns)

    def end_programs(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for file in process.kept.values():
                file.close()
        self.processes.clear()

    def close(self):
        self.end_programs()
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
        if hasattr(self, "lab"):
            self.lab.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


def interrupt(*_):
    raise KeyboardInterrupt


class ProgramsTest(unittest.TestCase):
    """One pair of hosts for all tests of a class; how they are made is its HOSTS."""
    HOSTS = {}

    @classmethod
    def setUpClass(cls):
        cls.hosts = TwoHosts(**cls.HOSTS)
        cls.addClassCleanup(cls.hosts.close)

    def tearDown(self):
        self.hosts.end_programs()
        self.assertTrue(wait_until(self.hosts.is_idle), {name: self.hosts.sockets(name) for name in "ab"})
        for name, daemon in self.hosts.daemons.items():
            self.assertIsNone(daemon.poll(), self.hosts.log(name))

    @contextlib.contextmanager
    def carries(self, at_least, at_most=None):
        """What happens meanwhile moves so many bytes between the hosts' daemons, both ways together."""
        before = self.hosts.bytes_carried()
        yield
        bytes_of = lambda: {direction: sum(self.hosts.bytes_carried()[name][direction] - before[name][direction] for name in "ab")
                            for direction in (0, 1)}
        if at_most is None:
            # The last ones are counted as they are written into the program's socket, or a moment later.
            if not wait_until(lambda: min(bytes_of().values()) >= at_least, 5):
                raise NotCarried(f"Mercury carried {bytes_of()} bytes, not {at_least}")
        else:
            self.assertLessEqual(max(bytes_of().values()), at_most)


def main(needs=(), modules=()):
    """Runs the tests; or says in one line why they cannot be, and is skipped. `needs`: (a program, its
    package); `modules`: of Debian's Python."""
    if os.geteuid() != 0:
        print("skipped: virtual hosts need root")
        sys.exit(SKIPPED)
    for program, package in (*needs, ("ss", "iproute2"), ("ethtool", "ethtool"), ("nsenter", "util-linux"), ("nft", "nftables")):
        if shutil.which(program, path=CLEAN["PATH"]) is None:
            print(f"skipped: {program} is missing: apt-get install {package}")
            sys.exit(SKIPPED)
    for module, package in modules:
        if subprocess.run([DEBIAN_PYTHON, "-c", f"import {module}"], capture_output=True).returncode != 0:
            print(f"skipped: {DEBIAN_PYTHON} has no {module}: apt-get install {package}")
            sys.exit(SKIPPED)
    try:
        netlab.Lab(f"mp{os.getpid()}", ["a"]).close()
    except netlab.LabError as error:
        print(f"skipped: no virtual hosts here: {error}")
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, interrupt)  # so does Meson end what takes too long
    Built.stackd, Built.ctl, Built.run = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]], warnings="ignore")
