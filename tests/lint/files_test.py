#!/usr/bin/env python3
"""Holds every source file against the rules that a pattern can tell. Usage: files_test.py ROOT"""
import pathlib
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)

MAX_LINES = {'.h': 400, '.cc': 600, '.c': 600}
TEXT_SUFFIXES = tree.SOURCE_SUFFIXES + ('.py', '.lua', '.sh', 'meson.build')
ITSELF = 'tests/lint/files_test.py'  # names what it forbids

# Nothing that a packet, a program or a file can reach may end the process.
DATAPATH = ('transport/', 'scheduler/', 'aggregator/', 'shim/', 'apps/stackd/')

# In code (comments and strings do not count): what, where ('' is everywhere), why not.
FORBIDDEN = [
    (r'\bthrow\b', '', 'Mercury throws nothing: return a Result or Status'),
    (r'\bgoto\b', '', 'no goto'),
    (r'^[ \t]*#[ \t]*if[ \t]+0\b', '', 'no dead code'),
    (r'^[ \t]*#[ \t]*define[ \t]+(?:private|protected)\b', '', 'test through the public interface'),
    (r'(?<!\w)assert[ \t]*\(', DATAPATH, 'bad input is an error or a counter, never an abort'),
    (r'(?<![\w.>])(?:std::)?(?:(?:abort|terminate|exit|_exit|quick_exit|__builtin_trap|rte_panic|rte_exit|'
     r'RTE_VERIFY|RTE_ASSERT|__builtin_unreachable|unreachable)[ \t]*\(|raise[ \t]*\([ \t]*SIG)', DATAPATH, 'a library and a daemon do not end the process'),
    (r'\bfilesystem::(?:absolute|canonical|create_director(?:y|ies)|current_path|exists|file_size|is_[a-z_]+|read_symlink|'
     r'remove|remove_all|rename|status|temp_directory_path)\((?:[^(),]|\([^()]*\))*\)', DATAPATH,
     'throws: pass a std::error_code'),
    (r'\bstd::sto(?:i|l|ll|ul|ull|f|d|ld)[ \t]*\(', DATAPATH, 'throws: std::from_chars'),
]
# Anywhere in the text, comments included.
UNFINISHED = re.compile(r'\b(?:TODO|FIXME|XXX)\b')

# Sanitizer builds compile the files of a target as one, where unnamed namespaces are one, too.
PRODUCT = ('transport/', 'scheduler/', 'aggregator/', 'shim/', 'apps/')
CONSTANT = re.compile(r'^(?:inline )?(?:constexpr|const) [\w:<>, ]+? (k\w+)\b', re.M)
OWN_TARGETS = ('transport/wire/crc32c_',)  # each compiled for its own instructions

# (path, pattern of the line): why it is right there.
EXCEPTIONS = {
    ('tests/allocations.cc', 'throw std::bad_alloc'):
        'replaces operator new to count the heap, and that has no other way to fail',
}


def is_excepted(path, line):
    return any(path == where and what in line for where, what in EXCEPTIONS)


def problems_of(path, text):
    found = []
    lines = text.splitlines()
    suffix = path[path.rfind('.'):]
    if len(lines) > MAX_LINES.get(suffix, len(lines)):
        found.append(f'{path}: {len(lines)} lines, more than {MAX_LINES[suffix]}: cut it by topic')
    for match in UNFINISHED.finditer(text):
        found.append(f'{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group(0)}: finish '
                     'it, or leave it out')
    if path.endswith(tree.SOURCE_SUFFIXES):
        code = tree.without_comments(text)
        for pattern, folders, why in FORBIDDEN:
            for match in re.finditer(pattern, code, re.M):
                number = code.count('\n', 0, match.start()) + 1
                if path.startswith(folders) and not is_excepted(path, lines[number - 1]):
                    found.append(f'{path}:{number}: {match.group(0).strip()}: {why}')
    if suffix == '.h' and not re.search(r'^#pragma once$|^#ifndef \w+_H\n#define \w+_H$', text, re.M):
        found.append(f'{path}: no include guard: #pragma once')
    return found


# A new policy is a row of one table; nothing else may ask which one it is.
POLICIES = 'scheduler/policy.cc'
POLICY_ROW = re.compile(r'Policy\{\.name = "([\w-]+)"')


def policies_named(text, names):
    """Strings that are a policy, or one with knobs; the default one is also the project's name."""
    code = tree.without_comments(text, keep_strings=True)
    return re.findall(r'"(' + '|'.join(map(re.escape, names)) + r')[":]', code)


def said_twice(sources):
    """Constants of the same name in two .cc files of a folder; `sources` are (path, text)."""
    seen, found = {}, []
    for path, text in sources:
        if not (path.endswith('.cc') and path.startswith(PRODUCT)) or path.startswith(OWN_TARGETS):
            continue
        for name in CONSTANT.findall(tree.without_comments(text)):
            other = seen.setdefault((path[:path.rfind('/')], name), path)
            if other != path:
                found.append(f'{path}: {name} is a constant of {other}, too: sanitizer builds compile '
                             'both as one file')
    return found


class Rules(unittest.TestCase):

    def test_constants_that_meet_are_found(self):
        ours = ('transport/flow/a.cc', 'constexpr uint64_t kGrowth = 8;\n')
        self.assertEqual(len(said_twice([ours, ('transport/flow/b.cc', 'const int kGrowth = 1;')])), 1)
        for path, text in (('transport/wire/b.cc', ours[1]), ('transport/flow/b.h', ours[1]),
                           ('transport/flow/b.cc', '  constexpr int kGrowth = 1;  // in a function'),
                           ('transport/flow/b.cc', '// constexpr int kGrowth = 1;')):
            self.assertEqual(said_twice([ours, (path, text)]), [], path)

    def test_what_is_forbidden_is_found(self):
        rows = [
            ('scheduler/x.cc', 'int f() { throw 1; }'),
            ('tests/x.cc', 'goto end;'),
            ('tests/x.cc', '#if 0\n#endif'),
            ('tests/x.cc', '#define private public'),
            ('aggregator/x.cc', 'assert(x);'),
            ('aggregator/x.cc', 'if (x) std::abort();'),
            ('shim/x/y.cc', 'exit(1);'),
            ('transport/port/x.cc', 'rte_panic("no");'),
            ('transport/port/x.cc', 'rte_exit(1, "no");'),
            ('transport/x.h', '#pragma once\n__builtin_trap();'),
            ('apps/stackd/x.cc', 'raise(SIGABRT);'),
            ('apps/stackd/x.cc', 'std::filesystem::remove(config_.socket());'),
            ('transport/x.cc', '__builtin_unreachable();'), ('shim/x.cc', 'std::unreachable();'),
            ('shim/x.cc', 'n = std::stoul(text);'),
            ('tests/x.cc', '// TO' + 'DO: later'),
            ('tools/x.py', '# FIX' + 'ME'),
            ('tests/x.cc', '\n' * 601),
            ('tests/x.h', '#pragma once\n' + '\n' * 400),
            ('tests/x.h', 'int x;'),
        ]
        for path, text in rows:
            self.assertEqual(len(problems_of(path, text)), 1, (path, text[:40]))

    def test_what_is_allowed_is_not(self):
        rows = [
            ('scheduler/x.cc', '// may throw, or goto\nconst char* s = "throw assert(1)";'),
            ('scheduler/x.cc', 'static_assert(sizeof(int) == 4);'),
            ('scheduler/x.cc', 'worker.exit(1); on_abort(); port->abort(); credit.raise(); raise();'),
            ('scheduler/x.cc', "int n = 1'000; char c = '\"'; // goto"),
            ('apps/stackd/x.cc', 'std::filesystem::remove(config_.socket(), error);'),
            ('benchmarks/x.cc', 'if (!ok) std::abort();'),
            ('apps/sim/x.cc', 'exit(1);'),
            ('tests/x.h', '#pragma once\n' + '\n' * 399),
            ('shim/client/x.h', '#ifndef X_H\n#define X_H\n#endif'),
        ]
        for path, text in rows:
            self.assertEqual(problems_of(path, text), [], (path, text[:40]))


class Tree(unittest.TestCase):

    def test_every_file_keeps_the_rules(self):
        problems = []
        for path in tree.files(ROOT, TEXT_SUFFIXES):
            if path != ITSELF:
                problems += problems_of(path, tree.read(ROOT, path))
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))

    def test_constants_of_a_folder_have_names_of_their_own(self):
        problems = said_twice((path, tree.read(ROOT, path)) for path in tree.files(ROOT))
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))

    def test_a_new_policy_touches_one_file(self):
        names = [name for name in POLICY_ROW.findall(tree.read(ROOT, POLICIES)) if name != 'mercury']
        self.assertGreater(len(names), 4)
        for line in (f'if (policy.name == "{names[0]}") send();', f'parse_policy("{names[-1]}:startup=0")'):
            self.assertEqual(len(policies_named(line, names)), 1, line)
        for path in tree.files(ROOT):
            if path.startswith(PRODUCT) and path != POLICIES:
                self.assertEqual(policies_named(tree.read(ROOT, path), names), [], path)

    def test_every_module_of_the_package_is_installed(self):
        """Tests run the package where it lies."""
        folder = pathlib.Path(ROOT) / 'python'
        installed = set(re.findall(r"'(mercurystack/\w+\.py)'", (folder / 'meson.build').read_text(encoding='utf-8')))
        self.assertEqual(installed, {str(file.relative_to(folder)) for file in folder.glob('mercurystack/*.py')})

    def test_every_exception_is_still_needed(self):
        for path, what in EXCEPTIONS:
            self.assertIn(what, tree.read(ROOT, path), path)


if __name__ == '__main__':
    unittest.main()
