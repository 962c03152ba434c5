"""The exit statuses of all programs that are installed, as docs/operations.md has them: 0 done, 1 failed,
2 called in a wrong way.

usage: statuses_test.py STACKD CTL SIM REPLAY PERF TRACE [unittest arguments]
"""
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

STACKD, CTL, SIM, REPLAY, PERF, TRACE = map(os.path.abspath, sys.argv[1:7])
ADDRESS = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"

RUN = [SIM, "--policy", "mercury", "--bandwidth", "10Gbps", "--trace"]
MODEL = [SIM, "model", "--policy", "mercury", "--bandwidth", "10Gbps", "--trace"]
JOB = [REPLAY, "--workers", "1", "--servers", "1", "--rank", "0", "--rendezvous", f"{ADDRESS}:7470"]
WORK = [*JOB, "--trace", "alexnet"]
SUMS = [PERF, "tensors", "--rendezvous", f"{ADDRESS}:7470"]

# Whatever files, machine and peers are like, this cannot work: status 2, and what is wrong is named.
WRONG = (
    ([STACKD, "--nonsense"], "--nonsense"),
    ([STACKD, "nonsense"], "nonsense"),
    ([STACKD, "--config"], "--config"),
    ([STACKD, "--check", "--set", "port.mtu"], "expected SECTION.KEY=VALUE"),
    ([STACKD, "--check", "--set", "port.mut=9000"], "did you mean port.mtu?"),
    ([STACKD, "--check", "--set", "port.mtu=many"], "port.mtu: expected a number from 0 to 16384"),
    ([STACKD, "--check", "--set", "port.mtu=7"], "port.mtu: expected 0 or at least 1280"),
    ([STACKD, "--check", "--set", "port.address=[10.0.0.1/24,10.0.0.2/24]"], "one address of each family"),
    ([CTL], "status, jobs, stats, ping or doctor"),
    ([CTL, "ping"], "HOST"),
    ([CTL, "ping", "a", "--count", "0"], "--count"),
    ([CTL, "--nonsense"], "--nonsense"),
    ([CTL, "stauts"], "stauts"),
    ([CTL, "status", "more"], "more"),
    ([CTL, "jobs", "--nonsense"], "--nonsense"),
    ([CTL, "stats", "--socket"], "--socket"),
    ([CTL, "status", "--timeout", "0"], "--timeout"),
    ([CTL, "status", "--timeout", "soon"], "--timeout"),
    ([CTL, "doctor", "--config"], "--config"),
    ([CTL, "doctor", "more"], "more"),
    ([SIM, "--nonsense"], "--nonsense"),
    ([SIM, "nonsense"], "nonsense"),
    ([SIM], "--trace"),
    ([*RUN], "--trace"),
    ([*RUN, "alexnet", "--workers", "0"], "--workers"),
    ([*RUN, "alexnet", "--bandwidth", "fast"], "--bandwidth"),
    ([*RUN, "alexnet", "--policy", "nonsense"], "nonsense"),
    ([SIM, "model"], "--trace"),
    ([*MODEL, "alexnet", "--workers", "0"], "--workers"),
    ([*MODEL, "alexnet", "--policy", "nonsense"], "nonsense"),
    ([REPLAY], "--trace"),
    ([REPLAY, "--nonsense"], "--nonsense"),
    ([REPLAY, "nonsense"], "nonsense"),
    ([REPLAY, "--trace"], "--trace"),
    ([REPLAY, "--trace", "alexnet"], "--rendezvous"),
    ([*WORK, "--mode", "nonsense"], "--mode"),
    ([*WORK, "--iterations", "0"], "--iterations"),
    ([REPLAY, "--trace", "alexnet", "--workers", "1", "--servers", "1", "--rank", "1", "--rendezvous", ADDRESS], "--rank 1 is not below the 1 workers"),
    ([PERF], "which command"),
    ([PERF, "--nonsense"], "--nonsense"),
    ([PERF, "nonsense"], "nonsense"),
    ([PERF, "tensors"], "--rendezvous"),
    ([PERF, "stream"], "HOST"),
    ([PERF, "messages", "a", "--flows", "0"], "--flows"),
    ([PERF, "serve", "more"], "more"),
    ([*SUMS, "--sizes", "few"], "few"),
    ([*SUMS, "--sizes", "3"], "no whole number of elements"),
    ([TRACE], "FILE.py:FUNCTION"),
    ([TRACE, "model.py:make", "--nonsense"], "--nonsense"),
    ([TRACE, "model.py"], "FILE.py:FUNCTION"),
    ([TRACE, "model.py:make", "--iterations"], "--iterations"),
    ([TRACE, "model.py:make", "--iterations", "0"], "--iterations"),
    ([TRACE, "model.py:make", "--iterations", "few"], "--iterations"),
)

# Called as documented; a file, the machine or the work is what is wrong: status 1, which is said, too.
FAILING = (
    ([STACKD, "--config", "none.toml"], "none.toml"),
    ([STACKD, "--check", "--config", "none.toml"], "none.toml"),
    ([STACKD, "--check", "--config", "bad.toml"], "bad.toml:2: port.mtu: expected"),
    ([STACKD, "--config", "there.toml", "--set", "engine.cores=1000"], "engine.cores"),
    ([STACKD, "--config", "elsewhere.toml"], "192.0.2.1"),
    ([CTL, "--socket", "none.sock", "status"], "no daemon answers"),
    ([CTL, "--socket", "none.sock", "jobs"], "no daemon answers"),
    ([CTL, "--socket", "none.sock", "stats"], "no daemon answers"),
    ([CTL, "--socket", "none.sock", "ping", "127.0.0.1"], "no daemon answers"),
    ([CTL, "ping", "no.such.host.invalid"], "no host no.such.host.invalid"),
    ([CTL, "doctor", "--config", "none.toml"], "none.toml"),
    ([CTL, "doctor", "--config", "bad.toml"], "port.mtu"),
    ([CTL, "doctor", "--config", "elsewhere.toml"], "192.0.2.1"),
    ([*RUN, "none.csv"], "none.csv"),
    ([*RUN, "bad.toml"], "bad.toml:1"),
    ([*MODEL, "none.csv"], "none.csv"),
    ([*MODEL, "bad.toml"], "bad.toml:1"),
    ([*JOB, "--trace", "none.csv"], "none.csv"),
    ([*JOB, "--trace", "bad.toml"], "bad.toml:1"),
    ([*WORK, "--mode", "daemon"], "none.sock"),
    ([*WORK, "--report", "none/report.json"], "none/report.json"),
    ([*SUMS, "--mode", "daemon"], "none.sock"),
    ([*SUMS, "--model", "none.csv"], "none.csv"),
    ([*SUMS, "--json", "none/report.json"], "none/report.json"),
    ([PERF, "stream", ADDRESS], "cannot connect"),
    ([PERF, "messages", ADDRESS, "--json", "none/report.json"], "none/report.json"),
    ([PERF, "serve", "--bind", "192.0.2.1"], "192.0.2.1"),
    ([TRACE, "model.py:make"], ""),  # no such file, or no PyTorch
    ([TRACE, "model.py:make", "--output", "none/trace.csv"], "none/trace.csv"),
)

DONE = (
    [STACKD, "--print-config"], [STACKD, "--config", "there.toml", "--check"], [CTL, "doctor", "--config", "there.toml"],
    [*RUN, "small.csv", "--workers", "1", "--servers", "1"], [*MODEL, "small.csv"], [REPLAY, "--list"],
)


class StatusesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        uring = '[port]\nkind = "uring"\naddress = ["{}/8"]\n[attach]\nsocket = "stackd.sock"\n'
        for name, text in (("bad.toml", "[port]\nmtu = 7\n"), ("there.toml", uring.format(ADDRESS)),
                           ("elsewhere.toml", uring.format("192.0.2.1")),  # of no host (RFC 5737)
                           ("small.csv", "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n"
                                         "0,a,100,f32,1000,1000,0\n")):
            with open(f"{self.folder}/{name}", "w") as file:
                file.write(text)

    def run_program(self, command):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env=inherited | {"MERCURY_SOCKET": "none.sock"})

    def check(self, cases, status):
        for command, said in cases:
            with self.subTest(command=" ".join([os.path.basename(command[0]), *command[1:]])):
                done = self.run_program(command)
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                self.assertIn(said, done.stderr if status == 2 else done.stdout + done.stderr)

    def test_wrong_command_lines(self):
        self.check(WRONG, 2)

    def test_work_that_fails(self):
        self.check(FAILING, 1)

    def test_answers_of_another_shape(self):
        for question, answer in (("status", "[1]"), ("status", '{"engines": [1]}'), ("status", '{"pid": "one"}'),
                                 ("jobs", '{"jobs": [{"members": [1]}]}'), ("stats", '{"engines": [{"counters": ["many"]}]}'),
                                 ("stats", '"what?"'), ("ping", "[]"), ("ping", '{"error": "what?"}'), ("ping", '{"outcome": 1}'), ("jobs", "{"), ("stats", '{"error": "what?"}')):
            with self.subTest(answer=answer), socket.socket(socket.AF_UNIX) as daemon:
                path = tempfile.mktemp(dir=self.folder)
                daemon.bind(path + ".admin")
                daemon.listen(1)

                def serve():
                    connection, _ = daemon.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(answer.encode())

                server = threading.Thread(target=serve)
                server.start()
                done = self.run_program([CTL, "--socket", path, *([question, "127.0.0.1"] if question == "ping" else [question])])
                server.join()
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr, f"mercuryctl: the daemon at {path}.admin is of another version\n")

    def test_work_that_is_done(self):
        self.check([(command, "") for command in DONE], 0)

    def test_versions_and_help(self):
        versions = set()
        for command in ([STACKD], [CTL], [CTL, "status"], [CTL, "doctor"], [CTL, "ping"], [SIM], [SIM, "model"], [REPLAY], [PERF], [PERF, "tensors"], [PERF, "stream"], [PERF, "messages"], [PERF, "serve"], [TRACE]):
            with self.subTest(command=command):
                version = self.run_program([*command, "--version"])
                self.assertEqual((version.returncode, version.stderr), (0, ""))
                self.assertRegex(version.stdout, r"^\d+\.\d+\.\d+\n$")
                versions.add(version.stdout)
                usage = self.run_program([*command, "--help"])
                self.assertEqual((usage.returncode, usage.stderr), (0, ""))
                if len(command) == 1:
                    self.assertIn("Exit status: 0 done, 1 failed, 2 wrong usage.", re.sub(r"\s+", " ", usage.stdout))
        self.assertEqual(len(versions), 1, versions)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[7:]])
