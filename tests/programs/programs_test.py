"""Programs of Debian that were never changed, between two hosts: each does the same with the kernel's
sockets and with Mercury's.

usage: programs_test.py STACKD CTL MERCURY_RUN [unittest arguments]
"""
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import unittest

from two_hosts import BOTH, DEBIAN_PYTHON, ProgramsTest, TwoHosts, main, wait_until  # noqa: E402

ASYNCIO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "asyncio_program.py")
MB = 1_000_000


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Programs(ProgramsTest):
    next_port = 6000

    def port(self):
        Programs.next_port += 1
        return Programs.next_port

    def serve(self, command, port, mercury, host="b", **options):
        """Once it listens, with Mercury too if it is to."""
        before = self.hosts.sockets(host)["listeners"]
        server = self.hosts.popen(host, command, mercury, **options)
        self.hosts.listens(host, port, server)
        self.assertTrue(not mercury or wait_until(lambda: self.hosts.sockets(host)["listeners"] > before))
        return server

    def end(self, server, how=signal.SIGTERM):
        server.send_signal(how)
        return server.wait(30)

    def moves(self, mercury, at_least):
        """So many bytes go over Mercury, if they are to, and else none."""
        return self.carries(at_least) if mercury else self.carries(0, at_most=0)

    def file_of(self, name, size, seed=1):
        path = self.hosts.path(name)
        with open(path, "wb") as file:
            file.write(random.Random(seed).randbytes(size))
        return path


class Iperf3(Programs):
    STREAM = 200 * MB  # of which eight streams may have 8 MB each on their way (over TCP some 10): less than half

    def runs(self, *how):
        port, streams = self.port(), int(how[how.index("-P") + 1]) if "-P" in how else 1
        for mercury in BOTH:
            with self.moves(mercury, self.STREAM // 2):
                server = self.serve(["iperf3", "-s", "-1", "-p", port, *(["-6"] if self.hosts.ipv6 else [])], port, mercury,
                                    stdout=subprocess.DEVNULL)
                result = json.loads(self.hosts.run("a", ["iperf3", "-J", "-c", self.hosts.address("b"), "-p", port,
                                                         "-n", self.STREAM, *how], mercury))
                self.assertNotIn("error", result)
                self.assertEqual(server.wait(20), 0)
            end = result["end"]
            self.assertEqual(len(end["streams"]), streams)
            # iperf3 counts what has come by the time that its client says that it is done: the rest is in buffers.
            self.assertGreaterEqual(end["sum_sent"]["bytes"], self.STREAM)
            self.assertGreater(end["sum_received"]["bytes"], self.STREAM / 2)
            self.assertLessEqual(end["sum_received"]["bytes"], end["sum_sent"]["bytes"])

    def test_one_stream(self):
        self.runs()

    def test_the_other_way(self):
        port = self.port()
        for mercury in BOTH:
            with self.moves(mercury, self.STREAM // 2):
                server = self.serve(["iperf3", "-s", "-1", "-p", port], port, mercury)
                result = json.loads(self.hosts.run("a", ["iperf3", "-J", "-R", "-c", self.hosts.address("b"), "-p", port,
                                                         "-n", self.STREAM], mercury))
                self.assertEqual(server.wait(20), 0)
            self.assertGreaterEqual(result["end"]["sum_received"]["bytes"], self.STREAM)

    def test_parallel_streams(self):
        self.runs("-P", "8")

    def test_zero_copy(self):
        self.runs("-Z")  # sendfile


class Redis(Programs):
    KEYS = 2000

    def cli(self, port, mercury, *words, **options):
        return self.hosts.run("a", ["redis-cli", "-h", self.hosts.address("b"), "-p", port, *words], mercury, **options).strip()

    def start(self, port, mercury):
        """Once it has loaded what it had saved."""
        server = self.serve(["redis-server", "--port", port, "--bind", "*", "::*", "--protected-mode", "no", "--save", "", "--dir",
                             self.hosts.path(f"redis-{mercury}"), "--enable-debug-command", "yes"], port, mercury)
        self.assertTrue(wait_until(lambda: "\nloading:0" in self.cli(port, mercury, "INFO", "persistence")))
        return server

    def test_all_that_is_stored_is_there_and_is_saved(self):
        port, digests = self.port(), {}
        commands = self.hosts.path("commands")
        with open(commands, "w") as file:
            for key in range(self.KEYS):
                value = random.Random(key).randbytes(random.Random(key).randrange(3000)).hex()
                file.write(f"SET key:{key} {value}\nRPUSH list:{key % 7} {value[:20]}\nHSET hash {key} {value[:9]}\n")
        for mercury in BOTH:
            os.mkdir(self.hosts.path(f"redis-{mercury}"))
            with self.moves(mercury, os.path.getsize(commands)):
                server = self.start(port, mercury)
                with open(commands) as file:
                    self.cli(port, mercury, stdin=file)
                digest = self.cli(port, mercury, "DEBUG", "DIGEST")
                saved = self.cli(port, mercury, "LASTSAVE")
                self.assertEqual(self.cli(port, mercury, "DEBUG", "SLEEP", "1.1"), "OK")  # LASTSAVE counts seconds
                # The child that saves has the connections, too; it has to leave them alone.
                self.assertEqual(self.cli(port, mercury, "BGSAVE"), "Background saving started")
                self.assertEqual(self.cli(port, mercury, "GET", "key:1"), random.Random(1).randbytes(random.Random(1).randrange(3000)).hex())
                self.assertTrue(wait_until(lambda: self.cli(port, mercury, "LASTSAVE") != saved))
                self.assertIn("rdb_last_bgsave_status:ok", self.cli(port, mercury, "INFO", "persistence"))
                self.assertEqual(self.end(server), 0)
                server = self.start(port, mercury)
                self.assertEqual(self.cli(port, mercury, "DEBUG", "DIGEST"), digest)
                self.end(server)
            digests[mercury] = digest
        self.assertEqual(digests[True], digests[False])

    def test_benchmark(self):
        port = self.port()
        for mercury in BOTH:
            os.makedirs(self.hosts.path(f"redis-{mercury}"), exist_ok=True)
            with self.moves(mercury, 4 * 5000 * 100):
                server = self.start(port, mercury)
                # While a child saves.
                self.cli(port, mercury, "SET", "kept", "all the while")
                self.cli(port, mercury, "BGSAVE")
                said = self.hosts.run("a", ["redis-benchmark", "-h", self.hosts.address("b"), "-p", port, "-n", "5000", "-c", "50",
                                            "-d", "100", "-t", "set,get,lpush,lrange_100", "--csv"], mercury)
                rows = [line.split(",")[0].strip('"') for line in said.splitlines()[1:]]
                self.assertEqual(self.cli(port, mercury, "GET", "kept"), "all the while")
                self.assertEqual(int(self.cli(port, mercury, "LLEN", "mylist")), 10_000)
                self.assertIn("connected_clients:1\n", self.cli(port, mercury, "INFO", "clients").replace("\r", ""))
                self.end(server)
            self.assertEqual(len(rows), 5, said)

    def test_clients_with_and_without_mercury_subscribe_to_the_same_server(self):
        port = self.port()
        os.makedirs(self.hosts.path("redis-True"), exist_ok=True)
        self.start(port, True)
        listening = [self.hosts.popen("a", ["redis-cli", "-h", self.hosts.address("b"), "-p", port, "SUBSCRIBE", "news"],
                                      mercury) for mercury in (False, True)]
        self.assertTrue(wait_until(lambda: self.cli(port, True, "PUBLISH", "news", "hello") == "2"))
        for one in listening:
            while (line := self.hosts.line(one)) != "hello":
                self.assertNotEqual(line, "")
            one.terminate()


class Nginx(Programs):
    FILES = {"empty": 0, "one": 1, "page": 5000, "large": 20 * MB}

    def configure(self, name, servers):
        path = self.hosts.path(f"{name}.conf")
        folder = self.hosts.path(f"{name}-state")
        os.makedirs(folder, exist_ok=True)
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(path, "w") as file:
            file.write(f"user root; daemon off; worker_processes 2; error_log {folder}/error.log warn; pid {folder}/pid;\n"
                       f"events {{ worker_connections 512; }}\nhttp {{ sendfile on; access_log off; {temporary} {servers} }}\n")
        return ["nginx", "-c", path, "-p", folder, "-e", f"{folder}/error.log"]

    def pages(self, port):
        os.makedirs(self.hosts.path("pages"), exist_ok=True)
        for name, size in self.FILES.items():
            self.file_of(f"pages/{name}", size)
        return f"server {{ listen *:{port} reuseport; listen [::]:{port}; root {self.hosts.path('pages')}; }}"

    def fetched(self, host, mercury, url):
        to = self.hosts.path("fetched")
        self.hosts.run(host, ["curl", "-sSf", "-o", to, url], mercury)
        return sha256(to)

    def test_pages(self):
        port = self.port()
        command = self.configure("pages", self.pages(port))
        for mercury in BOTH:
            with self.moves(mercury, sum(self.FILES.values())):
                server = self.serve(command, port, mercury)
                for name in self.FILES:
                    url = f"http://{self.hosts.endpoint('b', port)}/{name}"
                    self.assertEqual(self.fetched("a", mercury, url), sha256(self.hosts.path(f"pages/{name}")), name)
                self.end(server, signal.SIGQUIT)

    def test_new_workers_take_over(self):
        port = self.port()
        server = self.serve(self.configure("reload", self.pages(port)), port, True)
        url = f"http://{self.hosts.endpoint('b', port)}/page"
        workers = lambda: set(subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.pid)], capture_output=True, text=True).stdout.split())
        before = workers()
        for _ in range(3):
            server.send_signal(signal.SIGHUP)
            self.assertTrue(wait_until(lambda: workers() and not workers() & before))
            before = workers()
            with self.carries(self.FILES["page"]):
                self.assertEqual(self.fetched("a", True, url), sha256(self.hosts.path("pages/page")))
        self.end(server, signal.SIGQUIT)

    def test_many_requests(self):
        port = self.port()
        command = self.configure("many", self.pages(port))
        for mercury in BOTH:
            server = self.serve(command, port, mercury)
            with self.moves(mercury, 100 * self.FILES["page"]):
                said = self.hosts.run("a", ["wrk", "-t", "2", "-c", "50", "-d", "2s", "--timeout", "30s", f"http://{self.hosts.endpoint('b', port)}/page"], mercury)
            self.assertNotIn("Socket errors", said)
            self.assertNotIn("Non-2xx", said)
            self.assertGreater(int(re.search(r"(\d+) requests in", said).group(1)), 100)
            self.end(server, signal.SIGQUIT)

    def test_a_proxy_between_them(self):
        """nginx waits for a connection with epoll before it connects."""
        port, front = self.port(), self.port()
        pages = self.configure("behind", self.pages(port))
        proxy = self.configure("proxy", f"upstream far {{ server {self.hosts.endpoint('b', port)}; keepalive 4; }}\n"
                               f"server {{ listen {front}; location / {{ proxy_pass http://far; proxy_http_version 1.1; "
                               f'proxy_set_header Connection ""; }} }}')
        for mercury in BOTH:
            server = self.serve(pages, port, mercury)
            relay = self.serve(proxy, front, mercury, host="a")
            with self.moves(mercury, sum(self.FILES.values())):
                for name in self.FILES:
                    # From a program that Mercury has nothing to do with.
                    self.assertEqual(self.fetched("a", False, f"http://{self.hosts.lab['a'].ip}:{front}/{name}"),
                                     sha256(self.hosts.path(f"pages/{name}")), name)
            self.end(relay, signal.SIGQUIT)
            self.end(server, signal.SIGQUIT)


class Asyncio(Programs):
    CLIENTS, BYTES = 60, 200_000

    def test_echo(self):
        said = {}
        for mercury in BOTH:
            port = self.port()
            self.serve([DEBIAN_PYTHON, ASYNCIO, "serve", self.hosts.address("b"), port], port, mercury)
            with self.moves(mercury, 2 * self.CLIENTS * self.BYTES):
                said[mercury] = self.hosts.run("a", [DEBIAN_PYTHON, ASYNCIO, "ask", self.hosts.address("b"), port, self.CLIENTS, self.BYTES],
                                               mercury)
        self.assertEqual(said[True], said[False])


class OtherNamespace(Asyncio):
    """Programs of one host that were given the socket of the other's daemon."""

    def over_others(self, *command):
        return [*self.hosts.over_mercury("b"), DEBIAN_PYTHON, ASYNCIO, *command]

    def warned(self, program):
        said = self.hosts.words(program)["stderr"]
        self.assertEqual(said.count("mercury: mercury-stackd is in another network namespace at "), 1, said)

    def test_echo(self):
        port, other = self.port(), self.port()
        self.serve([DEBIAN_PYTHON, ASYNCIO, "serve", self.hosts.address("b"), port], port, True)
        server = self.serve(self.over_others("serve", self.hosts.address("a"), other), other, False, host="a")
        with self.moves(False, 0):
            client = self.hosts.popen("a", self.over_others("ask", self.hosts.address("b"), port, self.CLIENTS, 1000), False)
            self.hosts.output(client)
            self.hosts.run("b", [DEBIAN_PYTHON, ASYNCIO, "ask", self.hosts.address("a"), other, self.CLIENTS, 1000])
        self.assertEqual(self.hosts.sockets("b")["local_connections"], 0)
        self.warned(client)
        self.warned(server)


class Socat(Programs):
    def target(self, port):
        return f"TCP{6 if self.hosts.ipv6 else 4}:{self.hosts.endpoint('b', port)}"

    def listen(self, port):
        return f"TCP{6 if self.hosts.ipv6 else 4}-LISTEN:{port},reuseaddr"

    def test_a_file(self):
        sent = self.file_of("sent", 20 * MB)
        for mercury in BOTH:
            port, got = self.port(), self.hosts.path(f"got-{mercury}")
            with self.moves(mercury, 20 * MB):
                server = self.serve(["socat", "-u", self.listen(port), f"CREATE:{got}"], port, mercury)
                self.hosts.run("a", ["socat", "-u", f"FILE:{sent}", self.target(port)], mercury)
                self.assertEqual(server.wait(20), 0)
            self.assertEqual(sha256(got), sha256(sent))

    def test_a_program_per_connection(self):
        """A child of the listener has the connection, by fork; with nofork, another program by exec."""
        sent = self.file_of("question", MB)
        for how in ("", ",nofork"):
            for mercury in BOTH:
                port = self.port()
                server = self.serve(["socat", f"{self.listen(port)},fork", f"EXEC:cat{how}"], port, mercury)
                for number in range(3):
                    with self.moves(mercury, 2 * MB), open(sent) as file:
                        got = self.hosts.path("answer")
                        with open(got, "wb") as out:
                            program = self.hosts.popen("a", ["socat", "-t", "20", "-", self.target(port)], mercury, stdin=file, stdout=out)
                            self.assertEqual(program.wait(30), 0, self.hosts.words(program))
                    self.assertEqual(sha256(got), sha256(sent), (how, number))
                self.end(server)


class Iperf3OfIpv6(Iperf3):
    HOSTS = {"ipv6": True}


class SocatOfIpv6(Socat):
    HOSTS = {"ipv6": True}


class NginxOverEthernet(Nginx):
    """Frames of Mercury's own over a packet socket."""
    HOSTS = {"port": TwoHosts.af_packet, "mtu": 1500}


class OnOneProcessor(Redis):
    HOSTS = {"prefix": ("taskset", "-c", "0")}


class AsyncioOnOneProcessor(Asyncio):
    HOSTS = OnOneProcessor.HOSTS


class SocatOnOneProcessor(Socat):
    HOSTS = OnOneProcessor.HOSTS


class NginxOnOneProcessor(Nginx):
    HOSTS = OnOneProcessor.HOSTS


class Iperf3OnOneProcessor(Iperf3):
    HOSTS = OnOneProcessor.HOSTS


if __name__ == "__main__":
    main(needs=(("iperf3", "iperf3"), ("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), ("nginx", "nginx"),
                ("curl", "curl"), ("wrk", "wrk"), ("socat", "socat"), ("taskset", "util-linux"), ("ps", "procps")))
