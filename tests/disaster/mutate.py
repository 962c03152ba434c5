#!/usr/bin/env python3
"""Seeds bugs into mercury-disaster, one at a time, and shows that it finds each.

A mutation is a patch in mutations/: a first line that says what the bug does, then a diff against
the tree. Each is built into a program of its own, build/tests/disaster/mutants/mercury-disaster-NAME,
from the objects of the plain program and new ones of the files that the patch reaches. The sources
of the tree and the programs of the build stay as they are.

What no disaster shows a test shows, which the second line names by its program and one of its cases:

  Found by tests/transport/engine/moves_test MovesInTime.CopiesOfItsFramesFromElsewhereMoveNobody

Such a bug is built into mutants/moves_test-NAME, and is found if that case fails with it alone.

  mutate.py                      build all, run seeds until each is found, report
  mutate.py NAME...              the same for some
  mutate.py --rotate 3           three of them, others every day
  mutate.py --build-only NAME    for mercury-disaster --mutation NAME
  mutate.py --table              the source of mutations()
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATCHES = HERE / "mutations"
TARGET = "tests/disaster/mercury-disaster"


FOUND_BY = re.compile(r"^Found by (\S+) (\S+)$", re.M)


def names():
    return sorted(p.stem for p in PATCHES.glob("*.patch"))


def finder(name):
    """The program that shows the bug, and which of its cases does; None: seeds do."""
    found = FOUND_BY.search((PATCHES / f"{name}.patch").read_text().split("\n--- ")[0])
    return found.groups() if found else (TARGET, None)


def what(name):
    return (PATCHES / f"{name}.patch").read_text().splitlines()[0]


def stale(name):
    """Whether the tree has moved on from under the patch."""
    return subprocess.run(["patch", "--dry-run", "--quiet", "--fuzz=2", "-p1", "-d", str(ROOT),
                           "-i", str(PATCHES / f"{name}.patch")], capture_output=True).returncode


def print_table():
    print('#include "tests/disaster/mutations.h"\n')
    print("namespace mercury::disaster {")
    print("std::span<const Mutation> mutations() {")
    print("  static constexpr Mutation kTable[] = {")
    for name in names():
        if finder(name)[0] == TARGET:
            print(f"      {{{json.dumps(name)}, {json.dumps(what(name))}}},")
    print("  };\n  return kTable;\n}\n}  // namespace mercury::disaster")


class Mutant:
    def __init__(self, build, name):
        self.build = build
        self.name = name
        self.target, self.case = finder(name)
        self.folder = build / "tests/disaster/mutants" / name
        self.program = build / "tests/disaster/mutants" / f"{pathlib.Path(self.target).name}-{name}"
        patch = (PATCHES / f"{name}.patch").read_text()
        self.files = re.findall(r"^\+\+\+ b/(\S+)", patch, re.M)
        self.patch = patch

    def overlay(self):
        """Copies of the patched files alone, in folders of the same names."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in self.files:
            copy = self.folder / "src" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy)
        subprocess.run(["patch", "--quiet", "--fuzz=2", "-p1", "-d", str(self.folder / "src")],
                       input=self.patch, text=True, check=True)

    def make(self, commands, deps, compiler_prefix):
        self.overlay()
        reached = {object_ for object_, files in deps.items() if files & set(self.files)}
        replaced = {object_: str(self.folder / object_.replace("/", "_")) for object_ in sorted(reached)}

        def compile_one(object_):
            subprocess.run(self.compile_command(commands[object_], object_, replaced[object_], compiler_prefix),
                           cwd=self.build, check=True)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, replaced))
        subprocess.run(self.link_command(commands[self.target], replaced), cwd=self.build, check=True)

    def patched(self, source):
        name = os.path.relpath(source, ROOT)
        return str(self.folder / "src" / name) if name in self.files else str(source)

    def source(self, source):
        """What is compiled in its place. Where a target is one unit, that is a file of Meson's that includes all of them."""
        if not source.name.endswith("-unity0.cpp"):
            return self.patched(source)
        text = re.sub(r"#include<(.*)>", lambda line: f'#include "{self.patched(pathlib.Path(line.group(1)).resolve())}"',
                      source.read_text())
        copy = self.folder / source.name
        copy.write_text(text)
        return str(copy)

    def compile_command(self, command, object_, new, prefix):
        words = shlex.split(command)
        words[-1] = self.source((self.build / words[-1]).resolve())
        words = [{object_: str(new), f"{object_}.d": f"{new}.d"}.get(word, word) for word in words]
        # First, so that a patched header is found before the plain one. Dead code that a seeded bug
        # leaves behind is no error. Compiling takes longer than what better code would save.
        words.insert(1, f"-I{self.folder / 'src'}")
        if words[0] != "ccache":
            words = prefix + words
        else:
            words.insert(2, words.pop(1))
        # Nor does link-time optimisation see it: where it meets code of two levels, GCC 12 makes one
        # function of two that differ, and seeds fail of that.
        return words + ["-w", "-O1", "-g0", "-fno-lto"]

    def link_command(self, command, replaced):
        words = shlex.split(command)
        words[words.index(self.target)] = str(self.program)
        own = [replaced.get(word, word) for word in words]
        # New objects of libraries stand before the archives, which then have nothing to add; what an
        # archive's object is taken for all the same, as for a template that GoogleTest needs, the first counts.
        first = next(i for i, word in enumerate(own) if word.endswith(".o"))
        extra = [new for object_, new in replaced.items() if object_ not in words]
        return own[:first] + ["-Wl,--allow-multiple-definition"] + extra + own[first:]


def ninja(build, *arguments):
    return subprocess.run(["ninja", "-C", str(build), *arguments], check=True, text=True,
                          capture_output=True).stdout


def commands_of(build, target):
    """What makes each object of the program, and the program."""
    commands = {}
    for line in ninja(build, "-t", "commands", target).splitlines():
        words = shlex.split(line) if " -o " in line else []
        if "-o" in words:
            commands[words[words.index("-o") + 1]] = line
    return commands


def deps_of(build, objects):
    """From each object to the files of the tree that it is made of."""
    deps = {}
    for object_ in objects:
        lines = ninja(build, "-t", "deps", object_).splitlines()
        files = set()
        for line in lines:
            if line.startswith("    "):
                path = (build / line.strip()).resolve()
                if path.is_relative_to(ROOT):
                    files.add(str(path.relative_to(ROOT)))
        deps[object_] = files
    return deps


def run_case(mutant):
    """Whether the case that is to find the bug does, and passes without it."""
    def run(program):
        result = subprocess.run([str(program), f"--gtest_filter={mutant.case}"], text=True, capture_output=True)
        return result.returncode if "Running 1 test " in result.stdout else None

    begin = time.monotonic()
    if run(mutant.build / mutant.target) != 0:
        print(f"{mutant.name:28} not shown: {mutant.case} fails without it too, or is not there")
        return False
    found = run(mutant.program) not in (0, None)
    print(f"{mutant.name:28} {'found' if found else 'NOT FOUND'} by {mutant.case}, {time.monotonic() - begin:.1f} s")
    return found


def hunt(mutant, options):
    if mutant.case:
        return run_case(mutant)
    begin = time.monotonic()
    result = subprocess.run(
        [str(mutant.program), "--from", str(options.first), "--seeds", str(options.seeds),
         "--jobs", str(options.jobs), "--stop-after", "1", "--seconds-a-seed", "20"],
        text=True, capture_output=True)
    found = re.search(r"^seed (\d+) FAILS: (.*)$", result.stdout, re.M)
    took = time.monotonic() - begin
    plain = mutant.build / TARGET
    if found and subprocess.run([str(plain), "--seed", found.group(1)],
                                capture_output=True).returncode != 0:
        print(f"{mutant.name:28} not shown: seed {found.group(1)} fails without it too")
        found = None
    elif found:
        needed = int(found.group(1)) - options.first + 1
        print(f"{mutant.name:28} found after {needed:6} seeds, {took:5.1f} s: {found.group(2)}")
    else:
        print(f"{mutant.name:28} NOT FOUND in {options.seeds} seeds, {took:.1f} s")
    sys.stdout.flush()
    return bool(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--rotate", type=int, default=0, help="so many, others every day")
    parser.add_argument("--seeds", type=int, default=20000, help="at most, for each")
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per processor")
    options = parser.parse_args()
    if options.table:
        return print_table()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    chosen = options.names or names()
    if options.rotate:
        day = int(time.time() // 86400)
        chosen = [chosen[(day * options.rotate + i) % len(chosen)] for i in range(options.rotate)]
    gone = [name for name in names() if stale(name)]
    if gone:
        print(f"patches that do not fit the tree any more: {' '.join(gone)}")
        return 1
    build = options.build.resolve()
    mutants = [Mutant(build, name) for name in chosen]
    programs = sorted({mutant.target for mutant in mutants})
    ninja(build, *programs)
    commands = {program: commands_of(build, program) for program in programs}
    deps = {program: deps_of(build, [name for name in commands[program] if name.endswith(".o")])
            for program in programs}
    prefix = ["ccache"] if shutil.which("ccache") else []
    missed = []
    for mutant in mutants:
        mutant.make(commands[mutant.target], deps[mutant.target], prefix)
        if not options.build_only and not hunt(mutant, options):
            missed.append(mutant.name)
    if missed:
        print(f"{len(missed)} of {len(chosen)} not found: {' '.join(missed)}")
        return 1
    if not options.build_only:
        print(f"all {len(chosen)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
