#!/usr/bin/env python3
"""The harness's README and docs/reliability.md say the same of the seeds that have run clean.
Usage: records_test.py ROOT"""
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
README = 'tests/disaster/README.md'
RELIABILITY = 'docs/reliability.md'
RECORD = re.compile(r'([\d,]+) seeds have run clean at commit ([0-9a-f]{7,40})\b')


def records(text):
    return RECORD.findall(' '.join(text.split()))


class Records(unittest.TestCase):

    def test_a_record_is_found_across_lines(self):
        self.assertEqual(records('1,000 seeds have run\nclean at commit 1234567: x'), [('1,000', '1234567')])
        self.assertEqual(records('1,000 seeds have run at commit 1234567'), [])

    def test_both_documents_have_one_and_the_same(self):
        said = [records(tree.read(ROOT, path)) for path in (README, RELIABILITY)]
        self.assertEqual([len(each) for each in said], [1, 1], said)
        self.assertEqual(said[0], said[1])


if __name__ == '__main__':
    unittest.main()
