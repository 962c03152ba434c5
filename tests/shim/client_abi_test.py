"""libmercurystack's C ABI against the committed one: a function that goes or changes, a field of a struct that
moves, an enumerator with another number. What is added is compatible, and is committed too, so that it
cannot be taken away unseen.

Types are those of the headers, compiled with functions that do nothing: the library itself has no
debug information of types. That it exports these functions and no others is asked of it.

usage: client_abi_test.py LIBRARY HEADER... [--rewrite]
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REWRITE = "--rewrite" in sys.argv
LIBRARY, *HEADERS = (os.path.abspath(path) for path in sys.argv[1:] if path != "--rewrite")
HERE = os.path.dirname(os.path.abspath(__file__))
PREVIOUS = sorted(glob.glob(os.path.join(HERE, "client_headers", "*.h.txt")))  # client_structs_test.py runs programs of theirs
REFERENCE = os.path.join(HERE, "client_abi.xml")
HOW = ("If it is meant, and the release may have it: python3 tests/shim/client_abi_test.py "
       + " ".join(os.path.relpath(path) for path in (LIBRARY, *HEADERS)) + " --rewrite")
PROTOTYPE = re.compile(r"^MERCURY_API\b([^;{}]*);", re.M)
ENUM = re.compile(r"^typedef enum \{[^}]*\} (\w+);", re.M)  # no function takes one: they travel as int32_t


def compiled(folder, name, source):
    """The library that the C source becomes."""
    with open(f"{folder}/{name}.c", "w") as file:
        file.write(source)
    subprocess.run(["cc", "-std=gnu11", "-g", "-w", "-shared", "-fPIC", f"{folder}/{name}.c", "-o", f"{folder}/{name}.so"],
                   check=True)
    return f"{folder}/{name}.so"


def with_bodies(header):
    takers = [f"void enumerators_of_{name}({name} it) {{}}\n" for name in ENUM.findall(header)]
    return PROTOTYPE.sub(r"MERCURY_API\1 { __builtin_unreachable(); }", header) + "".join(takers)


def functions(header):
    """The names of what a header declares."""
    found = [re.search(r"(\w+)\s*\(", prototype).group(1) for prototype in PROTOTYPE.findall(header)]
    if not found:
        raise AssertionError("a header without MERCURY_API")
    return found


def read(path):
    with open(path) as file:
        return file.read()


def dump(folder):
    """What the headers declare, as abidw writes it."""
    library = compiled(folder, "abi", "".join(with_bodies(read(header)) for header in HEADERS))
    subprocess.run(["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--type-id-style", "hash",
                    "--out-file", f"{folder}/abi.xml", library], check=True)
    # Which compiler, and which file it was: neither is the ABI's.
    return re.sub(r" (path|comp-dir-path|language|soname)='[^']*'", "", read(f"{folder}/abi.xml"))


def compare(old, new):
    """abidiff's status: of value 4 any change, of 8 an incompatible one; and what it says."""
    done = subprocess.run(["abidiff", "--no-show-locs", old, new], capture_output=True, text=True)
    if done.returncode & 3:
        raise AssertionError(f"abidiff could not compare: {done.stdout}{done.stderr}")
    return done.returncode, done.stdout


class AbiTest(unittest.TestCase):
    def setUp(self):
        if not shutil.which("abidiff"):
            self.skipTest("needs abidiff: apt-get install abigail-tools")
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_headers_have_the_committed_abi(self):
        with open(f"{self.folder}/now.xml", "w") as file:
            file.write(dump(self.folder))
        status, said = compare(REFERENCE, f"{self.folder}/now.xml")
        self.assertEqual(status, 0, f"\n{said}\n{HOW}")

    def test_the_library_exports_what_the_headers_declare(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", LIBRARY], check=True,
                                 capture_output=True, text=True).stdout
        exported = {line.split()[0].partition("@")[0] for line in symbols.splitlines() if " T " in line}
        declared = {name for header in HEADERS for name in functions(read(header))}
        self.assertEqual(exported, declared)

    def test_previous_headers_are_a_part_of_this_one(self):
        now = compiled(self.folder, "now", with_bodies(read(HEADERS[0])))
        for path in PREVIOUS:
            with self.subTest(os.path.basename(path)):
                status, said = compare(compiled(self.folder, "before", with_bodies(read(path))), now)
                self.assertEqual(status & 8, 0, said)
                self.assertRegex(said, r"Functions changes summary: 0 Removed, ")
        self.assertTrue(PREVIOUS)

    def test_a_change_is_seen(self):
        before = read(HEADERS[0])
        status, said = compare(compiled(self.folder, "before", with_bodies(before)),
                               compiled(self.folder, "same", with_bodies(before)))
        self.assertEqual(status, 0, said)
        for number, (old, new, incompatible) in enumerate([
                ("  int32_t kind;             /* mercury_operation_kind */\n  uint32_t tensor;\n",
                 "  uint32_t tensor;\n  int32_t kind;\n", False),
                ("MERCURY_DTYPE_I32 = 4,", "MERCURY_DTYPE_I32 = 9,", False),
                ("int mercury_poll(mercury_job *job,", "int mercury_poll(void *unused, mercury_job *job,", False),
                ("MERCURY_API int mercury_job_get_rank(const mercury_job *job);\n", "", True)]):
            self.assertIn(old, before)
            status, said = compare(f"{self.folder}/before.so",
                                   compiled(self.folder, f"after{number}", with_bodies(before.replace(old, new))))
            self.assertEqual(status & 4, 4, f"not seen: {new}")
            self.assertEqual(bool(status & 8), incompatible, said)


if __name__ == "__main__":
    if REWRITE:
        with tempfile.TemporaryDirectory(prefix="mercury-") as FOLDER:
            TEXT = dump(FOLDER)
        with open(REFERENCE, "w") as FILE:
            FILE.write(TEXT)
    else:
        unittest.main(argv=[sys.argv[0], "-v"])
