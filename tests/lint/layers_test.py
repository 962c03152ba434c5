#!/usr/bin/env python3
"""Holds every #include against the tables of docs/architecture.md. Usage: layers_test.py ROOT"""
import fnmatch
import os
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
TABLES = 'docs/architecture.md'
INSTALLED = 'shim/client/mercurystack/'


def rows(text, heading):
    """Cells of the Markdown table whose first column is called `heading`."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith('|') and line.split('|')[1].strip() == heading:
            break
    else:
        raise ValueError(f'{TABLES} has no table that begins with "{heading}"')
    next(lines)  # the rule below the heading
    found = []
    for line in lines:
        if not line.startswith('|'):
            break
        found.append([cell.strip() for cell in line.strip('|').split('|')])
    return found


# At a file's first level, where a name of the language C++ stands for one type of the tree.
DECLARED = re.compile(r'^(?:class|struct)\s+(\w+);', re.M)
DEFINED = re.compile(r'^(?:class|struct)\s+(?:\[\[[^\]]*\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^;{]*)?\{', re.M)


class Layers:
    """Who may include whom; `allowed` maps a folder to folders and files, or to None: anything."""

    def __init__(self, text):
        self.allowed = {}
        self.system = [(row[0].strip('`<>'), re.findall(r'`([^`]+)`', row[1]))
                       for row in rows(text, 'header')]
        table = rows(text, 'folder')
        for first, _, last in table:
            above = list(self.allowed)
            for folder in re.findall(r'`([^`]+)`', first):
                self.allowed[folder] = self._resolve(last, folder, above)

    def _resolve(self, cell, folder, above):
        if cell == 'what they need':
            return None
        if cell == 'all above':
            return set(above)
        found = set()
        for word in filter(None, (word.strip() for word in cell.split(','))):
            name = word.strip('`')
            parts = name.split('/', 1)
            matches = [known for known in above if known.split('/')[-1] == parts[0]]
            if len(matches) != 1:
                raise ValueError(f'{TABLES}: {folder} may include "{name}", which is not one of '
                                 f'the folders above it')
            found.add('/'.join(matches + parts[1:]))
        return found

    def folder_of(self, path):
        """The row that `path` belongs to, or None."""
        folder = os.path.dirname(path)
        while folder and folder not in self.allowed:
            folder = os.path.dirname(folder)
        return folder or None

    def problem(self, path, bracket, included, exists):
        """What is wrong with one #include of `path`, or None."""
        if bracket == '<':
            for pattern, folders in self.system:
                if fnmatch.fnmatch(included, pattern) and not any(
                        path.startswith(folder + '/') for folder in folders):
                    return f'<{included}> is for {" and ".join(folders)} alone'
            return None
        if path.startswith(INSTALLED) and exists(INSTALLED + included):
            return None  # what is installed lies side by side
        if not exists(included):
            return f'"{included}" is not a path from the root (or use <> for other packages)'
        owner, target = self.folder_of(path), self.folder_of(included)
        allowed = self.allowed[owner]
        if allowed is None or owner == target:
            return None
        if target is None or not {target, included} & allowed:
            return f'{owner} may not include "{included}"'
        return None


def exists(name):
    """Whether the tree has this file, or its folder's meson.build says that it makes it."""
    if os.path.isfile(os.path.join(ROOT, name)):
        return True
    folder, base = os.path.split(name)
    recipe = os.path.join(folder, 'meson.build')
    return os.path.isfile(os.path.join(ROOT, recipe)) and f"'{base}'" in tree.read(ROOT, recipe)


def undue_declarations(layers, code):
    """Forward declarations of what their folder may not include; `code` is by path, without comments."""
    defined = {}
    for path, text in code.items():
        for name in DEFINED.findall(text):
            defined.setdefault(name, []).append(path)
    problems = []
    for path, text in code.items():
        for name in DECLARED.findall(text):
            homes = defined.get(name, [])
            if homes and all(layers.problem(path, '"', home, lambda _: True) for home in homes):
                problems.append(f'{path} declares {name}, of {homes[0]}, which {layers.folder_of(path)} may not include')
    return problems


# What the transport's code does not speak of, but in tables that are one for all floors.
GRADIENTS = re.compile(r'\w*(?:[Tt]ensor|[Gg]radient|[Ww]orker|[Cc]hunk|[Aa]ggregat|\brank\b)\w*')
ONE_FOR_ALL = {'transport/base/counters.h', 'transport/base/counters.cc', 'transport/base/result.h', 'transport/base/result.cc',
               'transport/base/environment.h', 'transport/wire/hello.h', 'transport/wire/hello.cc'}
DPDK_WORDS = {'nb_mem_chunks'}


def gradient_words(text):
    return sorted(set(GRADIENTS.findall(tree.without_comments(text))) - DPDK_WORDS)


TABLE = '''
| folder | what it is | may include |
|---|---|---|
| `a/base` | x | |
| `a/port` | x | base |
| `b` | x | base, `port/port.h` |
| `c` | x | all above |
| `tests`, `apps` | x | what they need |

| header | may appear in |
|---|---|
| `<rte_*.h>` | `a/port/dpdk`, `tests` |
'''


class Rules(unittest.TestCase):
    layers = Layers(TABLE)

    def check(self, path, included, bracket='"', exists=True):
        return self.layers.problem(path, bracket, included, lambda _: exists)

    def test_only_the_edges_of_the_table_are_legal(self):
        self.assertIsNone(self.check('a/port/x.cc', 'a/base/y.h'))
        self.assertIsNone(self.check('a/port/dpdk/x.cc', 'a/port/y.h'))
        self.assertIsNone(self.check('b/x.cc', 'a/port/port.h'))
        self.assertIsNone(self.check('c/x.cc', 'b/y.h'))
        self.assertIsNone(self.check('apps/x.cc', 'c/y.h'))
        self.assertIn('may not', self.check('a/base/x.cc', 'a/port/y.h'))
        self.assertIn('may not', self.check('b/x.cc', 'a/port/other.h'))
        self.assertIn('may not', self.check('b/x.cc', 'a/port/dpdk/port.h'))
        self.assertIn('may not', self.check('c/x.cc', 'apps/y.h'))
        self.assertIn('may not', self.check('c/x.cc', 'nowhere/y.h'))

    def test_includes_are_from_the_root(self):
        self.assertIn('from the root', self.check('c/x.cc', 'y.h', exists=False))

    def test_some_packages_are_for_some_folders(self):
        self.assertIsNone(self.check('a/port/dpdk/x.cc', 'rte_eal.h', '<'))
        self.assertIsNone(self.check('a/base/x.cc', 'vector', '<'))
        self.assertIn('alone', self.check('a/port/x.cc', 'rte_eal.h', '<'))

    def test_a_row_that_names_nothing_above_it_is_an_error(self):
        with self.assertRaises(ValueError):
            Layers(TABLE.replace('| base |', '| wire |'))

    def test_words_of_gradients_are_found_in_code(self):
        self.assertEqual(gradient_words('int next_chunk; // a tensor\nrank = frank; nb_mem_chunks; "worker"'),
                         ['next_chunk', 'rank'])

    def test_a_declaration_is_as_an_include(self):
        code = {'a/base/up.h': 'class Door;', 'b/door.h': 'class Door final : public Hole {', 'c/x.cc': 'struct Door;',
                'b/y.h': 'class Door;  class Local;', 'a/port/port.h': 'class rte;'}
        self.assertEqual(undue_declarations(self.layers, code),
                         ['a/base/up.h declares Door, of b/door.h, which a/base may not include'])

    def test_comments_and_strings_are_not_includes(self):
        text = '// #include "a.h"\n/*\n#include "b.h"\n*/\n#include "c.h"  // why\n'
        self.assertEqual(tree.includes(text), [(5, '"', 'c.h')])


class Tree(unittest.TestCase):
    layers = Layers(tree.read(ROOT, TABLES))

    def test_every_source_is_in_a_folder_of_the_table(self):
        lost = [path for path in tree.files(ROOT) if self.layers.folder_of(path) is None]
        self.assertEqual(lost, [], f'folders that {TABLES} does not name')

    def test_every_folder_of_the_table_exists(self):
        for folder in self.layers.allowed:
            self.assertTrue(os.path.isdir(os.path.join(ROOT, folder)), folder)

    def test_every_include_is_legal(self):
        problems = []
        for path in tree.files(ROOT):
            if self.layers.folder_of(path) is None:
                continue
            for line, bracket, included in tree.includes(tree.read(ROOT, path)):
                problem = self.layers.problem(path, bracket, included, exists)
                if problem:
                    problems.append(f'{path}:{line}: {problem}')
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))

    def test_the_transport_speaks_of_no_gradients(self):
        for path in tree.files(ROOT):
            if path.startswith('transport/') and path not in ONE_FOR_ALL:
                self.assertEqual(gradient_words(tree.read(ROOT, path)), [], path)
        spared = [path for path in ONE_FOR_ALL if not gradient_words(tree.read(ROOT, path))]
        self.assertLessEqual(set(spared), {'transport/base/counters.cc', 'transport/base/environment.h'})

    def test_no_forward_declaration_goes_around_the_table(self):
        code = {path: tree.without_comments(tree.read(ROOT, path)) for path in tree.files(ROOT)
                if self.layers.folder_of(path) is not None}
        problems = undue_declarations(self.layers, code)
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))


if __name__ == '__main__':
    unittest.main()
