#!/usr/bin/env python3
"""The house's nouns each name one type of the tree, product, benchmarks, examples and tests taken together:
whoever reads Session knows which. Types that are something else of a job, a worker, a stream say what.
Usage: nouns_test.py ROOT"""
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
NOUNS = {'Aggregator', 'Channel', 'Chunk', 'Engine', 'Job', 'Policy', 'Port', 'Program', 'Rank', 'Round', 'Scheduler',
         'Server', 'Service', 'Session', 'Shard', 'Stream', 'Streams', 'Tensor', 'Token', 'Worker'}
# (noun, file): a second type of that name. What C++ programs see is called as they would call it, in a namespace of its
# own, mercury::api.
EXCEPTIONS = {('Job', 'shim/client/mercurystack/mercury.hpp'), ('Tensor', 'shim/client/mercurystack/mercury.hpp')}
DEFINED = re.compile(r'\b(?:struct|class|union|enum)\s+(?:class\s+|struct\s+)?'
                     r'(?:(?:\[\[[^\]]*\]\]|alignas\([^)]*\))\s*)*(?:\w+::)*(\w+)(?:\s+final)?\s*(?::[^:;{()][^;{()]*)?\{'
                     r'|\bconcept\s+(\w+)\s*='
                     r'|\busing\s+(\w+)\s*=([^;]*)')


def defined(text):
    """Names of the types, concepts and aliases that a source defines. An alias of the same name is that type."""
    for match in DEFINED.finditer(tree.without_comments(text)):
        alias, of = match.group(3), match.group(4)
        if not alias or not re.search(rf'\b{alias}\b', of):
            yield match.group(1) or match.group(2) or alias


def owners(sources):
    """Files that define each of the nouns; `sources` are (path, text)."""
    found = {}
    for path, text in sources:
        for name in defined(text):
            if name in NOUNS:
                found.setdefault(name, []).append(path)
    return found


def problems(found, exceptions):
    said = []
    for name, paths in sorted(found.items()):
        own = [path for path in paths if (name, path) not in exceptions]
        if len(own) > 1:
            said.append(f'{name} names {len(own)} types, in {", ".join(own)}: all but one need a name that says '
                        'what they are')
    for name, path in sorted(exceptions):
        if path not in found.get(name, []):
            said.append(f'{path} has no type {name} any more: take the exception away')
        elif len(found[name]) == 1:
            said.append(f'{path} has the only type {name}: take the exception away')
    return said


class Rules(unittest.TestCase):

    def test_types_are_found(self):
        for text in ('struct Job {', 'class Job final : public A<B> {', 'template <class T>\nstruct Job {', 'enum class Job : int {',
                     'struct alignas(64) Job {', 'class [[nodiscard]] Job\n{', 'struct Worker::Job {', 'struct A { union Job {',
                     'concept Job = requires(T t) {', 'using Job = Id<struct JobTag>;'):
            self.assertIn('Job', list(defined(text)), text)

    def test_mentions_are_not(self):
        for text in ('struct Job;', 'class Job* f(int x) {', 'friend class Job;', '// struct Job {', 'const char* s = "struct Job {";',
                     'using A = Job;', 'using Job = mercury::Job<P>;', 'struct Job f() {', 'struct JobRow {', 'template <class Job> f() {'):
            self.assertNotIn('Job', list(defined(text)), text)

    def test_a_second_type_is_found_wherever_it_is(self):
        one, other = ('shim/a.h', 'struct Job {};'), ('tests/b.cc', 'class A { struct Job { }; };')
        found = owners([one, other, ('apps/c.h', 'struct Widget {'), ('apps/d.h', 'struct Widget {')])
        self.assertEqual(len(problems(found, set())), 1)
        self.assertEqual(problems(owners([one]), set()), [])
        self.assertEqual(len(problems(owners([('shim/a.h', one[1] + other[1])]), set())), 1)

    def test_an_exception_counts_while_it_is_needed(self):
        one, other = ('shim/a.h', 'struct Job {};'), ('tests/b.cc', 'struct Job {};')
        excepted = {('Job', 'tests/b.cc')}
        self.assertEqual(problems(owners([one, other]), excepted), [])
        self.assertRegex(problems(owners([one]), excepted)[0], 'no type Job any more')
        self.assertRegex(problems(owners([other]), excepted)[0], 'the only type Job')


class Tree(unittest.TestCase):

    def test_a_noun_is_one_type(self):
        found = owners((path, tree.read(ROOT, path)) for path in tree.files(ROOT))
        for name in ('Job', 'Session', 'Engine'):
            self.assertIn(name, found)
        said = problems(found, EXCEPTIONS)
        self.assertEqual(said, [], '\n' + '\n'.join(said))


if __name__ == '__main__':
    unittest.main()
