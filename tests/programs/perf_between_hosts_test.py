"""mercury-perf between two virtual hosts with a mercury-stackd each, over Mercury and by the kernel.

usage: perf_between_hosts_test.py STACKD CTL MERCURY_RUN PERF [unittest arguments]
"""
import json
import os
import sys

from two_hosts import PATIENCE_S, ProgramsTest, main, wait_until

PERF = os.path.abspath(sys.argv.pop(4))
PORT = 7480
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

    def test_by_the_kernel_no_daemon_carries_anything(self):
        self.serve()
        with self.carries(0, at_most=0):
            program = self.perf("a", "stream", self.hosts.address("b"), "--over", "kernel", *BRIEF, "--json", "-")
            (row,) = self.report(program)["rows"]
        self.check(row)
        self.assertIsNone(row["cost"]["daemon_cpu_ns"]["per_byte"])

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
        self.assertTrue(wait_until(lambda: min(map(min, self.hosts.bytes_carried().values())) >= 0
                                   and self.hosts.sockets("a")["connections"] > 0))
        self.hosts.cut("b")
        self.addCleanup(self.hosts.heal, "b")
        self.assertEqual(program.wait(PATIENCE_S), 1)
        self.assertIn("not measured: ", self.hosts.words(program)["stderr"])
        self.assertNotIn("Gbit/s", self.hosts.words(program)["stdout"])


if __name__ == "__main__":
    main()
