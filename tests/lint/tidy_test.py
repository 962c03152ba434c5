#!/usr/bin/env python3
"""clang-tidy 14 has nothing to say against the product's sources. Usage: tidy_test.py ROOT BUILD

.clang-tidy says which checks are on. The files of a target are looked at as one, so that the headers they
share are read once: a third of the time. What that makes of them lies in BUILD/tests/lint/tidy.
"""
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import tree

ROOT = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.abspath(sys.argv.pop(1))
CONFIG = os.path.join(ROOT, '.clang-tidy')
PROGRAM = 'clang-tidy-14'  # of Debian 12: another version has other checks
PRODUCT = ('transport/', 'scheduler/', 'aggregator/', 'shim/', 'apps/')
COMPLAINT = re.compile(r'^([^\s:]+):(\d+):(\d+): (warning|error): (.*) \[([\w.,-]+)\]$', re.M)
# Flags that say which code it is; warnings and optimisation are the compiler's own affair.
KEPT = re.compile(r'-(?:[DIU]|m|std=|isystem|pthread|fPIC|fPIE).*')
# A product of constants cannot overflow unseen: the compiler refuses that.
WIDENING = 'bugprone-implicit-widening-of-multiplication-result'
CONSTANT = r"(?:\d[\d']*[uUlL]*|(?:\w+::)*k[A-Z]\w*)"
PRODUCT_OF_CONSTANTS = re.compile(rf'{CONSTANT}(?: \* {CONSTANT})+(?!\s*[*.(\[]|\w)')


def targets(units):
    """(target, flags, sources) for all that is compiled of one target in the same way."""
    found = {}
    for unit in units:
        source = os.path.relpath(os.path.join(unit['directory'], unit['file']), ROOT)
        if source.startswith(PRODUCT) and source.endswith('.cc'):
            flags = tuple(word for word in shlex.split(unit['command']) if KEPT.fullmatch(word))
            found.setdefault((unit['output'].split('.p/')[0], flags), []).append(source)
    return [(target, flags, sorted(sources)) for (target, flags), sources in found.items()]


def is_of_constants(line, column, check):
    return check == WIDENING and PRODUCT_OF_CONSTANTS.match(line[column - 1:]) is not None


def complaints(text, folder, line_of):
    """PATH:LINE: WHAT [CHECK] of each complaint that `text` has; `folder` is where the program ran, and
    line_of(path, number) is a line of a source."""
    found = set()
    for path, number, column, kind, what, check in COMPLAINT.findall(text):
        path = os.path.relpath(os.path.join(folder, path), ROOT)
        if kind == 'error' or not is_of_constants(line_of(path, int(number)), int(column), check):
            found.add(f'{path}:{number}: {what} [{check}]')
    return found


def line_of(path, number):
    return tree.read(ROOT, path).splitlines()[number - 1]


def look(target, flags, sources):
    """What clang-tidy says about sources of a target."""
    unit = os.path.join(BUILD, 'tests/lint/tidy', f'{re.sub(r"[^0-9A-Za-z]", "_", target)}.cc')
    with open(unit, 'w', encoding='utf-8') as file:
        file.writelines(f'#include "{os.path.join(ROOT, source)}"\n' for source in sources)
    done = subprocess.run([PROGRAM, '--quiet', f'--config-file={CONFIG}', unit, '--', *flags], cwd=BUILD,
                          check=False, capture_output=True, text=True)
    found = complaints(done.stdout, BUILD, line_of)
    if done.returncode and not found:
        found.add(f'{target}: {PROGRAM} ended with status {done.returncode}: {done.stderr[-2000:]}')
    return found


class Rules(unittest.TestCase):

    def test_flags_that_say_which_code_it_is_are_kept(self):
        unit = {'directory': BUILD, 'file': f'{ROOT}/apps/x.cc', 'output': 'apps/libx.a.p/x.cc.o',
                'command': 'ccache c++ -Iapps -I.. -isystem/usr/x -DV="1" -Wall -Werror -O3 -flto=auto -std=c++20 -mavx2 '
                           '-g1 -MD -MQ x.o -MF x.d -o x.o -c ../apps/x.cc'}
        flags = ('-Iapps', '-I..', '-isystem/usr/x', '-DV=1', '-std=c++20', '-mavx2')
        others = [{**unit, 'file': f'{ROOT}/apps/a.cc'}, {**unit, 'file': f'{ROOT}/tests/x.cc'},
                  {**unit, 'file': f'{ROOT}/apps/x.c'}]
        self.assertEqual(targets([unit, *others]), [('apps/libx.a', flags, ['apps/a.cc', 'apps/x.cc'])])

    def found_in(self, text):
        """What is said about a header with this text."""
        with tempfile.TemporaryDirectory(prefix='mercury-', dir=BUILD) as folder:
            with open(f'{folder}/x.h', 'w', encoding='utf-8') as file:
                file.write(text)
            with open(f'{folder}/x.cc', 'w', encoding='utf-8') as file:
                file.write('#include "x.h"\n')
            done = subprocess.run([PROGRAM, '--quiet', f'--config-file={CONFIG}', f'{folder}/x.cc', '--'], cwd=folder,
                                  check=False, capture_output=True, text=True)
            return list(complaints(done.stdout, folder, lambda path, number: text.splitlines()[number - 1]))

    def test_what_is_wrong_is_found_and_where(self):
        found = self.found_in('int size(int* list) {\n  return sizeof(list) / sizeof(*list);\n}\n')
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], r'x\.h:2: .*bugprone-sizeof-expression')

    def test_a_function_has_60_lines_at_most(self):
        for lines in (60, 61):
            found = self.found_in('inline int f(int x) {\n' + '  x += 1;\n' * (lines - 3) + '  return x;\n}\n')
            self.assertEqual([line.split(' [')[1] for line in found],
                             ['readability-function-size]'] if lines > 60 else [], f'{lines} lines')

    def test_products_of_constants_are_the_compiler_s(self):
        for line, constant in (('64 * 1024;', True), ("kMost * 1'000 + x", True), ('wire::kA * kB * 2U)', True),
                               ('2 * count;', False), ('count * 2;', False), ('2 * kMost * count;', False),
                               ('kMost * kSizes[i];', False)):
            self.assertEqual(is_of_constants('x = ' + line, 5, WIDENING), constant, line)
        self.assertFalse(is_of_constants('64 * 1024', 1, 'bugprone-misplaced-widening-cast'))

    def test_every_check_that_is_off_has_its_reason(self):
        text = tree.read(ROOT, '.clang-tidy')
        off = re.findall(r'^  (-[\w-]+)', text, re.M)
        self.assertGreater(len(off), 0)
        self.assertEqual(sorted(off), sorted(re.findall(r'^#   (-[\w-]+)  +\w', text, re.M)))


class Tree(unittest.TestCase):

    def test_nothing_is_found(self):
        os.makedirs(os.path.join(BUILD, 'tests/lint/tidy'), exist_ok=True)
        units = sorted(targets(tree.compile_commands(BUILD)), key=lambda unit: -len(unit[2]))
        self.assertGreater(sum(len(sources) for _, _, sources in units), 100)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = sorted(set().union(*pool.map(lambda unit: look(*unit), units)))
        self.assertEqual(found, [], '\n' + '\n'.join(found) + '\nMend it; where it is right as it is: '
                         '// NOLINT(CHECK): why')


if __name__ == '__main__':
    if not shutil.which(PROGRAM):
        sys.exit(f'tidy_test.py: no {PROGRAM}: tools/install-packages --tests installs it')
    unittest.main()
