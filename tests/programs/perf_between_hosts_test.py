"""mercury-perf between two virtual hosts with a mercury-stackd each, over Mercury and by the kernel.

usage: perf_between_hosts_test.py STACKD CTL MERCURY_RUN PERF [unittest arguments]
"""
import json
import os
import subprocess
import sys

from two_hosts import PATIENCE_S, Built, ProgramsTest, main, wait_until
from usage import cpu_s

PERF = os.path.abspath(sys.argv.pop(4))
PORT = 7480
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BRIEF = ["--repeats", 2, "--time", "50ms", "--warmup", "20ms", "--check"]


class PerfTest(ProgramsTest):
    def perf(self, name, *arguments):
        return self.hosts.popen(name, ["env", f"MERCURY_SOCKET={self.hosts.path(name)}.sock",
                                       f"MERCURY_PRELOAD_SOCKET={self.hosts.path(name)}.sock.tcp", PERF, *arguments], mercury=False)

    def serve(self, name="b"):
        server = self.perf(name, "serve")
        self.assertEqual(self.hosts.line(server), f"listening at port {PORT}; SIGINT or SIGTERM ends it")
        return server

    def report(self, program):
        return json.loads(self.hosts.output(program))

    def check(self, row, repeats=2):
        for name in ("gbit_per_s", "operations_per_s"):
            self.assertEqual(len(row[name]["repeats"]), repeats)
            self.assertGreater(row[name]["median"], 0)

    def test_streams_over_mercury_are_carried_by_the_daemons(self):
        self.serve()
        for direction in ("up", "down", "both"):
            with self.subTest(direction=direction):
                program = self.perf("a", "stream", self.hosts.address("b"), "--direction", direction, "--flows", 2, *BRIEF, "--json", "-")
                with self.carries(1_000_000):
                    (row,) = self.report(program)["rows"]
                self.check(row)
                self.assertFalse(row["within_host"])
                self.assertGreaterEqual(row["checked_bytes"], row["operations"] * row["bytes"])
                self.assertGreater(row["cost"]["daemon_cpu_ns"]["per_byte"], 0)
                self.assertGreater(row["cost"]["peer_daemon_cpu_ns"]["per_byte"], 0)

    def test_what_the_other_daemon_did_is_counted_once_for_all_connections(self):
        self.serve()
        before = cpu_s(self.hosts.daemons["b"])
        program = self.perf("a", "stream", self.hosts.address("b"), "--flows", 8, *BRIEF, "--json", "-")
        (row,) = self.report(program)["rows"]
        said_s = row["cost"]["peer_daemon_cpu_ns"]["per_operation"] * row["operations"] / 1e9
        self.assertLessEqual(said_s, cpu_s(self.hosts.daemons["b"]) - before + 2 * TICK_S)

    def test_by_the_kernel_no_daemon_carries_anything(self):
        self.serve()
        with self.carries(0, at_most=0):
            program = self.perf("a", "stream", self.hosts.address("b"), "--over", "kernel", *BRIEF, "--json", "-")
            (row,) = self.report(program)["rows"]
        self.check(row)
        self.assertIsNone(row["cost"]["daemon_cpu_ns"]["per_byte"])
        self.assertIsNone(row["cost"]["peer_daemon_cpu_ns"]["per_byte"])

    def test_messages(self):
        self.serve()
        program = self.perf("a", "messages", self.hosts.address("b"), "--sizes", "4,100KB", "--flows", 2, *BRIEF, "--json", "-")
        for row in self.report(program)["rows"]:
            self.check(row)
            self.assertEqual(row["latency_us"]["count"], row["operations"])
            self.assertGreater(row["latency_us"]["max"], 0)

    def test_one_to_many_and_many_to_one(self):
        self.serve("a")
        self.serve("b")
        everywhere = [self.hosts.address("a"), self.hosts.address("b")]
        clients = [self.perf(name, "stream", *everywhere, *BRIEF, "--json", "-") for name in "abab"]
        for client in clients:
            (row,) = self.report(client)["rows"]
            self.check(row)
            self.assertEqual(len(row["flows_gbit_per_s"]), 2)
            self.assertTrue(row["within_host"])  # one of the two

    def test_sums_of_two_workers_on_two_hosts(self):
        rendezvous = self.hosts.address("b")
        programs = [self.perf(name, "tensors", "--workers", 2, "--rank", rank, "--rendezvous", rendezvous, "--sizes", "4..64KiB",
                              "--repeats", 2, "--rounds", 10, "--check", "--json", "-") for rank, name in enumerate("ab")]
        for program in programs:
            for row in self.report(program)["rows"]:
                self.check(row)
                self.assertEqual(row["checked_elements"], 22 * row["bytes"] // 4)

    def test_a_network_that_is_cut_ends_in_an_error(self):
        self.serve()
        program = self.perf("a", "stream", self.hosts.address("b"), "--time", "3600s", "--warmup", "1ms")
        self.assertTrue(wait_until(lambda: self.hosts.sockets("a")["connections"] > 0))
        self.hosts.cut("b")
        self.addCleanup(self.hosts.heal, "b")
        self.assertEqual(program.wait(PATIENCE_S), 1)
        self.assertIn("not measured: ", self.hosts.words(program)["stderr"])
        self.assertNotIn("Gbit/s", self.hosts.words(program)["stdout"])


class PingTest(ProgramsTest):
    def ping(self, name, host, *options):
        done = self.hosts.lab[name].popen([Built.ctl, "--socket", f"{self.hosts.path(name)}.sock", "ping", host, *options],
                                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, errors = done.communicate(timeout=PATIENCE_S)
        self.assertEqual(errors, "")
        return done.returncode, out

    def test_what_the_path_carries(self):
        status, out = self.ping("a", self.hosts.address("b"), "--count", "3")
        self.assertEqual(status, 0, out)
        self.assertIn("\n3 asked, 3 answered, 0 % without an answer\nround trip  ", out)
        self.assertRegex(out, r"\npath        IP packets up to \d+ bytes \(UDP payload \d+\)\n")
        status, out = self.ping("b", self.hosts.address("a"), "--json")
        report = json.loads(out)
        self.assertEqual((status, report["asked"], report["answered"]), (0, 5, 5))
        for answer in report["answers"]:
            self.assertEqual(answer["outcome"], "answered")
            self.assertGreater(answer["round_trip_ns"], 0)
        # The interface's MTU is 9000; the engine has found that out by then, or is about to.
        self.assertTrue(wait_until(lambda: json.loads(self.ping("b", self.hosts.address("a"), "--json", "--count", "1")[1])
                                   ["answers"][0]["udp_payload"] == 8972))

    def test_which_side_refuses(self):
        status, out = self.ping("a", "192.0.2.1")  # RFC 5737: of no host
        self.assertEqual(status, 1)
        self.assertEqual(out, "192.0.2.1: refused by this host: 192.0.2.1 is in none of the networks (sockets.networks) of this host\n")
        status, out = self.ping("a", self.hosts.address("a"))
        self.assertEqual(status, 1)
        self.assertIn("is this host's: no network lies between", out)


class SecretPingTest(PingTest):
    """Two hosts whose sockets have different secrets."""
    HOSTS = {"extra": "[sockets]\nprobe = \"5s\"\nsecret = \"one\"\n"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts.kill_daemon("b")
        cls.hosts.extra = cls.hosts.extra.replace("one", "another")
        cls.hosts.start_daemon("b")

    test_what_the_path_carries = None

    def test_which_side_refuses(self):
        status, out = self.ping("a", self.hosts.address("b"))
        self.assertEqual(status, 1)
        address = self.hosts.address("b")
        self.assertEqual(out, f"{address}: refused by that host: the secret of sockets (sockets.secret) is another here\n")


class SilentPingTest(PingTest):
    HOSTS = {"extra": "[sockets]\nprobe = \"100ms\"\n"}
    test_what_the_path_carries = test_which_side_refuses = None

    def test_a_host_without_a_daemon_is_silent_and_is_asked_again(self):
        self.hosts.kill_daemon("b")
        status, out = self.ping("a", self.hosts.address("b"), "--count", "2")
        self.assertEqual(status, 1)
        self.assertRegex(out, r"silent: no answer to a HELLO within 100ms \(sockets.probe of this host\)\n")
        self.assertIn("\n2 asked, 0 answered, 100 % without an answer\n", out)
        self.hosts.start_daemon("b")
        self.assertTrue(wait_until(lambda: self.ping("a", self.hosts.address("b"), "--count", "1")[0] == 0))


if __name__ == "__main__":
    main()
