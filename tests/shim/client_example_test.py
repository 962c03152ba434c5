"""Compiles the programs of docs/api.md and README.md as a user would and runs them as real processes: embedded, on
127.0.0.0/8, started by hand, by mpirun, and as torchrun, Slurm and ps-lite start processes.

usage: client_example_test.py API_MD README_MD SUM_C HEADERS LIBRARY SANITIZERS
"""
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

API_MD, README_MD, SUM_C, HEADERS, LIBRARY, SANITIZERS = sys.argv[1:7]
LIMIT_S = 120  # of a process that hangs; none waits for it otherwise

FOREIGN = re.compile(r"(MERCURY|DMLC|OMPI|PMIX|SLURM|TORCHELASTIC)_|(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")


def environment(**settings):
    """This process's, without what a launcher or a user of Mercury set; no daemon is found."""
    inherited = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**inherited, **settings}


def example(fence, document):
    with open(document) as file:
        blocks = re.findall(rf"^```{fence}\n(.*?)^```$", file.read(), re.S | re.M)
    if len(blocks) != 1:
        raise AssertionError(f"{document} has {len(blocks)} blocks of {fence}, expected one")
    return blocks[0]


def compile_example(directory, name, fence, command, document):
    source = os.path.join(directory, name)
    with open(source, "w") as file:
        file.write(example(fence, document))
    if SANITIZERS != "none":
        command = [*command, f"-fsanitize={SANITIZERS}"]
    folder = os.path.dirname(LIBRARY)
    program = source.replace(".", "-")
    subprocess.run([*command, "-Wall", "-Wextra", "-Werror", "-I", HEADERS, source, LIBRARY,
                    f"-Wl,-rpath,{folder}", "-o", program], check=True)
    return program


def setUpModule():
    global PROGRAMS, FOLDER
    FOLDER = tempfile.TemporaryDirectory(prefix="mercury-")
    unittest.addModuleCleanup(FOLDER.cleanup)
    PROGRAMS = {"C": compile_example(FOLDER.name, "sum.c", "c", ["gcc", "-std=c11"], API_MD),
                "C++": compile_example(FOLDER.name, "sum.cc", "cpp", ["g++", "-std=c++20"], API_MD),
                "README": compile_example(FOLDER.name, "readme.c", "c", ["gcc", "-std=c11"], README_MD)}


def expected(workers):
    """What the workers print, sorted: round r's tensor is r times the sum of 1 to `workers`."""
    total = workers * (workers + 1) // 2
    return sorted(f"worker {w} round {r}: {r * total}" for w in range(workers) for r in range(1, 4))


class ExampleTest(unittest.TestCase):
    def setUp(self):
        # Test runs beside each other do not share an address.
        self.address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.rendezvous = f"{self.address}:7470"

    def start(self, program, settings):
        process = subprocess.Popen([program], env=environment(**settings), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_all(self, members):
        """members: (program, settings). What all print, sorted."""
        processes = [self.start(program, settings) for program, settings in members]
        lines = []
        for process, (_, settings) in zip(processes, members):
            out, errors = process.communicate(timeout=LIMIT_S)
            self.assertEqual((process.returncode, errors), (0, ""), settings)
            lines += out.splitlines()
        return sorted(lines)

    def members(self, workers, servers, program="C", **more):
        sizes = {"MERCURY_WORKERS": str(workers), "MERCURY_SERVERS": str(servers),
                 "MERCURY_RENDEZVOUS": self.rendezvous, **more}
        return [(PROGRAMS[program], {**sizes, "MERCURY_ROLE": role, "MERCURY_RANK": str(rank)})
                for role, count in (("worker", workers), ("server", servers)) for rank in range(count)]

    def failure(self, program, settings):
        """What a program says that cannot begin: it exits with what it holds, which is no leak."""
        checks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        process = self.start(program, {**settings, "ASAN_OPTIONS": checks})
        _, errors = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 1, errors)
        return errors

    def test_c(self):
        self.assertEqual(self.run_all(self.members(2, 2)), expected(2))

    def test_cpp(self):
        self.assertEqual(self.run_all(self.members(3, 1, "C++")), expected(3))

    def test_the_readmes_program(self):
        with open(SUM_C) as file:
            self.assertEqual(example("c", README_MD), file.read(), "README.md shows examples/sum/sum.c as it is")
        self.assertEqual(self.run_all(self.members(3, 2, "README")), [f"worker {rank}: 6" for rank in range(3)])

    def test_languages_and_orders_of_starting_mix(self):
        members = self.members(2, 2)
        members[1] = (PROGRAMS["C++"], members[1][1])
        members[3] = (PROGRAMS["C++"], members[3][1])
        self.assertEqual(self.run_all(members[::-1]), expected(2))

    def test_a_secret(self):
        self.assertEqual(self.run_all(self.members(1, 1, MERCURY_SECRET="open sesame")), expected(1))
        members = self.members(1, 1, MERCURY_SECRET="right")
        server = self.start(*members[1])
        worker = self.start(members[0][0], {**members[0][1], "MERCURY_SECRET": "wrong"})
        _, errors = worker.communicate(timeout=LIMIT_S)
        self.assertEqual(worker.returncode, 1)
        self.assertIn("open job: ", errors)
        self.assertIn("secret", errors)
        self.assertIsNone(server.poll(), "the server waits for one that knows it")

    def test_a_wrong_variable_is_named(self):
        settings = {**self.members(1, 1)[0][1], "MERCURY_RANK": "first"}
        for program in PROGRAMS.values():
            self.assertIn("MERCURY_RANK='first': must be -1 to 1023", self.failure(program, settings))

    def test_a_misspelt_variable_is_named(self):
        settings = {**self.members(1, 1)[0][1], "MERCURY_SERVER": "1"}
        for program in PROGRAMS.values():
            self.assertIn("$MERCURY_SERVER is not a variable of Mercury's; did you mean $MERCURY_SERVERS?",
                          self.failure(program, settings))

    def test_a_missing_variable_is_named(self):
        settings = self.members(1, 1)[0][1]
        del settings["MERCURY_WORKERS"]
        for program in PROGRAMS.values():
            self.assertIn("no number of workers: set mercury_job_options.workers or MERCURY_WORKERS to 1 to 1024",
                          self.failure(program, settings))

    # --- launchers ---

    def mpirun(self, processes, **settings):
        # As docs/api.md has it, for a user and for root.
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        with open(API_MD) as file:
            documented = re.search(r"`MERCURY_SERVERS=2 (mpirun .*?) -n 4 ./sum`", file.read()).group(1).split()
        command = [*documented, *as_root, "-n", str(processes), PROGRAMS["C"]]
        return subprocess.run(command, env=environment(MERCURY_RENDEZVOUS=self.rendezvous, **settings),
                              capture_output=True, text=True, timeout=LIMIT_S)

    def test_mpirun_starts_workers_and_servers(self):
        done = self.mpirun(5, MERCURY_SERVERS="2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), expected(3))

    def test_mpirun_starts_workers_of_servers_elsewhere(self):
        servers = [self.start(*member) for member in self.members(2, 2)[2:]]
        done = self.mpirun(2, MERCURY_SERVERS="2", MERCURY_WORKERS="2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), expected(2))
        for server in servers:
            self.assertEqual(server.wait(timeout=LIMIT_S), 0)

    def test_mpirun_with_too_few_processes(self):
        done = self.mpirun(2, MERCURY_SERVERS="2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MERCURY_SERVERS=2: only 2 processes were launched (OMPI_COMM_WORLD_SIZE)", done.stderr)

    def test_as_torchrun_starts_processes(self):
        shared = {"WORLD_SIZE": "4", "MASTER_ADDR": self.address, "MASTER_PORT": "29500",
                  "TORCHELASTIC_RUN_ID": "none", "MERCURY_SERVERS": "2"}
        members = [(PROGRAMS["C"], {**shared, "RANK": str(rank)}) for rank in range(4)]
        self.assertEqual(self.run_all(members), expected(2))

    def test_as_slurm_starts_tasks(self):
        shared = {"SLURM_NTASKS": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": self.address,
                  "MERCURY_SERVERS": "1"}
        members = [(PROGRAMS["C"], {**shared, "SLURM_PROCID": str(rank)}) for rank in range(3)]
        self.assertEqual(self.run_all(members), expected(2))

    def test_as_ps_lite_starts_processes(self):
        # Neither servers nor workers are told their ranks.
        shared = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", "DMLC_PS_ROOT_URI": self.address,
                  "DMLC_PS_ROOT_PORT": "9000"}
        roles = ["server", "server", "worker", "worker"]
        self.assertEqual(self.run_all([(PROGRAMS["C"], {**shared, "DMLC_ROLE": role}) for role in roles]),
                         expected(2))
        scheduler = self.start(PROGRAMS["C"], {**shared, "DMLC_ROLE": "scheduler"})
        self.assertIn("needs no scheduler", scheduler.communicate(timeout=LIMIT_S)[1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
