#!/usr/bin/env python3
"""Every C and C++ source is as clang-format 14 lays it out. Usage: format_test.py ROOT"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tree

ROOT = os.path.abspath(sys.argv.pop(1))
PROGRAM = 'clang-format-14'  # of Debian 12: another version has another opinion
COLUMNS = 100
# Laid out by hand, within as many columns: what users read as a document.
BY_HAND = {
    'shim/client/mercurystack/mercury.h': 'the manual of the C API: its comments stand in columns',
    'examples/sum/sum.c': 'printed in the README, short enough for a screen',
}
COMPLAINT = re.compile(r'^(.*?:\d+):\d+: (?:error|warning): (.*?)(?: \[-W.*\])?$', re.M)


def complaints(paths, folder):
    """FILE:LINE of each place that would change."""
    done = subprocess.run([PROGRAM, '--dry-run', '-Werror', *paths], cwd=folder, check=False,
                          capture_output=True, text=True)
    found = sorted({f'{place}: {why}' for place, why in COMPLAINT.findall(done.stderr)})
    return found or ([f'{PROGRAM}: {done.stderr.strip()}'] if done.returncode else [])


def problems_by_hand(path, text):
    return [f'{path}:{number}: {len(line)} columns, more than {COLUMNS}'
            for number, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]


def switches(path, text):
    """Version 14 knows its switches only where nothing else stands in the comment."""
    return [f'{path}:{text.count(chr(10), 0, match.start()) + 1}: expected "// clang-format {match.group(1)}" '
            'alone; say why in the next line'
            for match in re.finditer(r'(?://|/\*) *clang-format (on|off)(?! *(?:\*/)?$)', text, re.M)]


class Rules(unittest.TestCase):

    def test_what_is_laid_out_otherwise_is_found(self):
        with tempfile.TemporaryDirectory(prefix='mercury-') as folder:
            shutil.copy(os.path.join(ROOT, '.clang-format'), folder)
            for text, count in (('int x = 1;\n', 0), ('int  x = 1;\n', 1), ('int* x;\nint *y;\n', 1),
                                ('// clang-format off\nint  x = 1;\n', 0)):
                with open(os.path.join(folder, 'x.cc'), 'w', encoding='utf-8') as file:
                    file.write(text)
                self.assertEqual(len(complaints(['x.cc'], folder)), count, text)
            self.assertNotEqual(complaints(['gone.cc'], folder), [])

    def test_a_switch_that_version_14_does_not_know_is_found(self):
        self.assertEqual(len(switches('x.h', '// clang-format off: why\nint  x;\n')), 1)
        self.assertEqual(switches('x.h', '  // clang-format off\n// (Why.)\n/* clang-format on */\n'), [])

    def test_long_lines_by_hand_are_found(self):
        self.assertEqual(problems_by_hand('x.h', 'a\n' + 'b' * 101), ['x.h:2: 101 columns, more than 100'])
        self.assertEqual(problems_by_hand('x.h', 'b' * 100), [])


class Tree(unittest.TestCase):

    def test_every_source_is_formatted(self):
        paths = [path for path in tree.files(ROOT) if path not in BY_HAND]
        workers = os.cpu_count()
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            parts = pool.map(lambda some: complaints(some, ROOT), [paths[i::workers] for i in range(workers)])
            found = sorted(line for part in parts for line in part)
        files = sorted({line.split(':')[0] for line in found if not line.startswith(PROGRAM)})
        self.assertEqual(found, [], '\n' + '\n'.join(found) + f'\nMend it with: {PROGRAM} -i ' + ' '.join(files))

    def test_what_is_laid_out_by_hand_keeps_to_the_columns(self):
        found = [line for path in BY_HAND for line in problems_by_hand(path, tree.read(ROOT, path))]
        self.assertEqual(found, [], '\n' + '\n'.join(found))

    def test_switches_are_such_as_it_knows(self):
        found = [line for path in tree.files(ROOT) for line in switches(path, tree.read(ROOT, path))]
        self.assertEqual(found, [], '\n' + '\n'.join(found))


if __name__ == '__main__':
    if not shutil.which(PROGRAM):
        sys.exit(f'format_test.py: no {PROGRAM}: tools/install-packages --tests installs it')
    unittest.main()
