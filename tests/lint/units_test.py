#!/usr/bin/env python3
"""No two sources of one target give an unnamed namespace the same name, nor one that a header beside them has.
Usage: units_test.py ROOT BUILD

Builds of ./run-tests and of the fuzzers compile each target as one unit, where such names clash; that of tools/build
does not. Here the text alone is read: what stands at the beginning of a line.
"""
import functools
import json
import os
import re
import sys
import unittest

ROOT, BUILD = sys.argv[1:]
del sys.argv[1:]
UNNAMED = '?'
SPACE = re.compile(r'^namespace ?([\w:]*) ?\{|^\}( *// namespace)', re.M)
# A type; a variable or constant; a function with its parameters (an alias may be repeated). None is indented at a
# namespace's scope.
NAMED = re.compile(r'^(?:template <[^\n]*>\n)?(?:\[\[[^\]]*\]\] ?)?(?=[A-Za-z])(?!using )(?:(?:class|struct|union|enum(?: class)?) (\w+)[^;\n]*\{'
                   r'|[\w:<>,*& ]+[ &*](\w+)(?:\[\w*\])* ?(?:=|\{|;)'
                   r'|[\w:<>,*& ]+[ &*](\w+\([^;{]*\))[^;{()]*\{)', re.M)
MORE = re.compile(r'^(?:static )?const(?:expr)? [^\n;(]*;', re.M)  # constants, of which NAMED finds the first
ALIAS = re.compile(r'^using (\w+) =', re.M)


def parts(text):
    """(namespace, code) of what stands between the braces of namespaces."""
    code = re.sub(r'//(?! namespace)[^\n]*', '', text)
    spaces, at = [], 0
    for match in SPACE.finditer(code):
        if spaces:
            yield '::'.join(spaces), code[at:match.start()]
        at = match.end()
        if match.group(2) is None:
            spaces.append(match.group(1) or UNNAMED)
        else:
            spaces.pop()


def names(text):
    """(namespace, name) of each definition in an unnamed namespace of this source."""
    for space, code in parts(text):
        if UNNAMED in space:
            for line in MORE.findall(code):
                for name in re.findall(r', (\w+)(?: =|;|,)', line):
                    yield space, name
            for found in NAMED.finditer(code):
                name = found.group(1) or found.group(2) or re.sub(r' ?\w+(?=[,)])|\s+', ' ', found.group(3))
                yield space, name


def aliases(text):
    return {(space, name) for space, code in parts(text) if space.endswith(UNNAMED) for name in ALIAS.findall(code)}


def names_of_header(text):
    """As names() gives them for an unnamed namespace in the header's: types, aliases and constants."""
    return {(f'{space}::{UNNAMED}', name) for space, code in parts(text)
            for name in [*ALIAS.findall(code), *(one.group(1) or one.group(2) for one in NAMED.finditer(code))] if name}


def sources_of(group):
    """Also where the build compiles the target as one unit."""
    yield from group.get('sources', [])
    for path in group.get('generated_sources', []):
        if path.endswith('-unity0.cpp'):
            with open(path) as file:
                yield from map(os.path.normpath, re.findall(r'#include<(.*)>', file.read()))


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
constexpr int kFive = 5, kSix = 6;
[[nodiscard]] int seven() {
  return 7;
}
}  // namespace
int four = 4;
}  // namespace mercury
namespace {
int eight = 8;
}  // namespace
'''
        found = [name for _, name in names(text)]
        self.assertEqual(sorted(name.split('(')[0] for name in found),
                         ['Two', 'eight', 'kFive', 'kOne', 'kSix', 'named', 'seven', 'three'])
        three = [name for name in found if 'three' in name]
        self.assertEqual(three, [name for _, name in names(text.replace('int value', 'int other')) if 'three' in name])

    @staticmethod
    @functools.lru_cache(None)
    def of_headers(folder):
        found = set()
        for name in os.listdir(folder):
            if name.endswith('.h'):
                with open(os.path.join(folder, name)) as file:
                    found |= names_of_header(file.read())
        return found

    def test_of_one_target_differ(self):
        with open(os.path.join(BUILD, 'meson-info', 'intro-targets.json')) as file:
            targets = json.load(file)
        sources, clashes = 0, []
        for target in targets:
            seen = {}
            paths = {path for group in target['target_sources'] for path in sources_of(group)
                     if path.endswith('.cc') and path.startswith(ROOT + '/')}
            for path in sorted(paths) if len(paths) > 1 else ():
                sources += 1
                with open(path) as file:
                    text = file.read()
                for name in (set(names(text)) | aliases(text)) & self.of_headers(os.path.dirname(path)):
                    clashes.append(f"{target['name']}: {name[1]} of {os.path.relpath(path, ROOT)} is a name of a header beside it")
                for name in set(names(text)):
                    other = seen.setdefault(name, path)
                    if other != path:
                        clashes.append(f"{target['name']}: {name[1]} of {os.path.relpath(path, ROOT)} is a name of "
                                       f'{os.path.relpath(other, ROOT)}, too')
        self.assertGreater(sources, 100)
        self.assertEqual(clashes, [], 'rename one, or make it a member: the sanitizers compile both as one unit')


if __name__ == '__main__':
    unittest.main()
