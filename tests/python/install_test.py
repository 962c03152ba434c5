"""`pip install .` as docs/python.md says it: by a user who is not root, in a fresh environment, without a network, DPDK and clang.
Then examples/python/sum.py, from another folder. It compiles the client, which takes minutes.

usage: install_test.py SOURCES
"""
import glob
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCES = os.path.abspath(sys.argv.pop(1))
SKIPPED = 77  # Meson's status of a test that was skipped
USER = "nobody"
BUILD_S, PATIENCE_S = 1500, 100
# What is installed here for other builds, and not on the machine that the page speaks of.
OTHER_PROGRAMS = ("clang*", "llvm*", "ccache", "bpftool")
LIBRARIES = [*glob.glob("/usr/*/pkgconfig/*.pc"), *glob.glob("/usr/lib/*/pkgconfig/*.pc")]
OTHER_LIBRARIES = ("libdpdk*", "libbpf*", "libxdp*", "gtest*", "gmock*", "benchmark*", "spdlog*", "CLI11*", "tomlplusplus*")


def linked(folder, found, but):
    """A folder of links to what was found, but for some."""
    os.mkdir(folder)
    hidden = shutil.ignore_patterns(*but)
    for path in found:
        name = os.path.basename(path)
        if not hidden(folder, [name]) and not os.path.lexists(f"{folder}/{name}"):
            os.symlink(path, f"{folder}/{name}")
    return folder


def missing():
    """What is to be installed first."""
    tried = subprocess.run(["/usr/bin/python3", "-c", "import ensurepip, mesonpy, numpy"], capture_output=True, text=True)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else None


class Install(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        subprocess.run(f"git -c safe.directory='*' -C '{SOURCES}' ls-files -z | tar -c -C '{SOURCES}' --null -T - | tar -x -C '{self.folder}' "
                       "--one-top-level=checkout --no-same-owner", shell=True, check=True)
        self.environment = {
            "HOME": self.folder, "PATH": linked(f"{self.folder}/bin", glob.glob("/usr/bin/*"), OTHER_PROGRAMS), "PIP_NO_INDEX": "1",
            "PKG_CONFIG_LIBDIR": linked(f"{self.folder}/pkgconfig", LIBRARIES, OTHER_LIBRARIES)}
        self.user = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(USER)
            for path, _, _ in os.walk(self.folder):
                os.chown(path, entry.pw_uid, entry.pw_gid)
            self.user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def run_as_user(self, *command, cwd):
        done = subprocess.run(command, env=self.environment, cwd=cwd, **self.user, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=BUILD_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_the_sum_of_two_workers(self):
        self.run_as_user("/usr/bin/python3", "-m", "venv", "--system-site-packages", f"{self.folder}/env", cwd=self.folder)
        python = f"{self.folder}/env/bin/python"
        self.run_as_user(python, "-m", "pip", "install", "--no-build-isolation", ".", cwd=f"{self.folder}/checkout")
        said = self.run_as_user(python, "-c", "import mercurystack; print(mercurystack.__file__)", cwd=self.folder)
        self.assertTrue(said.startswith(f"{self.folder}/env/"), said)
        shutil.copy(f"{SOURCES}/examples/python/sum.py", self.folder)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            rendezvous = f"127.0.0.1:{probe.getsockname()[1]}"
        job = {**self.environment, "MERCURY_WORKERS": "2", "MERCURY_SERVERS": "1", "MERCURY_RENDEZVOUS": rendezvous}
        members = [subprocess.Popen([python, "sum.py"], cwd=self.folder, env={**job, "MERCURY_ROLE": role, "MERCURY_RANK": rank}, **self.user,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for role, rank in (("server", "0"), ("worker", "0"), ("worker", "1"))]
        try:
            said = [(*member.communicate(timeout=PATIENCE_S), member.returncode) for member in members]
        finally:
            for member in members:
                member.kill()
        sums = ["".join(f"worker {rank} round {number}: {3 * number}\n" for number in (1, 2, 3)) for rank in (0, 1)]
        self.assertEqual(said, [("", "", 0), (sums[0], "", 0), (sums[1], "", 0)])


if __name__ == "__main__":
    if lacks := missing():
        print(f"skipped: tools/install-packages --tests: {lacks}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], "-v"])
