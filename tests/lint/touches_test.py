#!/usr/bin/env python3
"""Counts which files of the product name one example of each kind of thing that there will be more of,
and holds the last table of "What a change touches" in docs/architecture.md to them.
Usage: touches_test.py ROOT"""
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
DOCUMENT = 'docs/architecture.md'
PRODUCT = ('transport/', 'scheduler/', 'aggregator/', 'shim/', 'apps/')
HEADING = '| example of a | is spelt | and named in |'
# What the table must have an example of: those of the table before it that are more than one port or NIC.
KINDS = {'job term', 'policy', 'completion rule', 'finish', 'kind of DPDK device',
         'kind of DPDK device, with keys of its own', 'service'}


def rows_of(document):
    """(kind, spellings, files) of each row of the table."""
    lines = document.split('\n')
    if HEADING not in lines:
        sys.exit(f'{DOCUMENT} has no table with the heading "{HEADING}"')
    found = []
    for line in lines[lines.index(HEADING) + 2:]:
        if not line.startswith('|'):
            break
        kind, spellings, files = (cell.strip() for cell in line.strip('|').split('|'))
        found.append((kind, re.findall(r'`([^`]+)`', spellings), sorted(re.findall(r'`([^`]+)`', files))))
    return found


def naming(spellings, sources):
    """The files whose code, or strings, have one of the words."""
    words = re.compile(r'(?<![\w-])(?:' + '|'.join(map(re.escape, spellings)) + r')(?![\w-])')
    return sorted(path for path, code in sources.items() if words.search(code))


class Rules(unittest.TestCase):

    def test_words_are_found_in_code_and_strings_alone(self):
        code = {'a.cc': 'InOrder rule;', 'b.cc': 'is("in-order")', 'c.cc': 'InOrdered x;', 'd.cc': 'x = "InOrder";'}
        self.assertEqual(naming(['InOrder'], code), ['a.cc', 'd.cc'])
        self.assertEqual(naming(['order'], code), [])
        self.assertEqual(naming(['InOrdered', 'rule'], code), ['a.cc', 'c.cc'])

    def test_rows_are_read(self):
        text = f'x\n{HEADING}\n|---|---|---|\n| finish | `A`, `b` | `z.h`, `a.h` |\n\n| not | a | row |'
        self.assertEqual(rows_of(text), [('finish', ['A', 'b'], ['a.h', 'z.h'])])


class Tree(unittest.TestCase):
    sources = {path: tree.without_comments(tree.read(ROOT, path), keep_strings=True)
               for path in tree.files(ROOT) if path.startswith(PRODUCT)}
    rows = rows_of(tree.read(ROOT, DOCUMENT))

    def test_there_is_an_example_of_each(self):
        self.assertEqual({kind for kind, _, _ in self.rows}, KINDS)

    def test_the_files_that_name_it_are_those_of_the_document(self):
        for kind, spellings, files in self.rows:
            with self.subTest(kind=kind, example=spellings[0]):
                self.assertEqual(naming(spellings, self.sources), files,
                                 f'{DOCUMENT} lists other files for the {kind} {spellings[0]} (second) than name it '
                                 '(first): name it in as few, or say why in the table and list them')


if __name__ == '__main__':
    unittest.main()
