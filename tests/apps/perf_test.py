"""mercury-perf as its users run it: real daemons on 127.0.0.0/8, or none, and no root. What it prints is
parsed, sums are compared, and nothing is said of how fast it was.

usage: perf_test.py PERF STACKD CTL
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402

PERF, STACKD, CTL = sys.argv[1:4]
LIMIT_S = 60
SHORT = ["--repeats", "2", "--rounds", "20", "--warmup", "1ms"]
PERCENTILES = ["p50", "p90", "p99", "p99.9", "max"]


def environment(**more):
    prefixes = ("MERCURY_", "DMLC_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **more}


def wait_until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


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

        def exchanging():  # the tensor by which workers agree, and the first size's
            jobs = json.loads(self.server.ctl("jobs", "--json").stdout)["jobs"]
            return [job["tensors"] for job in jobs] == [2]

        self.assertTrue(wait_until(exchanging))
        second.kill()
        out, errors = self.finish(first, status=1)
        self.assertRegex(errors, "mercury-perf: 64B: not measured: worker 1 of 2 .*: its program ended")
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

    def test_what_is_missing_is_named(self):
        tensors = ["tensors", "--rendezvous", "127.0.78.1:1"]
        self.check(1, "/no/such/trace", *tensors, "--model", "/no/such/trace")
        self.check(1, "cannot write /no/such/folder/f", *tensors, "--json", "/no/such/folder/f")
        self.check(1, "cannot attach", *tensors, "--mode", "daemon", MERCURY_SOCKET="/no/such/socket")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
