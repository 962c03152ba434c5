#!/usr/bin/env python3
"""Compiles each header alone, with the flags of its folder; those with extern "C" also as C. One that
a unit of the build includes before anything else has been compiled alone by that.
Usage: headers_test.py ROOT BUILD. The objects stay in BUILD/tests/lint, for ccache's sake."""
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
import unittest

import tree

ROOT = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.abspath(sys.argv.pop(1))
C_FLAGS = ['-std=c11', '-Wall', '-Wextra', '-Wpedantic', '-Wconversion', '-Werror']
# Flags that name the unit which they were written down for.
WITH_ARGUMENT = {'-o', '-c', '-MQ', '-MF', '-MT'}
WITHOUT_ARGUMENT = {'-MD', '-MMD'}


def units_of_build():
    """Each unit, named from the root, and its compile command."""
    for unit in tree.compile_commands(BUILD):
        source = os.path.relpath(os.path.join(unit['directory'], unit['file']), ROOT)
        if source.endswith('.cc') and not source.startswith('..'):
            yield source, unit['command']


def first_includes():
    """Headers that a unit of the build includes first."""
    found = set()
    for source, _ in units_of_build():
        first = re.search(r'^\s*#.*', tree.without_comments(tree.read(ROOT, source), True), re.M)
        own = first and re.fullmatch(r'\s*#include\s+"([^"]+)"\s*', first.group())
        if own:
            found.add(own.group(1))
    return found


def flags_by_folder():
    """Folder (from the root) to the longest compile command of its units, without their names."""
    found = {}
    for source, command in units_of_build():
        words = iter(shlex.split(command))
        command = []
        for word in words:
            if word in WITH_ARGUMENT:
                next(words)
            elif word not in WITHOUT_ARGUMENT:
                command.append(word)
        folder = os.path.dirname(source)
        if len(command) > len(found.get(folder, [])):
            found[folder] = command
    return found


def command_for(header, known):
    """The flags of the header's folder, or of the test of a folder that has headers alone, or of
    the folder above."""
    folder = os.path.dirname(header)
    while folder:
        for candidate in (folder, os.path.join('tests', folder)):
            if candidate in known:
                return known[candidate]
        folder = os.path.dirname(folder)
    return max(known.values(), key=len)


def compile_alone(header, command, suffix):
    unit = os.path.join(BUILD, 'tests/lint/headers', header.replace('/', '_') + suffix)
    with open(unit, 'w', encoding='utf-8') as file:
        file.write(f'#include "{header}"\n')
    done = subprocess.run([*command, '-O0', '-c', unit, '-o', unit + '.o'], cwd=BUILD, check=False,
                          capture_output=True, text=True)
    return f'{header}:\n{done.stderr}' if done.returncode != 0 else None


class Headers(unittest.TestCase):

    def test_each_compiles_alone(self):
        os.makedirs(os.path.join(BUILD, 'tests/lint/headers'), exist_ok=True)
        known = flags_by_folder()
        built = first_includes()
        c_compiler = shlex.split(os.environ.get('CC', 'cc'))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = []
            for header in tree.files(ROOT, ('.h',)):
                if header not in built:
                    jobs.append(pool.submit(compile_alone, header, command_for(header, known), '.cc'))
                if re.search(r'extern "C"', tree.without_comments(tree.read(ROOT, header), True)):
                    command = [*c_compiler, *C_FLAGS, f'-I{ROOT}']
                    jobs.append(pool.submit(compile_alone, header, command, '.c'))
            problems = [job.result() for job in jobs]
        problems = [problem for problem in problems if problem]
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))


if __name__ == '__main__':
    unittest.main()
