"""Programs that were never changed, over Mercury and by the kernel in the same run: same bytes, same answers.
In a network namespace of its own: needs root. One that is not installed is skipped.

usage: programs_test.py STACKD CTL MERCURY_RUN [unittest arguments]
"""
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "apps"))
from daemons import Daemon, config, some_address  # noqa: E402

STACKD, CTL, RUN = map(os.path.abspath, sys.argv[1:4])
CLONE_NEWNET = 0x40000000
PYTHON = "/usr/bin/python3"  # Debian's, which has Debian's modules
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
CLEAN = {**{name: value for name, value in os.environ.items() if not name.startswith(("MERCURY_", "LD_PRELOAD"))},
         "PATH": PATH}
LIMIT_S = 120  # of any program: a hang, not a slow machine


def installed(*names):
    for name in names:
        if shutil.which(name, path=PATH) is None:
            raise unittest.SkipTest(f"{name} is not installed")


def data_of(size, seed=1):
    return random.Random(seed).randbytes(size)


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Programs(unittest.TestCase):
    """One daemon for a test; `self.prefix` is what runs a program: nothing, or mercury-run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)  # nginx's workers are nobody
        self.daemon = Daemon(STACKD, CTL, self.folder, config(self.folder, some_address()))
        self.addCleanup(self.daemon.stop, signal.SIGKILL)
        self.prefix = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def over_mercury(self, *options):
        return [RUN, "--socket", self.daemon.socket + ".tcp", *options]

    def connections(self):
        return self.daemon.status()["sockets"]["local_connections"]

    def start(self, *command, prefix=None, **how):
        process = subprocess.Popen([*(self.prefix if prefix is None else prefix), *command], env=CLEAN, cwd=self.folder, **how)

        def end():
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self.addCleanup(end)
        return process

    def run_program(self, *command, prefix=None, status=0, **how):
        done = subprocess.run([*(self.prefix if prefix is None else prefix), *command], env=CLEAN, cwd=self.folder,
                              timeout=LIMIT_S, **{"capture_output": True, **how})
        self.assertEqual(done.returncode, status, (command, done.stdout, done.stderr))
        return done.stdout

    def python(self, script, *arguments, **how):
        return self.start(PYTHON, "-c", script, *arguments, stdout=subprocess.PIPE, **how)

    def wait_for_listener(self, port):
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            # Not by connecting: a server that takes one client would take this one.
            with open("/proc/net/tcp") as file:
                if any(f":{port:04X} 00000000:0000 0A" in line for line in file):
                    return
            time.sleep(0.02)
        self.fail(f"nobody listens at port {port}")

    def both(self, scenario, at_least=1):
        """What `scenario` gives by the kernel and over Mercury, where the daemon counts its connections."""
        self.prefix = []
        by_kernel = scenario()
        self.assertEqual(self.connections(), 0)
        self.prefix = self.over_mercury("--on-error", "fail")
        over_mercury = scenario()
        self.assertEqual(over_mercury, by_kernel)
        self.assertGreaterEqual(self.connections(), at_least)
        return over_mercury


class Calls(Programs):
    def test_each_call_says_what_the_kernel_says(self):
        for address in ("127.0.0.1", "::1", "10.9.0.1"):
            with self.subTest(address=address):
                said = [self.run_program(PYTHON, os.path.join(HERE, "calls.py"), address, prefix=prefix).decode().splitlines()
                        for prefix in ([], self.over_mercury("--on-error", "fail"))]
                self.assertEqual(said[1], said[0])
                self.assertGreater(len(said[0]), 70)
        self.assertGreater(self.connections(), 30)


ECHO_SERVER = """
import asyncio, sys
async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
ECHO_CLIENT = """
import asyncio, hashlib, random, sys
async def ask(number):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    data = random.Random(number).randbytes(number * 20000)
    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()
    sending = asyncio.create_task(send())
    got = await reader.read(-1)
    await sending
    writer.close()
    await writer.wait_closed()
    return hashlib.sha256(got).hexdigest()
async def main():
    print(await asyncio.gather(*[ask(number) for number in range(40)]))
asyncio.run(main())
"""


class Asyncio(Programs):
    def test_echo(self):
        def scenario():
            server = self.python(ECHO_SERVER)
            return self.run_program(PYTHON, "-c", ECHO_CLIENT, server.stdout.readline().decode().strip())
        answers = self.both(scenario, at_least=40).decode()
        for number in (0, 1, 39):
            self.assertIn(digest(random.Random(number).randbytes(number * 20000)), answers)

    def test_one_side_alone_is_the_kernels(self):
        server = self.python(ECHO_SERVER, prefix=self.over_mercury())
        answers = self.run_program(PYTHON, "-c", ECHO_CLIENT, server.stdout.readline().decode().strip())
        self.assertIn(digest(b""), answers.decode())
        self.assertEqual(self.connections(), 0)
        server = self.python(ECHO_SERVER, prefix=[])
        self.assertEqual(self.run_program(PYTHON, "-c", ECHO_CLIENT, server.stdout.readline().decode().strip(),
                                          prefix=self.over_mercury()), answers)
        self.assertEqual(self.connections(), 0)

    def test_the_daemon_starts_again(self):
        server = self.python(ECHO_SERVER, prefix=self.over_mercury())
        port = server.stdout.readline().decode().strip()
        self.prefix = self.over_mercury()
        answers = self.run_program(PYTHON, "-c", ECHO_CLIENT, port)
        self.assertEqual(self.connections(), 40)
        self.daemon.stop(signal.SIGKILL)
        done = subprocess.run([*self.prefix, PYTHON, "-c", ECHO_CLIENT, port], env=CLEAN, capture_output=True, timeout=LIMIT_S)
        self.assertEqual(done.stdout, answers)
        self.assertEqual(done.stderr.decode(),
                         f"mercury: no mercury-stackd to speak to at {self.daemon.socket}.tcp: sockets go through the kernel\n")
        self.daemon = Daemon(STACKD, CTL, self.folder, config(self.folder, some_address()))
        self.addCleanup(self.daemon.stop, signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while self.connections() == 0:  # it tells the new daemon as it accepts, once a second
            self.assertLess(time.monotonic(), deadline)
            self.assertEqual(self.run_program(PYTHON, "-c", ECHO_CLIENT, port), answers)


class Socat(Programs):
    def test_a_file_there_and_back(self):
        installed("socat")
        data = data_of(3_000_000)
        sent = self.file("sent", data)

        def scenario():
            server = self.start("socat", "TCP-LISTEN:7001,reuseaddr,bind=127.0.0.1", "EXEC:cat,nofork")
            self.wait_for_listener(7001)
            with open(sent, "rb") as file:
                back = self.run_program("socat", "-t", "100", "-", "TCP:127.0.0.1:7001", stdin=file)
            server.wait(LIMIT_S)
            return digest(back), len(back)
        self.assertEqual(self.both(scenario), (digest(data), len(data)))

    def test_a_child_for_each_client(self):
        installed("socat")

        def scenario():
            server = self.start("socat", "TCP6-LISTEN:7002,reuseaddr,fork,bind=[::1]", "SYSTEM:wc -c")
            time.sleep(0.3)
            counts = [self.run_program("socat", "-t", "100", "-", "TCP6:[::1]:7002,retry=50,interval=0.1",
                                       input=bytes(size)) for size in (0, 1, 100_000)]
            server.terminate()
            server.wait(LIMIT_S)
            return [int(count) for count in counts]
        self.assertEqual(self.both(scenario, at_least=3), [0, 1, 100_000])


class Iperf3(Programs):
    def test_streams_both_ways(self):
        installed("iperf3")

        def scenario():
            sums = []
            for extra in (["-P", "3"], ["-R"], ["-n", "64M", "-l", "1000"]):
                server = self.start("iperf3", "-s", "-1", "-p", "7003", "-B", "127.0.0.1", stdout=subprocess.DEVNULL)
                self.wait_for_listener(7003)
                report = json.loads(self.run_program("iperf3", "-J", "-c", "127.0.0.1", "-p", "7003",
                                                     *(["-n", "64M"] if "-n" not in extra else []), *extra))
                server.wait(LIMIT_S)
                end = report["end"]
                self.assertGreaterEqual(end["sum_sent"]["bytes"], 64 << 20)
                # It ends as the sender is done, with some under way.
                self.assertGreater(end["sum_received"]["bytes"], 16 << 20)
                self.assertLessEqual(end["sum_received"]["bytes"], end["sum_sent"]["bytes"])
                sums.append(len(end["streams"]))
            return sums
        self.assertEqual(self.both(scenario, at_least=8), [3, 1, 1])


class Redis(Programs):
    def test_commands_a_benchmark_and_a_snapshot_by_a_child(self):
        installed("redis-server", "redis-cli", "redis-benchmark")

        def cli(*arguments, **how):
            return self.run_program("redis-cli", "-p", "7004", *arguments, **how).decode()

        def scenario():
            folder = tempfile.mkdtemp(dir=self.folder)
            server = self.start("redis-server", "--port", "7004", "--bind", "127.0.0.1", "--save", "", "--dir", folder,
                                stdout=subprocess.DEVNULL)
            self.wait_for_listener(7004)
            pipe = "".join(f"SET key:{n} {'v' * (n % 3000)}{n}\r\n" for n in range(3000)).encode()
            loaded = cli("--pipe", input=pipe).splitlines()[-1]
            tests = self.run_program("redis-benchmark", "-p", "7004", "-n", "3000", "-c", "20", "-P", "4", "-q",
                                     "-t", "set,get,incr,lpush,rpop,lrange_100,mset").decode()
            self.assertEqual(cli("bgsave"), "Background saving started\n")
            deadline = time.monotonic() + LIMIT_S
            while "rdb_bgsave_in_progress:1" in cli("info", "persistence"):
                self.assertLess(time.monotonic(), deadline)
            self.assertIn("rdb_last_bgsave_status:ok", cli("info", "persistence"))
            with open(os.path.join(folder, "dump.rdb"), "rb") as file:
                self.assertTrue(file.read().startswith(b"REDIS"))
            values = cli("mget", *[f"key:{n}" for n in range(0, 3000, 100)])
            counted = cli("get", "counter:__rand_int__")
            cli("shutdown", "nosave")
            self.assertEqual(server.wait(LIMIT_S), 0)
            return loaded, sorted(re.findall(r"(\w[^:\r\n]*): [0-9.]+ requests per second", tests)), values, counted
        loaded, tests, values, counted = self.both(scenario, at_least=50)
        self.assertEqual(loaded, "errors: 0, replies: 3000")
        self.assertEqual(len(tests), 8, tests)  # LRANGE brings an LPUSH of its own
        self.assertEqual(values.split()[-1], "v" * (2900 % 3000) + "2900")
        self.assertEqual(counted, "3000\n")


NGINX = """
daemon on; worker_processes 2; pid {0}/nginx.pid; error_log {0}/error.log; {1}
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; client_max_body_size 100m;
  client_body_temp_path {0}/t1; proxy_temp_path {0}/t2; fastcgi_temp_path {0}/t3; uwsgi_temp_path {0}/t4; scgi_temp_path {0}/t5;
  server {{ listen 127.0.0.1:7005 reuseport; root {0}/www; }}
  server {{ listen 127.0.0.1:7006; location / {{ proxy_pass http://127.0.0.1:7005; }} }}
}}
"""


class Nginx(Programs):
    def scenario(self):
        os.makedirs(self.path("www"), exist_ok=True)
        files = {name: data_of(size) for name, size in (("small", 100), ("page", 30_000), ("large", 20_000_000))}
        for name, data in files.items():
            self.file(f"www/{name}", data)
        self.file("nginx.conf", NGINX.format(self.folder, "" if os.getuid() else "user root;").encode())
        self.file("error.log", b"")
        self.run_program("nginx", "-c", self.path("nginx.conf"), "-e", self.path("error.log"))
        with open(self.path("nginx.pid")) as file:
            pid = int(file.read())
        try:
            self.wait_for_listener(7005)
            got = {}
            for port in (7005, 7006):  # 7006 asks 7005: nginx waits in epoll before it connects
                for name in files:
                    got[port, name] = digest(self.run_program("curl", "-sf", f"http://127.0.0.1:{port}/{name}"))
            self.assertEqual(got, {(port, name): digest(data) for port in (7005, 7006) for name, data in files.items()})
            answers = []
            if shutil.which("wrk", path=PATH):
                for port in (7005, 7006):
                    report = self.run_program("wrk", "-c", "40", "-t", "2", "-d", "1", f"http://127.0.0.1:{port}/page").decode()
                    self.assertNotIn("Socket errors", report)
                    self.assertNotIn("Non-2xx", report)
                    self.assertGreater(int(re.search(r"(\d+) requests in", report)[1]), 0)
                    answers.append("wrk")
        finally:
            os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + LIMIT_S
        while os.path.exists(self.path("nginx.pid")) and time.monotonic() < deadline:
            time.sleep(0.02)
        with open(self.path("error.log")) as file:
            self.assertEqual([line for line in file if "[notice]" not in line], [])
        return got, answers

    def test_files_a_proxy_and_many_clients(self):
        installed("nginx", "curl")
        self.both(self.scenario, at_least=10)


REP = """
import sys, zmq
context = zmq.Context()
replies = context.socket(zmq.REP)
if sys.argv[1] == "::1":
    replies.setsockopt(zmq.IPV6, 1)
port = replies.bind_to_random_port("tcp://[::1]" if sys.argv[1] == "::1" else "tcp://127.0.0.1")
publishes = context.socket(zmq.XPUB)
publishes.setsockopt(zmq.SNDHWM, 0)
publishes.setsockopt(zmq.XPUB_VERBOSE, 1)
publishes_at = publishes.bind_to_random_port("tcp://127.0.0.1")
print(port, publishes_at, flush=True)
while (message := replies.recv()) != b"publish":
    replies.send(message[::-1])
for _ in range(3):
    assert publishes.recv() == b"\\x01t"
replies.send(b"begins")
for number in range(2000):
    publishes.send(b"t%d " % number + bytes(number % 1000))
    publishes.send(b"u not asked for")
publishes.send(b"t end")
assert replies.recv() == b"done"
replies.send(b"bye")
context.destroy(linger=2000)
"""
REQ = """
import hashlib, sys, zmq
context = zmq.Context()
requests = context.socket(zmq.REQ)
requests.setsockopt(zmq.IPV6, 1)
requests.setsockopt(zmq.TOS, 0xb8)
requests.setsockopt(zmq.TCP_KEEPALIVE, 1)
requests.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
requests.setsockopt(zmq.RCVTIMEO, 60000)
requests.connect(f"tcp://{sys.argv[1]}:{sys.argv[2]}")
seen = hashlib.sha256()
for number in range(1000):
    message = b"%d" % number * (number % 300 + 1)
    requests.send(message)
    assert requests.recv() == message[::-1]
big = bytes(range(256)) * 40000
requests.send(big)
assert requests.recv() == big[::-1]
subscribers = []
for _ in range(3):
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVHWM, 0)
    subscriber.setsockopt(zmq.RCVTIMEO, 60000)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"t")
    subscriber.connect(f"tcp://127.0.0.1:{sys.argv[3]}")
    subscribers.append(subscriber)
requests.send(b"publish")
assert requests.recv() == b"begins"
for subscriber in subscribers:
    count = 0
    while (message := subscriber.recv()) != b"t end":
        seen.update(message)
        count += 1
    print(count)
requests.send(b"done")
assert requests.recv() == b"bye"
print(seen.hexdigest())
context.destroy(linger=0)
"""


class ZeroMq(Programs):
    def test_requests_and_publications(self):
        if subprocess.run([PYTHON, "-c", "import zmq"], capture_output=True).returncode != 0:
            self.skipTest("python3-zmq is not installed")
        for address in ("127.0.0.1", "[::1]"):
            with self.subTest(address=address):
                def scenario():
                    server = self.python(REP, address.strip("[]"))
                    ports = server.stdout.readline().decode().split()
                    said = self.run_program(PYTHON, "-c", REQ, address, *ports)
                    self.assertEqual(server.wait(LIMIT_S), 0)
                    return said
                before = self.connections()
                self.prefix = []
                by_kernel = scenario()
                self.assertEqual(self.connections(), before)
                self.prefix = self.over_mercury("--on-error", "fail")
                self.assertEqual(scenario(), by_kernel)
                self.assertGreaterEqual(self.connections(), before + 4)
                self.assertEqual(by_kernel.split()[:3], [b"2000"] * 3)


class Rules(Programs):
    def test_ssh_is_left_alone(self):
        installed("ssh")
        # Whatever port it is told: the default rules know it by its name.
        server = self.python("import socket\nserver = socket.create_server(('127.0.0.1', 7007))\nprint('ready', flush=True)\n"
                             "taken, _ = server.accept()\nprint(taken.recv(8).decode(), taken.family.name, flush=True)\n",
                             prefix=self.over_mercury())
        server.stdout.readline()
        client = subprocess.run([*self.over_mercury(), "ssh", "-o", "BatchMode=yes", "-p", "7007", "127.0.0.1"],
                                env=CLEAN, capture_output=True, timeout=LIMIT_S)
        self.assertEqual(client.returncode, 255)
        self.assertEqual(server.stdout.readline().decode(), "SSH-2.0- AF_INET\n")
        self.assertEqual(self.connections(), 0)

    def test_a_file_says_which_ports_and_programs(self):
        rules = self.file("rules.toml", b'otherwise = "kernel"\n[[rule]]\nthrough = "mercury"\nports = ["7008"]\n'
                                        b'programs = ["python3*"]\n')
        for port, expected in ((7008, 1), (7009, 0)):
            before = self.connections()
            self.run_program(PYTHON, "-c", "import socket, sys\nserver = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
                             "client = socket.create_connection(server.getsockname())\nserver.accept()\n", str(port),
                             prefix=self.over_mercury("--rules", rules))
            self.assertEqual(self.connections() - before, expected, port)


def enter_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        sys.exit(f"needs root: {os.strerror(ctypes.get_errno())}")
    for arguments in (("link", "set", "lo", "up"), ("addr", "add", "10.9.0.1/24", "dev", "lo")):
        subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    enter_namespace()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], warnings="ignore")
