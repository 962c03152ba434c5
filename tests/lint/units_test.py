#!/usr/bin/env python3
"""No two sources of one target give an unnamed namespace the same name.
Usage: units_test.py ROOT BUILD

The sanitizers' builds and the fuzzers' compile each target as one unit (./run-tests), where such names clash; the
build that all others use does not. Here the text alone is read: what stands at the beginning of a line.
"""
import json
import os
import re
import sys
import unittest

import tree

ROOT, BUILD = sys.argv[1:]
del sys.argv[1:]
SPACE = re.compile(r'^namespace ?([\w:]*) ?\{|^\}( *// namespace)', re.M)
# A type; a variable or constant; a function with its parameters (an alias may be repeated). None is indented at a
# namespace's scope.
NAMED = re.compile(r'^(?:template <[^\n]*>\n)?(?=[A-Za-z])(?!using )(?:(?:class|struct|union|enum(?: class)?) (\w+)[^;\n]*\{'
                   r'|[\w:<>,*& ]+[ &*](\w+)(?:\[\w*\])* ?(?:=|\{|;)'
                   r'|[\w:<>,*& ]+[ &*](\w+\([^;{]*\))[^;{()]*\{)', re.M)


def names(text):
    """(namespace, name) of each definition in an unnamed namespace of this source."""
    code = re.sub(r'//(?! namespace)[^\n]*', '', text)
    spaces, at = [], 0
    for match in SPACE.finditer(code):
        if '' in spaces:
            for found in NAMED.finditer(code, at, match.start()):
                name = found.group(1) or found.group(2) or re.sub(r' ?\w+(?=[,)])|\s+', ' ', found.group(3))
                yield '::'.join(spaces), name
        at = match.end()
        if match.group(2) is None:
            spaces.append(match.group(1))
        else:
            spaces.pop()


class UnitsTest(unittest.TestCase):
    def test_reads_names(self):
        text = '''namespace mercury {
namespace {
constexpr int kOne = 1;
class Two : public Base {
 public:
  int inside = 0;
};
// A comment.
int three(int value, const char* text) {
  return 1;
}
int named[] = {1};
}  // namespace
int four = 4;
}  // namespace mercury
'''
        found = [name for _, name in names(text)]
        self.assertEqual([name.split('(')[0] for name in found], ['kOne', 'Two', 'three', 'named'])
        self.assertEqual(found[2], next(n for _, n in names(text.replace('int value', 'int other')) if 'three' in n))

    def test_of_one_target_differ(self):
        with open(os.path.join(BUILD, 'meson-info', 'intro-targets.json')) as file:
            targets = json.load(file)
        sources, clashes = 0, []
        for target in targets:
            seen = {}
            for path in sorted({path for group in target['target_sources'] for path in group.get('sources', [])}):
                if not path.endswith('.cc') or not path.startswith(ROOT + '/'):
                    continue
                sources += 1
                with open(path) as file:
                    for name in set(names(file.read())):
                        other = seen.setdefault(name, path)
                        if other != path:
                            clashes.append(f"{target['name']}: {name[1]} of {os.path.relpath(path, ROOT)} is a name of "
                                           f'{os.path.relpath(other, ROOT)}, too')
        self.assertGreater(sources, 100)
        self.assertEqual(clashes, [], 'rename one, or make it a member: the sanitizers compile both as one unit')


if __name__ == '__main__':
    unittest.main()
