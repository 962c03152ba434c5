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
STRUCT = re.compile(r"^typedef struct \{([^}]*)\} (\w+);", re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
ENUM = re.compile(r"^typedef enum \{([^}]*)\} (\w+);", re.M)  # no function takes one: they travel as int32_t

# What is there, what would be instead, and whether programs would not find it any more as it was.
CHANGES = [
    ("  int32_t kind;             /* mercury_operation_kind */\n  uint32_t tensor;\n",
     "  uint32_t tensor;\n  int32_t kind;\n", True),
    ("MERCURY_DTYPE_I32 = 4,", "MERCURY_DTYPE_I32 = 9,", True),
    ("int mercury_poll(mercury_job *job,", "int mercury_poll(void *unused, mercury_job *job,", True),
    ("MERCURY_API int mercury_job_get_rank(const mercury_job *job);\n", "", True),
    ("  uint64_t user_data;", "  uint64_t new_field;\n  uint64_t user_data;", True)]
ADDITIONS = [
    ("} mercury_completion;", "  uint64_t new_field;\n} mercury_completion;", False),
    ("MERCURY_DTYPE_I32 = 4,", "MERCURY_DTYPE_I32 = 4, MERCURY_DTYPE_NEW = 99,", False),
    ("MERCURY_API int mercury_job_get_rank(const mercury_job *job);\n",
     "MERCURY_API int mercury_job_get_rank(const mercury_job *job);\nMERCURY_API int mercury_new(void);\n", False)]


def compiled(folder, name, source):
    """The library that the C source becomes."""
    with open(f"{folder}/{name}.c", "w") as file:
        file.write(source)
    subprocess.run(["cc", "-std=gnu11", "-g", "-w", "-shared", "-fPIC", f"{folder}/{name}.c", "-o", f"{folder}/{name}.so"],
                   check=True)
    return f"{folder}/{name}.so"


def with_bodies(header):
    takers = [f"void enumerators_of_{name}({name} it) {{}}\n" for _, name in ENUM.findall(header)]
    return PROTOTYPE.sub(r"MERCURY_API\1 { __builtin_unreachable(); }", header) + "".join(takers)


def functions(header):
    """The names of what a header declares."""
    found = [re.search(r"(\w+)\s*\(", prototype).group(1) for prototype in PROTOTYPE.findall(header)]
    if not found:
        raise AssertionError("a header without MERCURY_API")
    return found


def parts(text, separator):
    """Fields or enumerators."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def named(enumerator):
    return enumerator.partition("=")[0].strip()


def named_field(field):
    return re.search(r"(\w+)(\[\w+\])*$", field).group(1)


def offsets(folder, before, header):
    """Where the fields that an earlier header has lie by this one."""
    lines = "".join(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));\n'
                    for fields, name in STRUCT.findall(COMMENT.sub("", before))
                    for field in map(named_field, parts(fields, ";")))
    with open(f"{folder}/offsets.c", "w") as file:
        file.write(f"#include <stdio.h>\n{header}\nint main(void) {{ {lines} }}\n")
    subprocess.run(["cc", "-w", f"{folder}/offsets.c", "-o", f"{folder}/offsets"], check=True)
    return subprocess.run([f"{folder}/offsets"], check=True, capture_output=True, text=True).stdout


def known_to(before, now):
    """Of the header `now` what `before` has: its functions, fields and enumerators."""
    before, now = COMMENT.sub("", before), COMMENT.sub("", now)
    known = set(functions(before))
    structs = {name: set(map(named_field, parts(fields, ";"))) for fields, name in STRUCT.findall(before)}
    enumerators = {name: set(map(named, parts(body, ","))) for body, name in ENUM.findall(before)}

    def cut_struct(found):
        fields, name = found.groups()
        kept = [one for one in parts(fields, ";") if named_field(one) in structs.get(name, ())]
        return "typedef struct { " + "; ".join(kept) + f"; }} {name};" if kept else ""

    def cut_enum(found):
        body, name = found.groups()
        kept = [one for one in parts(body, ",") if named(one) in enumerators.get(name, ())]
        return "typedef enum { " + ", ".join(kept) + f" }} {name};" if kept else ""

    now = ENUM.sub(cut_enum, STRUCT.sub(cut_struct, now))
    return PROTOTYPE.sub(lambda found: found[0] if functions(found[0])[0] in known else "", now)


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

    def test_programs_find_the_library_and_its_functions_by_the_first_number_of_the_version(self):
        major = re.search(r"MERCURY_VERSION_MAJOR (\d+)", read(HEADERS[0])).group(1)
        said = subprocess.run(["objdump", "-p", LIBRARY], check=True, capture_output=True, text=True).stdout
        self.assertEqual(re.findall(r"SONAME +(\S+)", said), [f"libmercurystack.so.{major}"])
        symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", LIBRARY], check=True, capture_output=True, text=True).stdout
        versions = dict(re.findall(r" FUNC +GLOBAL +DEFAULT +\d+ (\w+)@@(\w+)", symbols))
        self.assertEqual(versions, {name: f"MERCURYSTACK_{major}" for header in HEADERS for name in functions(read(header))})

    def change_since(self, before, now):
        """What programs of an earlier header would not find any more as it was, and where it was; "" if nothing."""
        status, said = compare(compiled(self.folder, "before", with_bodies(COMMENT.sub("", before))),
                               compiled(self.folder, "now", with_bodies(known_to(before, now))))
        if status:
            return said
        old, new = (offsets(self.folder, before, header) for header in (before, now))
        return "" if old == new else f"{old}\nbecame\n{new}"

    def test_previous_headers_are_a_part_of_this_one(self):
        now = read(HEADERS[0])
        for path in PREVIOUS:
            with self.subTest(os.path.basename(path)):
                self.assertEqual(self.change_since(read(path), now), "")
        self.assertIn(re.search(r'mercury_version\(void\); +/\* "(\d+\.\d+)', now).group(1) + ".0.h.txt",
                      map(os.path.basename, PREVIOUS), "each release's header is kept")

    def test_an_addition_is_none_to_previous_programs_and_a_change_is(self):
        now = read(HEADERS[0])
        for old, new, is_change in CHANGES + ADDITIONS:
            for path in PREVIOUS:
                with self.subTest(os.path.basename(path), new=new):
                    self.assertIn(old, now)
                    said = self.change_since(read(path), now.replace(old, new))
                    self.assertEqual(bool(said), is_change, said)

    def test_a_change_is_seen(self):
        before = read(HEADERS[0])
        status, said = compare(compiled(self.folder, "before", with_bodies(before)),
                               compiled(self.folder, "same", with_bodies(before)))
        self.assertEqual(status, 0, said)
        for number, (old, new, _) in enumerate(CHANGES):
            self.assertIn(old, before)
            status, said = compare(f"{self.folder}/before.so",
                                   compiled(self.folder, f"after{number}", with_bodies(before.replace(old, new))))
            self.assertEqual(status & 4, 4, f"not seen: {new}")


if __name__ == "__main__":
    if REWRITE:
        with tempfile.TemporaryDirectory(prefix="mercury-") as FOLDER:
            TEXT = dump(FOLDER)
        with open(REFERENCE, "w") as FILE:
            FILE.write(TEXT)
    else:
        unittest.main(argv=[sys.argv[0], "-v"])
