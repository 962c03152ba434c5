#!/usr/bin/env python3
"""Every reason to drop, refuse or hold back a frame is one that some test brings about: its counter is
named there. Usage: counters_test.py ROOT"""
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
COUNTERS = 'transport/base/counters.cc'
REFUSALS = re.compile(r'\{"(drop_\w+|sessions_refused|bad_descriptors|peers_lost|tx_backpressure)"')


def refusals(text):
    return REFUSALS.findall(text)


def spellings(name):
    """As `mercuryctl stats` and as the enumerators have it."""
    return name, 'k' + ''.join(word.capitalize() for word in name.split('_'))


def unnamed(names, texts):
    words = set()
    for text in texts:
        words.update(re.findall(r'\w+', text))
    return [name for name in names if not words.intersection(spellings(name))]


class Rule(unittest.TestCase):

    def test_both_spellings_count_and_comments_do_not(self):
        code = tree.without_comments('// kDropType\nx.get(Counter::kDropNoBuffer);')
        self.assertEqual(unnamed(['drop_no_buffer', 'drop_type', 'drop_length'],
                                 [code, 'counters()["drop_length"]']), ['drop_type'])

    def test_only_what_is_dropped_or_refused_needs_a_test(self):
        self.assertEqual(refusals('{"rx_frames", "x"},\n{"drop_type",\n "x"},\n{"peers_lost", "x"}'),
                         ['drop_type', 'peers_lost'])


class Tree(unittest.TestCase):

    def test_each_refusal_is_named_by_a_test(self):
        names = refusals(tree.read(ROOT, COUNTERS))
        self.assertIn('drop_truncated', names)
        texts = [tree.read(ROOT, path) for path in tree.files(ROOT, ('.py',)) if path.startswith('tests/')
                 and not path.startswith('tests/lint/')]
        texts += [tree.without_comments(tree.read(ROOT, path)) for path in tree.files(ROOT)
                  if path.startswith('tests/')]
        self.assertEqual(unnamed(names, texts), [])


if __name__ == '__main__':
    unittest.main()
