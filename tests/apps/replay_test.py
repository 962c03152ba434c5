#!/usr/bin/env python3
"""Runs mercury-replay as its users do: jobs over mercury-stackd on 127.0.0.0/8, no root needed, and
command lines that are wrong.

usage: replay_test.py REPLAY STACKD
"""
import functools
import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import ready  # noqa: E402

REPLAY, STACKD = sys.argv.pop(1), sys.argv.pop(1)
LIMIT_S = 60


def clean_environment(**more):
    """The environment without what a launcher around the tests may have set."""
    prefixes = ("MERCURY_", "DMLC_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **more}


class Terminal:
    """A terminal that shows a program's progress, and is read all the time."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.text, self.changed = "", threading.Condition()

    def watch(self):
        os.close(self.slave)  # the program has it
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            while data := os.read(self.master, 4096):
                with self.changed:
                    self.text += data.decode()
                    self.changed.notify_all()
        except OSError:  # the program has ended
            os.close(self.master)

    def wait_for(self, text):
        with self.changed:
            return self.changed.wait_for(lambda: text in self.text, LIMIT_S)


class Job:
    """One server and `workers` workers, each on a host with a daemon; all it started ends with it."""

    CONFIG = ""
    SECRET = "hush"

    def __init__(self, workers, options, secret=()):
        self.secret = dict(secret)  # of the workers' environment; "FILE" stands for the file's path
        self.workers, self.options = workers, options
        self.folder = tempfile.TemporaryDirectory(prefix="mercury-")
        # Test runs beside each other do not share addresses.
        self.network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        self.daemons, self.programs = [], []

    def __enter__(self):
        try:
            with open(self.path("secret"), "w") as file:
                file.write(f"{self.SECRET}\n")
            for host in range(1 + self.workers):
                self.start_daemon(host)
            for rank in range(self.workers):
                self.start_worker(rank)
        except BaseException:
            self.__exit__()
            raise
        return self

    def address(self, host):
        return f"{self.network}.{1 + host}"

    def start_daemon(self, host):
        with open(self.path(f"{host}.toml"), "w") as file:
            file.write(f"""
[port]
kind = "uring"
address = ["{self.address(host)}/8"]
udp_port = 17470
[attach]
socket = "{self.path(f'{host}.sock')}"
{self.CONFIG}
""")
        with open(self.path(f"{host}.log"), "w") as log:
            self.daemons.append(ready.start_ready(
                functools.partial(subprocess.Popen, [STACKD, "--config", file.name, "--set", "jobs.open=true"], stderr=log),
                self.path(f"{host}.notify"), LIMIT_S, clean_environment()))

    def start_worker(self, rank, stderr=subprocess.PIPE):
        # Rank and sizes as a launcher gives them, so that its environment is tested, too.
        environment = clean_environment(
            MERCURY_SOCKET=self.path(f"{1 + rank}.sock"), MERCURY_ROLE="worker",
            MERCURY_RANK=str(rank), MERCURY_WORKERS=str(self.workers), MERCURY_SERVERS="1",
            MERCURY_RENDEZVOUS=f"{self.address(0)}:17470", MERCURY_JOB="replay-test",
            **{name: value.replace("FILE", self.path("secret")) for name, value in self.secret.items()})
        self.programs.append(subprocess.Popen(
            [REPLAY, *self.engine(rank), "--report", self.path(f"report-{rank}"), "--timeline",
             self.path(f"timeline-{rank}"), *self.options], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=stderr))

    def engine(self, _):
        return ["--mode", "daemon"]

    def __exit__(self, *_):
        for process in self.programs + self.daemons:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def json(self, name):
        with open(self.path(name)) as file:
            return json.load(file)

    def finish(self, test):
        """The workers' standard outputs."""
        results = [process.communicate(timeout=LIMIT_S) for process in self.programs]
        test.assertEqual([process.returncode for process in self.programs], [0] * self.workers,
                         results)
        return [out for out, _ in results]


class Replay(unittest.TestCase):
    def check_job(self, workers, options, iterations, dtype_bytes=4, tensors=161):
        with Job(workers, options) as job:
            outputs = job.finish(self)
            for rank, output in enumerate(outputs):
                report = job.json(f"report-{rank}")
                elements = report["bytes"] // dtype_bytes
                self.assertEqual(report["rank"], rank)
                self.assertEqual(report["verified_elements"], elements * iterations)
                self.assertEqual(report["mismatches"], 0)
                self.assertEqual(report["bytes_up"], report["bytes"] * iterations)
                self.assertEqual(report["bytes_down"], report["bytes"] * iterations)
                self.assertEqual(len(report["tensors"]), tensors)
                self.assertGreaterEqual(report["iteration_s"], report["compute_s"])
                for tensor in report["tensors"]:
                    self.assertGreater(tensor["pulled_s"], tensor["ready_s"], tensor)
                events = job.json(f"timeline-{rank}")["traceEvents"]
                exchanges = [event for event in events if event["cat"] == "exchange"]
                self.assertEqual(len(exchanges), tensors * iterations)
                self.assertIn("0 wrong", output)
            return outputs[0]

    def test_two_workers_exchange_a_small_resnet(self):
        table = self.check_job(2, ["--trace", "resnet50", "--size-scale", "200", "--time-scale", "0.01",
                                   "--iterations", "2", "--warmup", "1"], 3)
        self.assertIn("elements divided by 200, compute times multiplied by 0.01", table)

    def test_three_workers_in_bf16_first_in_first_out(self):
        table = self.check_job(3, ["--trace", "alexnet", "--size-scale", "1000", "--time-scale", "0.01",
                                   "--iterations", "3", "--warmup", "0", "--policy", "mercury-fifo",
                                   "--dtype", "bf16"], 3, dtype_bytes=2, tensors=16)
        self.assertIn("fifo", table)

    def test_the_secret_comes_from_the_environment_or_a_file(self):
        options = ["--trace", "alexnet", "--size-scale", "1000", "--time-scale", "0.01", "--iterations", "1", "--warmup", "0"]
        right = ({"MERCURY_SECRET": SecretJob.SECRET, "MERCURY_SECRET_FILE": ""},
                 {"MERCURY_SECRET_FILE": "FILE", "MERCURY_SECRET": ""})
        wrong = (({}, 1, "with this secret"), ({"MERCURY_SECRET": "other"}, 1, "with this secret"),
                 ({"MERCURY_SECRET_FILE": "FILE-not"}, 2, "MERCURY_SECRET_FILE: "),
                 ({"MERCURY_SECRET": SecretJob.SECRET, "MERCURY_SECRET_FILE": "FILE"}, 2, "MERCURY_SECRET is set as well"))
        for secret in right:
            with self.subTest(secret=secret), SecretJob(1, options, secret) as job:
                job.finish(self)
        for secret, status, why in wrong:
            with self.subTest(secret=secret), SecretJob(1, options, secret) as job:
                _, said = job.programs[0].communicate(timeout=LIMIT_S)
                self.assertEqual(job.programs[0].returncode, status, said)
                self.assertIn(why, said)

    def test_a_secret_that_cannot_be_read_is_said_without_a_launcher_too(self):
        for secret in ({"MERCURY_SECRET_FILE": "/nowhere"}, {"MERCURY_SECRET": "a", "MERCURY_SECRET_FILE": "/dev/null"}):
            done = subprocess.run([REPLAY, "--trace", "alexnet", "--rank", "0", "--mode", "embedded", "--rendezvous", "127.0.0.1:17479"],
                                  env=clean_environment(**secret), capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("MERCURY_SECRET_FILE: ", done.stderr)


class SecretJob(Job):
    CONFIG = f'[[job]]\nname = "replay-test"\nsecret = "{Job.SECRET}"'


def wait_until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class InterruptedJob(Job):
    """Two workers that never end by themselves, of which the first has a terminal. Whoever had to wait for a time-out
    would wait for longer than the tests do."""

    CONFIG = '[session]\npeer_timeout = "300s"\n[jobs]\nleave_grace = "300s"'

    def start_worker(self, rank, stderr=subprocess.PIPE):
        if rank != 0:
            super().start_worker(rank, stderr)
            return
        self.terminal = Terminal()
        super().start_worker(rank, self.terminal.slave)
        self.terminal.watch()


class EmbeddedJob(InterruptedJob):
    def engine(self, rank):
        return ["--mode", "embedded", "--listen", self.address(20 + rank)]


def catches(process, number):
    with open(f"/proc/{process.pid}/status") as status:
        mask = next(line for line in status if line.startswith("SigCgt:"))
    return int(mask.split()[1], 16) >> (number - 1) & 1


class Interrupted(unittest.TestCase):
    OPTIONS = ["--size-scale", "1000", "--iterations", "1000000", "--warmup", "1"]

    def job(self, trace, *options):
        return InterruptedJob(2, ["--trace", trace, *self.OPTIONS, *options])

    def check_report(self, job, first, number):
        output, _ = first.communicate(timeout=LIMIT_S)
        self.assertEqual(first.returncode, 128 + number, (output, job.terminal.text))
        self.assertTrue(job.terminal.wait_for(f"mercury-replay: interrupted by {number.name}: job replay-test loses this"),
                        job.terminal.text)
        report = job.json("report-0")
        self.assertTrue(report["interrupted"])
        done = len(report["iterations_s"])
        self.assertTrue(2 <= done < 1000000, done)
        self.assertGreater(report["iteration_s"], 0)
        self.assertEqual(report["mismatches"], 0)
        # The sums of all iterations but the last one, which may be on their way.
        self.assertGreaterEqual(report["verified_elements"], done * report["bytes"] // 4)
        self.assertIn(f"{done}, after 1 of warm-up; interrupted", output)
        self.assertGreater(len(job.json("timeline-0")["traceEvents"]), 0)

    def check_error(self, job, second):
        _, errors = second.communicate(timeout=LIMIT_S)
        self.assertEqual(second.returncode, 1, errors)
        reason = r"worker 0 of 2 .* left the job while tensor \d+ waits for it in round \d+"
        self.assertRegex(errors, reason)
        self.assertRegex(self.last_line(job, "0.log"), r"warning: job 'replay-test' failed \(peer_left\): " + reason)

    def last_line(self, job, log):
        """Of what the server's daemon says of the job, once it is over."""
        def lines():
            with open(job.path(log)) as file:
                return [line for line in file if "job 'replay-test' " in line]
        self.assertTrue(wait_until(lambda: len(lines()) > 1), lines())
        return lines()[-1]

    def test_a_worker_reports_what_it_did_and_its_peer_gets_an_error(self):
        with self.job("alexnet", "--time-scale", "0.001") as job:
            first, second = job.programs
            self.assertTrue(job.terminal.wait_for("iteration 4 of"), job.terminal.text)
            first.send_signal(signal.SIGINT)
            self.check_report(job, first, signal.SIGINT)
            self.check_error(job, second)

    def test_embedded_workers_are_told_as_soon(self):
        with EmbeddedJob(2, ["--trace", "alexnet", *self.OPTIONS, "--time-scale", "0.001"]) as job:
            first, second = job.programs
            self.assertTrue(job.terminal.wait_for("iteration 4 of"), job.terminal.text)
            first.send_signal(signal.SIGINT)
            self.check_report(job, first, signal.SIGINT)
            self.check_error(job, second)

    def test_a_worker_that_is_killed_is_named_at_once(self):
        with self.job("alexnet", "--time-scale", "0.001") as job:
            first, second = job.programs
            self.assertTrue(job.terminal.wait_for("iteration 4 of"), job.terminal.text)
            first.kill()
            _, errors = second.communicate(timeout=LIMIT_S)
            self.assertEqual(second.returncode, 1, errors)
            self.assertRegex(errors, r"worker 0 of 2 .*: its program ended")
            self.assertRegex(self.last_line(job, "0.log"), r"warning: job 'replay-test' failed .* its program ended")

    def test_a_worker_that_waits_for_a_peer_ends_when_it_is_told_to(self):
        with self.job("alexnet", "--time-scale", "0.001") as job:
            first, second = job.programs
            self.assertTrue(job.terminal.wait_for("iteration 4 of"), job.terminal.text)
            second.send_signal(signal.SIGSTOP)
            first.send_signal(signal.SIGTERM)
            self.check_report(job, first, signal.SIGTERM)
            second.send_signal(signal.SIGCONT)
            self.check_error(job, second)

    @unittest.skipIf("thread" in os.environ.get("SANITIZER", ""),
                     "the thread sanitizer keeps a signal from a thread that computes")
    def test_the_second_signal_ends_it_at_once(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
            trace.write("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n"
                        "0,an_hour,1000,f32,3600000000000,1,0\n")
            trace.flush()
            with self.job(trace.name) as job:
                first = job.programs[0]
                self.assertTrue(wait_until(lambda: catches(first, signal.SIGTERM)), job.terminal.text)
                first.send_signal(signal.SIGINT)
                self.assertTrue(wait_until(lambda: not catches(first, signal.SIGTERM)))
                self.assertIsNone(first.poll())
                first.send_signal(signal.SIGTERM)
                self.assertEqual(first.wait(LIMIT_S), -signal.SIGTERM)


class BadInput(unittest.TestCase):
    def check(self, status, text, *arguments, **environment):
        done = subprocess.run([REPLAY, *arguments], env=clean_environment(**environment), text=True,
                              capture_output=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, status, done)
        self.assertIn(text, done.stdout if status == 0 else done.stderr)

    def test_lists_the_shipped_traces(self):
        self.check(0, "vgg16\nvgg19\nalexnet\nresnet50\nmobilenet\nbert-base\n", "--list")

    def test_helps(self):
        self.check(0, "--time-scale", "--help")

    def test_refuses_a_wrong_command_line(self):
        self.check(2, "--trace is missing")
        self.check(2, "--rendezvous is missing", "--trace", "vgg16")
        self.check(2, "--size-scale", "--trace", "vgg16", "--size-scale", "0")
        self.check(2, "--no-such", "--no-such")

    def test_refuses_a_malformed_launcher_environment(self):
        self.check(2, "MERCURY_WORKERS", "--trace", "vgg16", "--rendezvous", "127.0.78.1:1",
                   MERCURY_ROLE="worker", MERCURY_WORKERS="many", MERCURY_RANK="0")

    def test_names_the_variable_that_is_missing_or_misspelt(self):
        self.check(2, "MERCURY_WORKERS", "--trace", "vgg16", "--rendezvous", "127.0.78.1:1", MERCURY_ROLE="worker")
        self.check(2, "did you mean $MERCURY_WORKERS?", "--trace", "vgg16", "--rendezvous", "127.0.78.1:1",
                   MERCURY_WOKERS="2")

    def test_refuses_a_trace_that_is_none(self):
        common = ["--rendezvous", "127.0.78.1:1", "--mode", "embedded"]
        self.check(1, "/no/such/trace", "--trace", "/no/such/trace", *common)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("layer_index,name\n1,x\n")
            file.flush()
            self.check(1, f"{file.name}:1: ", "--trace", file.name, *common)

    def test_names_a_file_that_it_cannot_write_before_it_runs(self):
        for option in ("--report", "--timeline"):
            self.check(1, "cannot write /no/such/folder/f", "--trace", "vgg16", "--rendezvous",
                       "127.0.78.1:1", "--mode", "embedded", option, "/no/such/folder/f")

    def test_says_that_no_daemon_answers(self):
        self.check(1, "cannot attach", "--trace", "vgg16", "--rendezvous", "127.0.78.1:1", "--mode",
                   "daemon", MERCURY_SOCKET="/no/such/socket")


if __name__ == "__main__":
    unittest.main()
