"""mercury-perf as its users run it: real daemons on 127.0.0.0/8, or none, and no root. What it prints is
parsed, sums are compared, and nothing is said of how fast it was.

usage: perf_test.py PERF STACKD CTL
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402

PERF, STACKD, CTL = sys.argv[1:4]
LIMIT_S = 60
PORT = 17480
SHORT = ["--repeats", "2", "--rounds", "20", "--warmup", "1ms"]
PERCENTILES = ["p50", "p90", "p99", "p99.9", "max"]


def environment(**more):
    prefixes = ("MERCURY_", "DMLC_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **more}


def wait_until(condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


class PerfCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder, self.started = folder.name, []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def daemon(self, name, extra=""):
        """Its address."""
        address = some_address()
        daemon = Daemon(STACKD, CTL, self.folder, config(self.folder, address, extra, name))
        self.addCleanup(daemon.stop)
        return address, daemon

    def start(self, *arguments, **more):
        process = subprocess.Popen([PERF, *map(str, arguments)], env=environment(**more), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def finish(self, process, status=0):
        out, errors = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, status, out + errors)
        return out, errors

    def check_rates(self, row, repeats):
        for name in ("gbit_per_s", "operations_per_s"):
            self.assertEqual(len(row[name]["repeats"]), repeats)
            self.assertGreater(row[name]["median"], 0)
            self.assertGreaterEqual(row[name]["spread"], 0)
        self.assertGreater(row["cost"]["program_cpu_ns"]["per_operation"], 0)
        cycles = row["cost"]["program_cycles"]["per_operation"]
        self.assertEqual(cycles is None, "no_cycles" in row["cost"], row["cost"])

    def check_latencies(self, latency, count):
        self.assertEqual(latency["count"], count)
        known = [latency[name] for name in PERCENTILES if latency[name] is not None]
        self.assertEqual(known, sorted(known))
        self.assertIsNotNone(latency["max"])
        self.assertEqual(latency["p99.9"] is None, count < 1000)
        self.assertEqual(latency["p99"] is None, count < 100)


class Tensors(PerfCase):
    def job(self, workers, *options):
        """The workers' programs, over a daemon for the server and one for all workers."""
        address, self.server = self.daemon("server")
        _, worker = self.daemon("worker", "[jobs]\nserve = false\n")
        return [self.start("tensors", "--mode", "daemon", "--rendezvous", f"{address}:{UDP_PORT}", "--workers", workers,
                           "--rank", rank, *options, MERCURY_SOCKET=worker.socket) for rank in range(workers)]

    def test_sizes_are_swept_and_every_sum_is_compared(self):
        programs = self.job(2, "--sizes", "4..1KB", "--in-flight", "3", "--priorities", "each", "--check", *SHORT, "--json", "-")
        for rank, program in enumerate(programs):
            report = json.loads(self.finish(program)[0])
            self.assertEqual((report["rank"], report["workers"], report["engine"]), (rank, 2, "daemon"))
            self.assertEqual([row["bytes"] for row in report["rows"]], [4, 16, 64, 256, 1000])
            for row in report["rows"]:
                self.check_rates(row, 2)
                self.assertEqual(row["operations"], 2 * 20 * 3)
                times = [time for repeat in row["repeats_ns"] for time in repeat]
                self.assertEqual((len(times), times), (4, sorted(times)))
                for rate, (begin, end) in zip(row["gbit_per_s"]["repeats"], row["repeats_ns"]):
                    self.assertAlmostEqual(rate, 20 * 3 * row["bytes"] * 8 / (end - begin), places=6)
                # Before, in both repeats, after.
                self.assertEqual(row["checked_elements"], (1 + 2 * 20 + 1) * 3 * row["bytes"] // 4)
                self.check_latencies(row["latency_us"], 120)
                self.check_latencies(row["first_latency_us"], 40)
                self.assertAlmostEqual(row["bus_gbit_per_s"], row["gbit_per_s"]["median"])  # of two workers
                self.assertGreater(row["cost"]["daemon_cpu_ns"]["per_operation"], 0)

    def test_people_get_tables(self):
        out, errors = self.finish(self.job(1, "--sizes", "4,4096", *SHORT)[0])
        self.assertEqual(errors, "")
        self.assertIn("worker 0 of 1, 1 server, daemon; policy mercury; 2 repeats\nf32, 1 tensor in flight", out)
        self.assertRegex(out, r"\n +4B +40 +[\d.]+ +\d+ % +- +[\d.]+ ")
        self.assertRegex(out, r"\n +4KiB +40 +[\d.]+ +\d+ % +- ")
        self.assertIn("\nbus -: a ring of one worker sends nothing\n", out)
        self.assertIn("too few operations", out)

    def test_a_models_tensors_without_computing(self):
        programs = self.job(2, "--model", "resnet50", "--size-scale", "1000", *SHORT, "--json", "-")
        for program in programs:
            report = json.loads(self.finish(program)[0])
            self.assertEqual(report["model"], "resnet50")
            (row,) = report["rows"]
            self.check_rates(row, 2)
            self.assertEqual((row["tensors"], row["operations"]), (161, 161 * 20 * 2))
            self.assertEqual(row["checked_elements"], 2 * row["bytes"] // 4)
            self.assertAlmostEqual(row["models_per_s"]["median"] * 161, row["operations_per_s"]["median"], delta=1e-3)

    def test_embedded_with_a_server_of_its_own(self):
        address = some_address()
        where = ["--mode", "embedded", "--rendezvous", f"{address}:{UDP_PORT}"]
        server = self.start("tensors", "--role", "server", *where)
        report = json.loads(self.finish(self.start("tensors", *where, "--listen", some_address(), "--sizes", "64KiB",
                                                   "--dtype", "bf16", *SHORT, "--json", "-"))[0])
        self.assertEqual(report["engine"], "embedded")
        self.check_rates(report["rows"][0], 2)
        cost = report["rows"][0]["cost"]
        self.assertIsNone(cost["daemon_cpu_ns"]["per_operation"])
        self.assertIn("embedded", cost["no_daemon_cpu"])
        self.finish(server)

    def test_a_worker_that_is_killed_leaves_an_error_and_no_figure(self):
        first, second = self.job(2, "--sizes", "64,1KB", "--repeats", "1000", "--time", "10s", "--json", "-")

        def exchanging():  # the tensor by which workers agree, the first size's, then the barrier's
            jobs = json.loads(self.server.ctl("jobs", "--json").stdout)["jobs"]
            return [job["tensors"] >= 2 for job in jobs] == [True]

        self.assertTrue(wait_until(exchanging))
        second.kill()
        out, errors = self.finish(first, status=1)
        # Whether the barrier before a repeat or an exchange in it meets the end is chance.
        self.assertRegex(errors, "mercury-perf: 64B: not measured: (barrier: )?worker 1 of 2 .*: its program ended")
        rows = json.loads(out)["rows"]
        self.assertRegex(rows[0]["not_measured"], "its program ended")
        self.assertEqual(rows[1]["not_measured"], "not tried after that")
        self.assertNotIn("gbit_per_s", rows[0])

    def test_workers_with_different_options_are_told(self):
        address, _ = self.daemon("server")
        _, worker = self.daemon("worker", "[jobs]\nserve = false\n")
        for rank, rounds in enumerate(("20", "21")):
            self.start("tensors", "--rendezvous", f"{address}:{UDP_PORT}", "--workers", 2, "--rank", rank, "--sizes", 4,
                       "--rounds", rounds, MERCURY_SOCKET=worker.socket)
        for program in self.started:
            self.assertIn("the workers were started with different options", self.finish(program, status=1)[1])

    def test_what_memory_does_not_allow_is_said_and_the_rest_is_measured(self):
        address, _ = self.daemon("server")
        _, worker = self.daemon("worker", '[jobs]\nserve = false\n')
        program = self.start("tensors", "--rendezvous", f"{address}:{UDP_PORT}", "--sizes", "4,1024GiB", *SHORT, "--json",
                             f"{self.folder}/report", MERCURY_SOCKET=worker.socket)
        out, errors = self.finish(program, status=1)
        self.assertRegex(errors, "mercury-perf: 1024GiB: not measured: cannot allocate 1099511627776 bytes for the tensors: .")
        self.assertIn("\n1024GiB: not measured: ", out)
        with open(f"{self.folder}/report") as file:
            rows = json.load(file)["rows"]
        self.check_rates(rows[0], 2)
        self.assertNotIn("gbit_per_s", rows[1])


class Flows(PerfCase):
    """Within one host, and by the kernel; between hosts there is tests/programs/perf_between_hosts_test.py."""

    BRIEF = ["--repeats", "2", "--time", "50ms", "--warmup", "20ms", "--check", "--json", "-"]
    ENDLESS = ["--time", "3600s", "--warmup", "1ms", "--json", "-"]

    def setUp(self):
        super().setUp()
        self.address, daemon = self.daemon("stackd")
        self.sockets = {"MERCURY_PRELOAD_SOCKET": f"{daemon.socket}.tcp"}

    def serve(self):
        server = self.start("serve", "--bind", self.address, "--port", PORT, **self.sockets)
        self.assertEqual(server.stdout.readline(), f"listening at port {PORT}; SIGINT or SIGTERM ends it\n")
        return server

    def measure(self, command, *options, how=BRIEF):
        return self.start(command, self.address, "--port", PORT, *how, *options, **self.sockets)

    def report(self, command, *options):
        return json.loads(self.finish(self.measure(command, *options))[0])

    def test_streams_in_each_direction(self):
        self.serve()
        for over in ("mercury", "kernel"):
            for direction, connections in (("up", 3), ("down", 3), ("both", 6)):
                with self.subTest(over=over, direction=direction):
                    report = self.report("stream", "--over", over, "--direction", direction, "--flows", 3, "--sizes", "1000,64KiB")
                    for row in report["rows"]:
                        self.check_rates(row, 2)
                        self.assertEqual(len(row["flows_gbit_per_s"]), connections)
                        self.assertGreaterEqual(row["checked_bytes"], row["operations"] * row["bytes"])
                        self.assertEqual(row["up_gbit_per_s"]["median"] is None, direction == "down")
                        self.assertEqual(row["down_gbit_per_s"]["median"] is None, direction == "up")
                        self.assertEqual(row["within_host"], over == "mercury")
                        self.assertGreater(row["cost"]["peer_cpu_ns"]["per_operation"], 0)
                        # One of two programs of a host has nothing to do with it, and may have done nothing meanwhile.
                        daemons = row["cost"]["peer_daemon_cpu_ns"]["per_operation"]
                        self.assertEqual(daemons is None, over == "kernel")
                        self.assertGreaterEqual(daemons or 0, 0)

    def test_messages_and_their_times(self):
        self.serve()
        for over in ("mercury", "kernel"):
            report = self.report("messages", "--over", over, "--sizes", "1,70000", "--reply-size", 5, "--flows", 2)
            for row in report["rows"]:
                self.check_rates(row, 2)
                self.check_latencies(row["latency_us"], row["operations"])
                self.assertEqual(row["reply_bytes"], 5)
                self.assertGreaterEqual(row["checked_bytes"], row["operations"] * (row["bytes"] + 5))

    def test_many_to_one(self):
        self.serve()
        clients = [self.measure("stream") for _ in range(4)]
        for client in clients:
            self.check_rates(json.loads(self.finish(client)[0])["rows"][0], 2)

    def test_many_to_one_by_one_client(self):
        self.serve()
        row = self.report("stream", self.address, "--direction", "down", "--flows", 2)["rows"][0]  # the same host again: two of them
        self.check_rates(row, 2)
        self.assertEqual(len(row["flows_gbit_per_s"]), 4)
        self.assertIsNone(row["up_gbit_per_s"]["median"])
        self.assertAlmostEqual(row["down_gbit_per_s"]["median"], row["gbit_per_s"]["median"], places=9)

    def test_people_get_a_table(self):
        self.serve()
        program = self.start("stream", self.address, "--port", PORT, "--repeats", 1, "--time", "50ms", **self.sockets)
        out, _ = self.finish(program)
        self.assertRegex(out, r"streams up, 1 connection with [\d.]+, over Mercury; 1 repeat\n\n +size .*\n +128KiB +\d+ ")
        self.assertRegex(out, r"\n +size +program us +ns/byte +daemon us +ns/byte +peer us +ns/byte +its daemon +ns/byte +cycles/op +/byte\n")
        self.assertIn("within this host: such connections are pairs of the kernel's", out)

    def test_a_server_that_is_killed_leaves_an_error_and_no_figure(self):
        for direction in ("up", "down", "both"):
            server = self.serve()
            client = self.measure("stream", "--direction", direction, how=self.ENDLESS)
            # A thread for each connection: it carries one by then.
            self.assertTrue(wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/task")) > 1))
            server.kill()
            server.wait(LIMIT_S)
            out, errors = self.finish(client, status=1)
            self.assertRegex(errors, "mercury-perf: 128KiB: not measured: .*(connection|Connection)")
            self.assertNotIn("gbit_per_s", json.loads(out)["rows"][0])

    def test_a_server_that_is_told_to_end_ends(self):
        server = self.serve()
        client = self.measure("stream", how=self.ENDLESS)
        self.assertTrue(wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/task")) > 1))
        server.terminate()
        self.finish(server)
        self.finish(client, status=1)

    def test_a_client_that_is_told_to_end_says_what_it_has(self):
        self.serve()
        client = self.measure("stream", "--sizes", "1KiB,2KiB", how=self.ENDLESS)
        self.assertTrue(wait_until(lambda: len(os.listdir(f"/proc/{client.pid}/task")) > 1))
        client.send_signal(signal.SIGINT)
        out, errors = self.finish(client, status=130)
        self.assertIn("not measured: interrupted by SIGINT", errors)
        self.assertTrue(json.loads(out)["interrupted"])

    def test_who_listens_there_and_is_no_mercury_perf_is_refused(self):
        with socket.create_server((self.address, PORT)) as other:
            client = self.measure("stream", "--over", "kernel")
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                self.assertIn("the peer is no mercury-perf", self.finish(client, status=1)[1])

    def test_what_strangers_send_is_refused(self):
        server = self.serve()
        good = {"mercury_perf": 1, "do": "sink", "bytes": 1, "reply_bytes": 1, "time_ns": 0, "compare": False}
        for sent, said in ((b"GET / HTTP/1.1\r\n", "no mercury-perf"), (b"x" * 5000, "no mercury-perf"), (b"{}\n", "another version"),
                           (good | {"mercury_perf": 2}, "another version"), (good | {"do": "eat"}, "do"), (good | {"do": 1}, "do"),
                           (good | {"bytes": 1 << 40}, "bytes"), (good | {"bytes": 0}, "bytes"), (good | {"bytes": -1}, "bytes"),
                           (good | {"reply_bytes": "1"}, "reply_bytes"), (good | {"time_ns": 1 << 62}, "time_ns"),
                           (good | {"compare": 1}, "compare")):
            with self.subTest(sent=sent), socket.create_connection((self.address, PORT), LIMIT_S) as stranger:
                stranger.sendall(sent if isinstance(sent, bytes) else json.dumps(sent).encode() + b"\n")
                self.assertIn(said, json.loads(stranger.makefile().readline())["error"])
        for blocks, said in ((b"x", "no mark before block 0"), (b"\x01\x00\x01?\x02", "wrong bytes in block 0"),
                             (b"\x02\x02", "behind the end")):
            with self.subTest(blocks=blocks), socket.create_connection((self.address, PORT), LIMIT_S) as stranger:
                answers = stranger.makefile()
                stranger.sendall(json.dumps(good | {"compare": True}).encode() + b"\n")
                self.assertEqual(json.loads(answers.readline()), {"ok": True})
                stranger.sendall(blocks)
                self.assertIn(said, json.loads(answers.readline())["error"])
        self.assertIsNone(server.poll())
        self.report("stream")

    def test_a_server_lends_no_more_memory_than_it_has(self):
        server = self.start("serve", "--bind", self.address, "--port", PORT, "--memory", "1MiB", **self.sockets)
        server.stdout.readline()
        _, errors = self.finish(self.measure("stream", "--sizes", "128KiB,2MiB"), status=1)
        self.assertIn("2MiB: not measured: ", errors)
        self.assertIn("the server says: mercury-perf serve --memory is 1MiB, and all connections would hold more", errors)

    def test_the_kernels_connection_is_not_measured_as_mercurys(self):
        server = self.start("serve", "--bind", self.address, "--port", PORT, MERCURY_PRELOAD_SOCKET="/no/such/socket")
        server.stdout.readline()
        _, errors = self.finish(self.measure("stream"), status=1)
        self.assertIn("went through the kernel, not over Mercury", errors)


class BadInput(PerfCase):
    def check(self, status, said, *arguments, **more):
        done = subprocess.run([PERF, *arguments], env=environment(**more), text=True, capture_output=True, timeout=LIMIT_S)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done)
        self.assertIn(said, done.stderr)

    def test_what_cannot_be_measured_is_refused_with_a_reason(self):
        tensors = ["tensors", "--rendezvous", "127.0.78.1:1"]
        self.check(2, "--rendezvous is missing", "tensors")
        for said, *options in (
                ("no whole number of elements of 4", "--sizes", "6"),
                ("no whole number of elements of 8", "--sizes", "4", "--dtype", "f64"),
                ("'8..4' ends before it begins", "--sizes", "8..4"),
                ("'0' is not a size", "--sizes", "0"),
                ("--in-flight", "--in-flight", "1001"),
                ("--model says what is exchanged, and so there is no --sizes", "--model", "vgg16", "--sizes", "4"),
                ("--model says what is exchanged, and so there is no --in-flight", "--model", "vgg16", "--in-flight", "4"),
                ("there is no --model", "--size-scale", "2"),
                ("--rank 1 is not below the 1 workers", "--rank", "1"),
                ("either --time or --rounds", "--time", "1s", "--rounds", "2"),
                ("'0s' is not from 1ns to 3600s", "--time", "0s"),
                ("a daemon listens where its configuration says", "--mode", "daemon", "--listen", "127.0.0.1"),
                ("the workers say what is exchanged, not --sizes", "--role", "server", "--sizes", "4")):
            with self.subTest(options=options):
                self.check(2, said, *tensors, *options)

    def test_a_malformed_launcher_environment_is_the_tensors_alone(self):
        malformed = {"MERCURY_ROLE": "worker", "MERCURY_WORKERS": "many", "MERCURY_RANK": "0"}
        self.check(2, "MERCURY_WORKERS", "tensors", "--rendezvous", "127.0.78.1:1", **malformed)
        self.check(1, "--bind: 'nowhere' is no address", "serve", "--bind", "nowhere", **malformed)

    def test_flows_that_cannot_be_are_refused_with_a_reason(self):
        self.check(2, "HOST", "stream")
        self.check(2, "--direction", "stream", "a", "--direction", "sideways")
        self.check(2, "--reply-size", "stream", "a", "--reply-size", "4")
        self.check(2, "1024 connections in all", "stream", "a", "b", "--flows", "512")
        self.check(2, "at most 67108864 bytes", "stream", "a", "--sizes", "1GiB")
        self.check(2, "17 connections of 64MiB would hold more than 1GiB", "stream", "a", "--sizes", "64MiB", "--flows", "17")
        self.check(2, "--memory", "serve", "--memory", "much")
        self.check(2, "at most 67108864 bytes", "messages", "a", "--reply-size", "1GiB")
        self.check(2, "'4,8' is not one size", "messages", "a", "--reply-size", "4,8")
        self.check(2, "--port", "serve", "--port", "65536")
        self.check(1, "--bind: 'nowhere' is no address", "serve", "--bind", "nowhere")
        self.check(1, "cannot listen at 192.0.2.1", "serve", "--bind", "192.0.2.1")  # of no host (RFC 5737)
        self.check(1, "cannot write /no/such/folder/f", "stream", "127.0.78.1", "--json", "/no/such/folder/f")

    def test_what_is_missing_is_named(self):
        tensors = ["tensors", "--rendezvous", "127.0.78.1:1"]
        self.check(1, "/no/such/trace", *tensors, "--model", "/no/such/trace")
        self.check(1, "cannot write /no/such/folder/f", *tensors, "--json", "/no/such/folder/f")
        self.check(1, "cannot attach", *tensors, "--mode", "daemon", MERCURY_SOCKET="/no/such/socket")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
