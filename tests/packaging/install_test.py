"""Installs into an empty folder, and uses what is there as a user does: the programs, a program of one's
own by pkg-config, and systemd's unit.

usage: install_test.py API_MD SUM_C BUILD SANITIZERS
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

API_MD, SUM_C, BUILD, SANITIZERS = sys.argv[1:5]
LIMIT_S = 120


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def installed_files():
    return [os.path.join(path, name) for path, _, names in os.walk(FOLDER) for name in names]


def sanitizers():
    return [] if SANITIZERS == "none" else [f"-fsanitize={SANITIZERS}"]


def daemon_variables():
    """Every variable that a daemon reads. Programs share its environment: none may seem misspelt to them."""
    variables, section = {}, None
    for line in run(f"{PREFIX}/bin/mercury-stackd", "--print-config").splitlines():
        if match := re.match(r"\[(\w+)\]$", line):
            section = match.group(1)
        elif match := re.match(r"(\w+) = ", line):
            variables[f"MERCURY_{section}_{match.group(1)}".upper()] = "x"
    assert "MERCURY_ATTACH_SOCKET" in variables and len(variables) > 30, variables
    return variables


# What mercury-hpc (an RPC library of HPC sites) puts below its prefix, version 2.
MERCURY_HPC = ("bin/hg_info", "bin/na_info", *(f"include/{name}.h" for name in (
    "mercury", "mercury_atomic", "mercury_atomic_queue", "mercury_bulk", "mercury_byteswap",
    "mercury_compiler_attributes", "mercury_config", "mercury_core", "mercury_core_header",
    "mercury_core_types", "mercury_event", "mercury_hash_string", "mercury_hash_table", "mercury_header",
    "mercury_hl", "mercury_hl_macros", "mercury_list", "mercury_log", "mercury_macros", "mercury_mem",
    "mercury_param", "mercury_poll", "mercury_proc", "mercury_proc_bulk", "mercury_proc_string",
    "mercury_queue", "mercury_request", "mercury_string_object", "mercury_thread",
    "mercury_thread_condition", "mercury_thread_mutex", "mercury_thread_pool", "mercury_thread_rwlock",
    "mercury_thread_spin", "mercury_time", "mercury_types", "mercury_util_config", "na", "na_types")),
    *(f"lib/lib{name}.so{end}" for name in ("mercury", "mercury_util", "na") for end in ("", ".2", ".4")),
    *(f"lib/pkgconfig/{name}.pc" for name in ("mercury", "mercury_util", "na")),
    *(f"{folder}/mercury/mercury-{name}.cmake" for folder in ("lib/cmake", "share/cmake")
      for name in ("config", "config-version", "targets")))

# As its mercury.h begins, and a little of what follows; its functions and types begin with HG_ and hg_.
MERCURY_HPC_HEADER = """\
#ifndef MERCURY_H
#define MERCURY_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct hg_class hg_class_t;
typedef enum hg_return { HG_SUCCESS, HG_PERMISSION, HG_NOENTRY } hg_return_t;
hg_return_t HG_Version_get(unsigned int *major, unsigned int *minor, unsigned int *patch);
hg_class_t *HG_Init(const char *na_info_string, uint8_t na_listen);
#ifdef __cplusplus
}
#endif
#endif
"""
MERCURY_HPC_SOURCE = """\
#include "mercury.h"
hg_return_t HG_Version_get(unsigned int *major, unsigned int *minor, unsigned int *patch) {
  *major = 2, *minor = 4, *patch = 1;
  return HG_SUCCESS;
}
"""
BOTH = """\
#include <mercury%s>
#include <mercury%s>
#include <stdio.h>
int main(void) {
  unsigned int major, minor, patch;
  hg_return_t got = HG_Version_get(&major, &minor, &patch);
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  printf("%%d %%u %%d %%s\\n", got == HG_SUCCESS, major, options.rank, mercury_version());
  return 0;
}
"""


def setUpModule():
    global FOLDER, PREFIX
    folder = tempfile.TemporaryDirectory(prefix="mercury-")
    unittest.addModuleCleanup(folder.cleanup)
    FOLDER = folder.name
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", FOLDER)
    (pc,) = (path for path in installed_files() if path.endswith("/mercurystack.pc"))
    os.environ["PKG_CONFIG_LIBDIR"] = os.path.dirname(pc)
    prefix = run("pkg-config", "--variable=prefix", "mercurystack").strip()
    os.environ["PKG_CONFIG_SYSROOT_DIR"] = FOLDER
    PREFIX = FOLDER + prefix
    os.environ["LD_LIBRARY_PATH"] = os.path.dirname(os.path.dirname(pc))


class InstallTest(unittest.TestCase):
    def test_what_is_installed_is_built_for_this_test(self):
        """run-tests builds no more of a sanitizer build than its tests say they need."""
        def introspect(what):
            return json.loads(run("meson", "introspect", BUILD, "--" + what))
        (this,) = (test for test in introspect("tests") if test["name"] == "install")
        installed = {target["id"] for target in introspect("targets") if target["installed"]}
        self.assertGreater(len(installed), 5)
        self.assertEqual(installed - set(this["depends"]), set())

    def test_programs_run_from_where_they_are(self):
        programs = ("mercury-stackd", "mercuryctl", "mercury-sim", "mercury-replay", "mercury-perf", "mercury-run")
        for program in programs:
            self.assertRegex(run(f"{PREFIX}/bin/{program}", "--version"), r"^\d+\.\d+\.\d+$")
        self.assertTrue(os.access(f"{PREFIX}/bin/mercury-trace", os.X_OK))
        # The models that come with them are found there, not in the sources.
        trace = f"{PREFIX}/share/mercurystack/traces/alexnet.csv"
        model = [f"{PREFIX}/bin/mercury-sim", "model", "--policy", "mercury", "--trace", "alexnet"]
        first = run(*model)
        with open(trace) as file:
            lines = file.readlines()
        with open(trace, "w") as file:
            file.writelines(lines[:-1])
        self.assertNotEqual(run(*model), first)

    def test_the_configuration_is_good_but_for_what_only_its_owner_knows(self):
        path = f"{PREFIX}/share/mercurystack/stackd.toml"
        stackd = f"{PREFIX}/bin/mercury-stackd"
        run(stackd, "--check", "--config", path, "--set", "port.interface=lo")

    def test_the_examples_of_the_documents(self):
        with open(API_MD) as file:
            text = file.read()
        with open(SUM_C) as file:
            short = file.read()
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        examples = (("sum.c", re.search(r"^```c\n(.*?)^```$", text, re.S | re.M).group(1), ["cc", "-std=c11"], "round 3: 3"),
                    ("sum.cc", re.search(r"^```cpp\n(.*?)^```$", text, re.S | re.M).group(1), ["c++", "-std=c++20"],
                     "round 3: 3"),
                    ("short.c", short, ["cc"], "1"))
        for name, example, compiler, last in examples:
            source = f"{FOLDER}/{name}"
            with open(source, "w") as file:
                file.write(example)
            program = source.replace(".", "-")
            flags = run("pkg-config", "--cflags", "--libs", "mercurystack").split()
            self.assertIn(f"-I{PREFIX}/include", flags)
            run(*compiler, *sanitizers(), "-Wall", "-Wextra", "-Werror", source, *flags, "-o", program)
            settings = {**inherited, **daemon_variables(), "MERCURY_WORKERS": "1", "MERCURY_SERVERS": "1",
                        "MERCURY_RANK": "0", "MERCURY_RENDEZVOUS": f"{address}:7470"}
            server = subprocess.Popen([program], env={**settings, "MERCURY_ROLE": "server"})
            try:
                printed = run(program, env={**settings, "MERCURY_ROLE": "worker"})
                self.assertRegex(printed.splitlines()[-1], f"^worker 0:? {last}$")
                self.assertEqual(server.wait(LIMIT_S), 0)
            finally:
                server.kill()
                server.wait()

    def test_nothing_is_where_mercury_hpc_puts_something(self):
        ours = [os.path.relpath(path, PREFIX) for path in installed_files()]
        self.assertIn("include/mercurystack/mercury.h", ours)
        self.assertEqual(set(ours) & set(MERCURY_HPC), set())
        # Libraries and packages are looked for by name in several folders: one may not hide the other.
        def by_name(paths):
            return {os.path.basename(path) for path in paths if re.search(r"\.(pc|so)\b", path)}
        self.assertEqual(by_name(ours) & by_name(MERCURY_HPC), set())
        # Nor may a folder of both be either's alone.
        self.assertEqual([path for path in ours if path.startswith(("share/mercury/", "lib/mercury/"))], [])

    def test_one_program_uses_both_libraries(self):
        other = f"{FOLDER}/mercury-hpc"
        os.mkdir(other)
        for name, text in (("mercury.h", MERCURY_HPC_HEADER), ("mercury.c", MERCURY_HPC_SOURCE)):
            with open(f"{other}/{name}", "w") as file:
                file.write(text)
        run("cc", "-shared", "-fPIC", f"{other}/mercury.c", "-o", f"{other}/libmercury.so")
        flags = run("pkg-config", "--cflags", "--libs", "mercurystack").split()
        theirs = [f"-I{other}", f"-L{other}", "-lmercury", f"-Wl,-rpath,{other}"]
        for order in ((".h", "stack/mercury.h"), ("stack/mercury.h", ".h")):
            for compiler, suffix in (("cc", "c"), ("c++", "cc")):
                source = f"{FOLDER}/both.{suffix}"
                with open(source, "w") as file:
                    file.write(BOTH % order)
                run(compiler, *sanitizers(), "-Wall", "-Wextra", "-Werror", source, *theirs, *flags,
                    "-o", f"{FOLDER}/both")
                self.assertRegex(run(f"{FOLDER}/both"), r"^1 2 -1 \d+\.\d+\.\d+\n$")

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
