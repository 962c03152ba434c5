"""mercury-run: what it gives a program, and what it says of programs. No daemon, no root.

usage: run_test.py MERCURY_RUN PRELOAD C_COMPILER [unittest arguments]
"""
import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

RUN, PRELOAD = map(os.path.abspath, sys.argv[1:3])
COMPILER = sys.argv[3]
NAMES = {"socket", "listen", "accept", "accept4", "connect", "getsockname", "getpeername", "getsockopt", "setsockopt",
         "read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "send", "sendto", "sendmsg", "sendmmsg",
         "write", "writev", "sendfile", "sendfile64", "shutdown", "poll", "ppoll",
         "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
         "__read_chk", "__recv_chk", "__recvfrom_chk", "__poll_chk", "__ppoll_chk"}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MERCURY_", "LD_PRELOAD"))}


def run(*arguments, environment=CLEAN):
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, errors="replace", env=environment, timeout=60)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, text, mode=0o644):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def compiled(self, name, text, *flags):
        source = self.file(name + ".c", text)
        done = subprocess.run([COMPILER, source, "-o", self.path(name), *flags], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"{COMPILER} {' '.join(flags)}: {done.stderr.strip().splitlines()[-1]}")
        return self.path(name)


class Run(Files):
    def printed(self, *options, environment=CLEAN):
        done = run(*options, "/usr/bin/env", environment=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def test_a_program_has_the_preload_and_what_was_asked_for(self):
        rules = self.file("rules.toml", '[[rule]]\nthrough = "kernel"\nports = [22]\n')
        seen = self.printed("--rules", rules, "--socket", "/there.sock", "--on-error", "fail")
        self.assertEqual(seen["LD_PRELOAD"], PRELOAD)
        self.assertEqual(seen["MERCURY_PRELOAD_RULES"], "kernel port=22;mercury")
        self.assertEqual(seen["MERCURY_PRELOAD_SOCKET"], "/there.sock")
        self.assertEqual(seen["MERCURY_PRELOAD_ON_ERROR"], "fail")

    def test_what_was_not_asked_for_is_left_alone(self):
        self.assertEqual({name for name in self.printed() if name.startswith("MERCURY_")}, set())
        seen = self.printed(environment={**CLEAN, "MERCURY_PRELOAD_SOCKET": "/mine", "LD_PRELOAD": "/lib/other.so"})
        self.assertEqual(seen["MERCURY_PRELOAD_SOCKET"], "/mine")
        self.assertEqual(seen["LD_PRELOAD"], PRELOAD + ":/lib/other.so")

    def test_arguments_and_status_are_the_programs(self):
        done = run("sh", "-c", 'echo "$@"; exit 7', "sh", "--rules", "-x", "a b")
        self.assertEqual((done.returncode, done.stdout), (7, "--rules -x a b\n"))
        self.assertEqual(run("--", "echo", "--check").stdout, "--check\n")

    def test_wrong_usage_is_2_and_what_cannot_be_done_is_1(self):
        for arguments, said in (((), "expected a program"), (("--nonsense", "true"), "--nonsense"),
                                (("--on-error", "maybe", "true"), "--on-error"), (("--rules",), "--rules"),
                                (("--check", "true", "false"), "expected a program")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(said, done.stderr)
        done = run(self.path("nothing"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("No such file", done.stderr)
        bad = self.file("bad.toml", "\nrule = 1\n")
        done = run("--rules", bad, "true")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"mercury-run: {bad}:2: rule: expected", done.stderr)

    def test_a_program_that_will_not_have_it_is_said(self):
        program = self.compiled("alone", "int main(void) { return 3; }", "-static")
        done = run(program)
        self.assertEqual(done.returncode, 3)
        self.assertIn("warning: " + program + " is linked statically", done.stderr)
        self.assertEqual(run("true").stderr, "")


class Check(Files):
    def check(self, program, said=None):
        done = run("--check", program)
        if said is None:
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            self.assertIn("nothing is in the way", done.stdout)
        else:
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(said, done.stdout + done.stderr)

    def test_ordinary_programs_pass(self):
        self.check(self.compiled("plain", "int main(void) { return 0; }"))
        self.check("env")

    def test_static_programs(self):
        self.check(self.compiled("static", "int main(void) { return 0; }", "-static"), "is linked statically")
        self.check(self.compiled("pie", "int main(void) { return 0; }", "-static-pie"), "is linked statically")

    def test_programs_with_rights_of_their_own(self):
        program = self.compiled("plain", "int main(void) { return 0; }")
        os.chmod(program, 0o755 | stat.S_ISUID)
        self.check(program, "is setuid")
        os.chmod(program, 0o755 | stat.S_ISGID)
        self.check(program, "is setgid")
        os.chmod(program, 0o755)
        self.check(program)
        with contextlib.suppress(PermissionError, OSError):
            # VFS_CAP_REVISION_2, effective: cap_net_raw.
            os.setxattr(program, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
            self.check(program, "capabilities")

    def test_programs_of_go(self):
        note = ('__asm__(".section .note.go.buildid,\\"a\\",@note\\n.balign 4\\n.long 4, 4, 4\\n.asciz \\"Go\\\\0\\"\\n'
                '.asciz \\"abc\\"\\n.previous");\nint main(void) { return 0; }')
        self.check(self.compiled("go", note), "is of Go")

    def test_programs_of_io_uring(self):
        self.check(self.compiled("uring", "int io_uring_queue_init(void) { return 0; }\nint main(void) { return 0; }",
                                 "-rdynamic"), "uses io_uring")
        library = self.compiled("liburing.so.2", "int nothing(void) { return 0; }", "-shared", "-fPIC",
                                "-Wl,-soname,liburing.so.2")
        self.check(self.compiled("linked", "int nothing(void);\nint main(void) { return nothing(); }", library),
                   "uses io_uring")

    def test_programs_that_ask_the_kernel_for_io_uring(self):
        asks = ("#include <sys/syscall.h>\n#include <unistd.h>\n"
                "int main(void) { return syscall(SYS_io_uring_setup, 8, 0) > 0; }")
        asks_last = asks.replace("int main(void) { return", "__attribute__((noinline)) long ask(void) { return").replace(
            " > 0; }", "; }\nint main(void) { return ask() > 0; }")
        itself = ("int main(void) { long done; __asm__ volatile(\"syscall\" : \"=a\"(done) : "
                  "\"a\"(425), \"D\"(8), \"S\"(0) : \"rcx\", \"r11\", \"memory\"); return done > 0; }")
        for options in ((), ("-O2",)):
            self.check(self.compiled("asks", asks, *options), "seems to use io_uring")
            self.check(self.compiled("last", asks_last, *options), "seems to use io_uring")
            self.check(self.compiled("itself", itself, *options), "seems to use io_uring")
            # Another call, and the number where no call is made.
            self.check(self.compiled("other", asks.replace("SYS_io_uring_setup", "SYS_getpid"), *options))
            self.check(self.compiled("number", "int number(void) { return 425; }\nint main(void) { return number() != 425; }",
                                     *options))
        if os.path.exists("/usr/lib/x86_64-linux-gnu/liburing.a"):
            linked = "#include <liburing.h>\nint main(void) { struct io_uring ring; return io_uring_queue_init(8, &ring, 0); }"
            self.check(self.compiled("archive", linked, "-O2", "-l:liburing.a"), "seems to use io_uring")

    def test_programs_of_other_loaders_and_machines(self):
        program = self.compiled("musl", "int main(void) { return 0; }", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
        self.check(program, "is loaded by /lib/ld-musl-x86_64.so.1")
        other = self.compiled("other", "int main(void) { return 0; }")
        with open(other, "r+b") as file:
            file.seek(18)
            file.write(b"\x03\x00")  # EM_386
        self.check(other, "of another kind of machine")

    def test_scripts_are_as_their_interpreters(self):
        static = self.compiled("static", "int main(void) { return 0; }", "-static")
        self.check(self.file("good", "#!/bin/sh\n", 0o755))
        self.check(self.file("good-env", "#!/usr/bin/env -S sh -e\n", 0o755))
        self.check(self.file("bad", f"#!{static} -x\n", 0o755), f"{static} is linked statically")
        self.check(self.file("none", "#!/none/at-all\n", 0o755), "there is no /none/at-all")
        self.check(self.file("loop", f"#!{self.path('loop')}\n", 0o755), "a script of a script")

    def test_what_is_no_program(self):
        self.check(self.file("text", "hello\n"), "is no program")
        self.check(self.file("empty", ""), "is no program")
        self.check(self.path("nothing"), "there is no")
        self.check("no-program-has-this-name", "in PATH")
        self.check(self.folder, "is no program")

    def test_whatever_a_file_says_of_itself(self):
        program = self.compiled("plain", "int main(void) { return 0; }")
        with open(program, "rb") as file:
            whole = bytearray(file.read())
        for length in (5, 40, 63, 64, 100, 500, 700, 1000, 4096, len(whole) // 2):
            with open(self.path("cut"), "wb") as file:
                file.write(whole[:length])
            done = run("--check", self.path("cut"))
            self.assertIn(done.returncode, (0, 1), done.stderr)
        for at in range(16, 1024, 3):
            broken = bytearray(whole)
            broken[at:at + 3] = b"\xff" * 3
            with open(self.path("cut"), "wb") as file:
                file.write(broken)
            done = run("--check", self.path("cut"))
            self.assertIn(done.returncode, (0, 1), (at, done.stderr))


class Library(unittest.TestCase):
    def output(self, *command):
        if shutil.which(command[0]) is None:
            self.skipTest(f"no {command[0]} here")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_it_shows_what_it_stands_in_for_and_nothing_else(self):
        lines = self.output("nm", "-D", "--defined-only", PRELOAD).splitlines()
        self.assertEqual({line.split()[-1].partition("@")[0] for line in lines}, NAMES)

    def test_it_brings_no_library_but_the_c_librarys(self):
        needed = [line.split("[")[1].rstrip("]") for line in self.output("readelf", "-d", PRELOAD).splitlines()
                  if "NEEDED" in line]
        self.assertLessEqual({name.split(".")[0] for name in needed}, {"libc", "ld-linux-x86-64", "libm"}, needed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
