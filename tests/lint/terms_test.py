#!/usr/bin/env python3
"""What a new term of jobs touches: the places that say it, and its use. Whoever hands terms on walks the
table of scheduler/terms/job_terms.cc and names none of them. Usage: terms_test.py ROOT"""
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
PRODUCT = ('transport/', 'scheduler/', 'aggregator/', 'shim/', 'apps/')
TABLE = 'scheduler/terms/job_terms.cc'
ROW = re.compile(r'\.name = "(\w+)",\s*\.control = "(\w+)"')
# What somebody who adds a term edits besides its use, and docs/api.md, to which `terms` holds the table.
SAID_IN = [TABLE, 'scheduler/terms/job_terms.h', 'shim/client/mercurystack/mercury.h', 'shim/client/options.cc']
# Folders and files that only hand terms on.
HAND_ON = ['apps/stackd/program.cc', 'shim/channel/', 'shim/client/daemon_backend.cc',
           'shim/client/embedded_backend.cc', 'shim/client/mercury.cc', 'shim/host/', 'shim/job/admission.cc',
           'shim/job/job_manager.cc', 'shim/job/job_manager.h', 'shim/job/member.cc', 'shim/job/messages.cc',
           'shim/job/messages.h', 'shim/job/command.h']
# It changes while a job runs, by messages and commands of its own.
CHANGES = {'policy'}


def says(name, text):
    """Whether code declares a term or spells its name; reading it of a JobTerms is its use."""
    spelt = f'"{name}"' in tree.without_comments(text, keep_strings=True)
    use = r'\b(?:\w*terms|JobTerms)(?:\.|->|::)' + name + r'\b|\boffsetof\([^()]*\)'
    code = re.sub(use, '', tree.without_comments(text))
    return spelt or re.search(r'\b' + name + r'\b', code) is not None


def mentions(name, text):
    return re.search(r'\b' + name + r'\b', tree.without_comments(text, keep_strings=True)) is not None


class Rules(unittest.TestCase):

    def test_a_copy_and_a_key_say_a_term_and_a_use_does_not(self):
        for text in ('uint64_t rejoin_ms = 0;', 'join.rejoin_ms = spec.rejoin_ms;', 'out["rejoin_ms"] = 5;'):
            self.assertTrue(says('rejoin_ms', text), text)
        for text in ('if (shape_->terms.rejoin_ms > 0) {}', '// rejoin_ms', '&JobTerms::rejoin_ms',
                     'fail("nobody came (rejoin_ms)");', 'roster.terms.rejoin_ms + 1', 'uint64_t rejoin_ms_ago;'):
            self.assertFalse(says('rejoin_ms', text), text)
        self.assertTrue(mentions('rejoin_ms', 'to.terms.rejoin_ms = from.terms.rejoin_ms;'))


class Tree(unittest.TestCase):
    rows = ROW.findall(tree.read(ROOT, TABLE))
    sources = {path: tree.read(ROOT, path) for path in tree.files(ROOT) if path.startswith(PRODUCT)}

    def test_the_table_is_found(self):
        self.assertEqual(len(self.rows), tree.read(ROOT, TABLE).count('.name ='))
        self.assertIn(('stall_timeout_ms', 'stall_ms'), self.rows)

    def test_a_term_is_said_in_four_files(self):
        for name, control in self.rows:
            for path in SAID_IN:
                self.assertTrue(mentions(name, self.sources[path]), f'{path} does not say {name}')
            if '_' not in name:
                continue  # a word that others use for what is no term
            found = [path for path, text in self.sources.items() if says(name, text)]
            self.assertEqual(sorted(found), SAID_IN, name)
            if control != name:
                found = [path for path, text in self.sources.items() if says(control, text)]
                self.assertEqual(found, [TABLE], control)

    def test_whoever_hands_terms_on_names_none(self):
        for entry in HAND_ON:
            paths = [path for path in self.sources if path.startswith(entry)]
            self.assertTrue(paths, f'there is no {entry}')
            for path in paths:
                named = [name for name, _ in self.rows if name not in CHANGES and mentions(name, self.sources[path])]
                self.assertEqual(named, [], f'{path} hands terms on: walk the table of {TABLE}')


if __name__ == '__main__':
    unittest.main()
