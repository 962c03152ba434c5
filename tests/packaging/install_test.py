"""Installs into an empty folder, and uses what is there as a user does: the programs, a program of one's
own by pkg-config, and systemd's unit.

usage: install_test.py API_MD BUILD SANITIZERS
"""
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

API_MD, BUILD, SANITIZERS = sys.argv[1:4]
LIMIT_S = 120


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def setUpModule():
    global FOLDER, PREFIX
    folder = tempfile.TemporaryDirectory(prefix="mercury-")
    unittest.addModuleCleanup(folder.cleanup)
    FOLDER = folder.name
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", FOLDER)
    (pc,) = (os.path.join(path, "mercury.pc") for path, _, names in os.walk(FOLDER) if "mercury.pc" in names)
    os.environ["PKG_CONFIG_LIBDIR"] = os.path.dirname(pc)
    prefix = run("pkg-config", "--variable=prefix", "mercury").strip()
    os.environ["PKG_CONFIG_SYSROOT_DIR"] = FOLDER
    PREFIX = FOLDER + prefix
    os.environ["LD_LIBRARY_PATH"] = os.path.dirname(os.path.dirname(pc))


class InstallTest(unittest.TestCase):
    def test_programs_run_from_where_they_are(self):
        programs = ("mercury-stackd", "mercuryctl", "mercury-sim", "mercury-replay")
        for program in programs:
            self.assertRegex(run(f"{PREFIX}/bin/{program}", "--version"), r"^\d+\.\d+\.\d+$")
        self.assertTrue(os.access(f"{PREFIX}/bin/mercury-trace", os.X_OK))
        # The models that come with them are found there, not in the sources.
        trace = f"{PREFIX}/share/mercury/traces/alexnet.csv"
        model = [f"{PREFIX}/bin/mercury-sim", "model", "--policy", "mercury", "--trace", "alexnet"]
        first = run(*model)
        with open(trace) as file:
            lines = file.readlines()
        with open(trace, "w") as file:
            file.writelines(lines[:-1])
        self.assertNotEqual(run(*model), first)

    def test_the_configuration_is_good_but_for_what_only_its_owner_knows(self):
        path = f"{PREFIX}/share/mercury/stackd.toml"
        stackd = f"{PREFIX}/bin/mercury-stackd"
        run(stackd, "--check", "--config", path, "--set", "port.interface=lo")

    def test_the_examples_of_the_api(self):
        with open(API_MD) as file:
            text = file.read()
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        for fence, name, compiler in (("c", "sum.c", ["cc", "-std=c11"]), ("cpp", "sum.cc", ["c++", "-std=c++20"])):
            source = f"{FOLDER}/{name}"
            with open(source, "w") as file:
                file.write(re.search(rf"^```{fence}\n(.*?)^```$", text, re.S | re.M).group(1))
            sanitizers = [] if SANITIZERS == "none" else [f"-fsanitize={SANITIZERS}"]
            program = source.replace(".", "-")
            flags = run("pkg-config", "--cflags", "--libs", "mercury").split()
            self.assertIn(f"-I{PREFIX}/include", flags)
            run(*compiler, *sanitizers, "-Wall", "-Wextra", "-Werror", source, *flags, "-o", program)
            settings = {**inherited, "MERCURY_WORKERS": "1", "MERCURY_SERVERS": "1", "MERCURY_RANK": "0",
                        "MERCURY_RENDEZVOUS": f"{address}:7470"}
            server = subprocess.Popen([program], env={**settings, "MERCURY_ROLE": "server"})
            try:
                printed = run(program, env={**settings, "MERCURY_ROLE": "worker"})
                self.assertEqual(printed.splitlines()[-1], "worker 0 round 3: 3")
                self.assertEqual(server.wait(LIMIT_S), 0)
            finally:
                server.kill()
                server.wait()

    def test_systemd_can_read_the_unit(self):
        with open(f"{PREFIX}/lib/systemd/system/mercury-stackd.service") as file:
            unit = file.read()
        self.assertIn("Type=notify", unit)
        self.assertIn(f"ExecStart={PREFIX[len(FOLDER):]}/bin/mercury-stackd ", unit)
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd here")
        path = f"{FOLDER}/mercury-stackd.service"
        with open(path, "w") as file:  # the program, where it is now
            file.write(unit.replace(PREFIX[len(FOLDER):] + "/bin/", PREFIX + "/bin/"))
        self.assertNotIn("mercury-stackd", run("systemd-analyze", "verify", path))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
