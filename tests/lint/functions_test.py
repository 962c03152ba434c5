#!/usr/bin/env python3
"""No function of C, C++ or Python has more than 60 lines, tests and benchmarks included.
Usage: functions_test.py ROOT

A GoogleTest body is a function. Lines are counted as clang-tidy does, which tidy_test.py asks about the
product as it is compiled: from the first brace to the last; in Python from the def on. Here the text alone
is read, so that a second is enough for the whole tree, and for what this machine cannot compile, too.
"""
import ast
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
MOST = 60
DIRECTIVE = re.compile(r'^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.M | re.S)
SCOPE = re.compile(r'(?:^|\s)(?:namespace|class|struct|union|enum|concept|extern "")(?:$|[\s{:])')
# What may have parentheses before a type's first brace.
ASKED = re.compile(r'\b(?:alignas|__attribute__|requires)\s*\((?:[^()]|\([^()]*\))*\)')


def is_scope(head):
    """Whether `head`, the text before a brace, begins a namespace or a type: what is inside is looked at."""
    return '(' not in ASKED.sub('', head) and SCOPE.search(re.sub(r'<[^<>]*>', '', ASKED.sub('', head))) is not None


def is_function(head):
    """Not a list of values."""
    return ('(' in head or ']' in head) and not re.search(r'(?:[=(,]|=[^()\]]*)\s*$', head)


def functions(text):
    """(line, lines) of each function of a C or C++ source that is not inside another one."""
    code = DIRECTIVE.sub(lambda match: '\n' * match.group().count('\n'), tree.without_comments(text))
    scopes, depth, begin, head = 0, 0, 0, 0  # `depth`: of braces inside the function, which began at `begin`
    for match in re.finditer(r'[{};]', code):
        at, what = match.start(), match.group()
        if what == '{':
            if depth or not is_scope(code[head:at]):
                begin = begin if depth else at
                depth += 1
            else:
                scopes, head = scopes + 1, at + 1
        elif what == '}' and depth:
            depth -= 1
            if not depth:
                if is_function(code[head:begin]):
                    yield code.count('\n', 0, begin) + 1, code.count('\n', begin, at) + 1
                    if not re.match(r'\s*[,{]', code[at + 1:]):  # else a member's value: the body is to come
                        head = at + 1
        elif not depth:
            scopes, head = scopes - (what == '}'), at + 1
    if scopes or depth:
        raise ValueError('braces that do not match: no #if may stand between a brace and its partner')


def python_functions(text):
    return [(node.lineno, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


class Rules(unittest.TestCase):

    def test_more_lines_than_60_are_too_many(self):
        for before, after in (('void f() {', '}'), ('TEST(Streams, Open) {', '}'), ('TEST_F(Streams, Open)\n{', '}'),
                              ('namespace a {\nclass B : C<D> {\n  int f() const noexcept {', '}\n};\n}'),
                              ('A::A(int x) : x_{x}, y_(x) {', '}'), ('A::A() : x_{1}, y_{} {', '}'),
                              ('const auto f = [] {', '};'), ('extern "C" {\nstruct A f(struct B b) {', '}\n}'),
                              ('template <class T>\n  requires(sizeof(T) > 1)\nauto f(T t) -> decltype(t) {', '}'),
                              ('struct alignas(64) A {\n  void f() {', '}\n};'),
                              ('bool operator==(A a, A b) {', '}')):
            for lines in (MOST, MOST + 1):
                text = before + '\n  x += 1;' * (lines - 2) + '\n' + after
                self.assertIn(lines, [counted for _, counted in functions(text)], before)

    def test_a_function_is_found_on_its_line(self):
        text = '#define X {\n/* { */ namespace a {\nint x = f("{");\n\nvoid g(int y = {}) { if (y) { h(); } }\n}'
        self.assertEqual(list(functions(text)), [(5, 1)])

    def test_lists_are_no_functions(self):
        for head in ('const Row kRows[] = {', 'std::array<Row, 3> kRows{{', 'enum class A : int {', 'struct A {',
                     'const auto kRows = std::to_array<Row>({', 'concept A = requires(B b) {'):
            text = head + '\n' * MOST + '}' * head.count('{') + ');'
            self.assertEqual(list(functions(text)), [], head)

    def test_python_s_are_counted(self):
        text = 'class A:\n    def f(self):\n' + '        x()\n' * 3
        self.assertEqual(python_functions(text), [(2, 4)])

    def test_braces_that_do_not_match_are_refused(self):
        self.assertRaises(ValueError, list, functions('#if A\nvoid f() {\n#else\nvoid f(int) {\n#endif\n}'))


class Tree(unittest.TestCase):

    def test_no_function_is_longer(self):
        counted, found = 0, []
        for path in tree.files(ROOT, (*tree.SOURCE_SUFFIXES, '.py')):
            of = python_functions if path.endswith('.py') else functions
            try:
                lengths = list(of(tree.read(ROOT, path)))
            except (SyntaxError, ValueError) as error:
                lengths = []
                found.append(f'{path}: {error}')
            counted += len(lengths)
            found += [f'{path}:{line}: a function of {lines} lines: cut it in parts that have names, {MOST} lines '
                      'at most' for line, lines in lengths if lines > MOST]
        self.assertGreater(counted, 5000)
        self.assertEqual(found, [], '\n' + '\n'.join(found))


if __name__ == '__main__':
    unittest.main()
