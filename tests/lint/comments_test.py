#!/usr/bin/env python3
"""Every name in a comment of the C and C++ sources exists in the code. Usage: comments_test.py ROOT

Names are: kConstant, `anything` in backquotes, name(), Type::member, snake_case, CamelCase, UPPER_CASE,
file.h and folder/file. A kConstant, and what stands alone in backquotes, must also be in sight: in the
code of the same folder or of what that includes; right above a struct or class, inside it.

And the banners "Gradient path: step N/8" of the sources are the table of docs/architecture.md.
"""
import os
import re
import sys
import unittest

import tree

ROOT = sys.argv.pop(1)
ARCHITECTURE = 'docs/architecture.md'

# What comments may name though no code of this tree does (or not in sight): whose it is, and the names.
EXCEPTIONS = {
    'units and kinds of numbers': 'kB NaN',
    'a way to write names': 'snake_case',
    'what the reader puts something else for': 'NAME_PORT_443_UDP_ADDR NAME_SERVICE_HOST PER_ROW PortType',
    'a program of this tree': 'mercuryctl',
    'Linux': 'DEFER_TASKRUN IP_PMTUDISC_OMIT MAX_TCP_KEEPIDLE PIPE_BUF SCHED_FLAG_RESET_ON_FORK SCM_MAX_FD SENDMSG_ZC '
             'SINGLE_ISSUER TCP_CA_NAME_MAX TCP_CLOSE TPACKET2_HDRLEN UDP_MAX_SEGMENTS XDP_PACKET_HEADROOM '
             'local_address mem_max rem_address sched_attr',
    'the C library': 'closefrom readdir',
    'systemd': 'RootDirectory SYSLOG_IDENTIFIER',
    'DPDK': 'net_af_xdp0',
    'RFC 4861 and RFC 8899': 'MAX_PROBES RetransTimer',
    'the symbols of the Mercury paper': 't_bp t_fp t_upd tau_pull',
    'other papers and their programs': 'BytePS ByteScheduler ExpressPass HomaModule SplitMix64 SwitchML SysML max_incoming',
    'models': 'AlexNet ResNet',
    'other libraries': 'AddressSanitizer DistributedDataParallel MPI_ERRORS_ARE_FATAL MXNET_KVSTORE_BIGARRAY_BOUND '
                       'ProcessGroupGloo dist_sync gradient_as_bucket_view sodium_init',
}
ELSEWHERE = {name for names in EXCEPTIONS.values() for name in names.split()}

WORD = re.compile(r'[A-Za-z_]\w*')
QUOTED = re.compile(r'`([^`]*)`')
# A name, or a chain of members, perhaps called.
ALONE = re.compile(r'[*&]?[A-Za-z_]\w*(?:(?:::|\.|->)[A-Za-z_]\w*)*(?:\(\))?')
CONSTANT = re.compile(r'(?<!::)\bk[A-Z]\w*\b\*?')  # kPrefix*: several of them
QUALIFIED = re.compile(r'\b([A-Za-z_]\w*)::([A-Za-z_]\w*)')
OPTION = re.compile(r'(?<![\w-])--[a-z][\w-]*')
OTHERS = [
    re.compile(r'\b[A-Za-z_]\w*(?=\(\))'),
    re.compile(r'\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b'),
    re.compile(r'\b[A-Z][a-z0-9]*[a-z][a-z0-9]*[A-Z]\w*\b'),
    re.compile(r'\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b'),
]
FILE = re.compile(r'(?<![\w./-])(?:[\w-]+/)*[\w-]+\.(?:h|cc|c|py|md|toml|csv)\b(?!\.\w)')
FOLDER = re.compile(r'(?<![\w./-])(?:transport|scheduler|aggregator|shim|apps|benchmarks|tests|tools|docs|'
                    r'examples|packaging)/(?:[\w-]+/)*[\w-]*\w\b(?!\.\w)')
DECLARED = re.compile(r'\b(?:(?:enum[ \t]+)?(?:class|struct)|enum|union|namespace|concept)\s+([A-Za-z_][\w:]*)'
                      r'|\busing\s+([A-Za-z_]\w*)\s*=')
TYPE_BELOW = re.compile(r'\s*(?:template\s*<[^;{]*>\s*)?(?:struct|class)\s+\w+[^;{]*\{')


class Comment:

    def __init__(self, line, text, end):
        self.line, self.text, self.end = line, text, end  # `end`: where in the file it ends


def comments(text):
    """Line comments below each other are one. Line breaks stay."""
    found, joins = [], False
    for match in tree.TOKEN.finditer(text):
        token = match.group()
        if token[0] != '/':
            continue
        said = re.sub(r'^[ \t]*(?:/\*+|//+|\*/|\*(?!/))|\*/$', '', token, flags=re.M)
        between = text[found[-1].end:match.start()] if joins else ''
        if token.startswith('//') and re.fullmatch(r'\n[ \t]*', between):
            found[-1] = Comment(found[-1].line, found[-1].text + '\n' + said, match.end())
        else:
            found.append(Comment(text.count('\n', 0, match.start()) + 1, said, match.end()))
        joins = token.startswith('//')
    return found


def type_below(text, end):
    """Words of the struct or class whose definition begins there, or None."""
    code = tree.without_comments(text[end:], keep_strings=True)
    begin = TYPE_BELOW.match(code)
    if not begin or '\n\n' in code[:begin.start() + len(begin.group()) - len(begin.group().lstrip())]:
        return None
    depth = 0
    for brace in re.finditer(r'[{}]', code):
        depth += 1 if brace.group() == '{' else -1
        if depth == 0:
            return set(WORD.findall(code[:brace.end()]))
    return None


def blanked(pattern, text):
    return pattern.sub(lambda match: ' ' * len(match.group()), text)


class Code:
    """What there is to be named. `sources` maps paths to texts, `others` are paths of other files,
    `recipes` texts that name programs and targets."""

    def __init__(self, sources, others=(), recipes=(), elsewhere=frozenset(ELSEWHERE)):
        self.sources, self.elsewhere = sources, elsewhere
        code = {path: tree.without_comments(text, keep_strings=True) for path, text in sources.items()}
        self.words = {path: set(WORD.findall(text)) for path, text in code.items()}
        self.includes = {path: [name for _, _, name in tree.includes(text)] for path, text in sources.items()}
        self.declaring = {}
        for path, text in code.items():
            for names in DECLARED.findall(text):
                for name in ''.join(names).split('::'):
                    if name == 'std':  # a specialisation does not make it this tree's
                        continue
                    self.declaring.setdefault(name, set()).add(path)
        # A path is named from any of its folders on, as far as one likes, with or without suffix.
        self.paths = set()
        for path in {*sources, *others, *(name for names in self.includes.values() for name in names)}:
            parts = path.split('/')
            for begin in range(len(parts)):
                self.paths.update('/'.join(parts[begin:end]) for end in range(begin + 1, len(parts) + 1))
                self.paths.add(os.path.splitext('/'.join(parts[begin:]))[0])
        self.known = set(elsewhere).union(*self.words.values(), *map(WORD.findall, (*recipes, *self.paths)))
        self.sights = {}

    def sight(self, path):
        """Words in the code of the file's folder and of what that includes."""
        folder = os.path.dirname(path)
        if folder not in self.sights:
            files, left = set(), [other for other in self.sources if os.path.dirname(other) == folder]
            while left:
                file = left.pop()
                if file in self.sources and file not in files:
                    files.add(file)
                    left += self.includes[file]
            self.sights[folder] = set().union(self.elsewhere, *(self.words[file] for file in files))
        return self.sights[folder]

    def is_known(self, name):
        """UPPER_CASE may be a message, which is UpperCase in the code. Plurals count."""
        return not {name, name.removesuffix('s')}.isdisjoint(self.known) or (
            name.isupper() and ''.join(map(str.capitalize, name.split('_'))) in self.known)

    def unknown_in(self, path, comment):
        """(offset, name, what is wrong) of what the comment names and is not there."""
        sight, inside, text = self.sight(path), type_below(self.sources[path], comment.end), comment.text
        if text.count('`') % 2:
            yield text.rfind('`'), '`', 'stands alone'
        for quote in QUOTED.finditer(text):
            said = quote.group(1)
            if FILE.fullmatch(said) or FOLDER.fullmatch(said):
                continue
            alone = ALONE.fullmatch(said) and '::' not in said
            for name in WORD.findall(said):
                if not (name in sight if alone else self.is_known(name)):
                    yield quote.start(), name, 'is not in sight' if alone else 'is no name in the code'
                elif alone and inside and name == said.removesuffix('()') and name not in inside:
                    yield quote.start(), name, 'is nothing of the type below'
        for match in QUALIFIED.finditer(text):
            files = self.declaring.get(match.group(1))  # None: of another package
            if files and not any(match.group(2) in self.words[file] for file in files):
                yield match.start(), match.group(), f'is nothing of {match.group(1)}'
        plain = blanked(OPTION, blanked(QUOTED, text))
        for pattern in (FILE, FOLDER):
            for match in pattern.finditer(text):
                if match.group() not in self.paths:
                    yield match.start(), match.group(), 'is no file of the tree'
            plain = blanked(pattern, plain)
        for match in CONSTANT.finditer(plain):
            name = match.group()
            if name not in sight and not (
                    name[-1] == '*' and any(word.startswith(name[:-1]) for word in sight)):
                yield match.start(), name, 'is not in sight'
        for pattern in OTHERS:
            for match in pattern.finditer(plain):
                if not self.is_known(match.group()):
                    yield match.start(), match.group(), 'is no name in the code'

    def unknown(self, path):
        """(line, name, what is wrong) of each name in the comments of a file that is not there."""
        for comment in comments(self.sources[path]):
            for offset, name, why in self.unknown_in(path, comment):
                yield comment.line + comment.text.count('\n', 0, offset), name, why


BANNER = re.compile(r'Gradient path: ((?:.+\n)*)')
ROW = re.compile(r'^\| (\d) \w+ \|([^|]*)\|', re.M)


def banners(sources):
    """Which files say that they are step N/8."""
    found = {}
    for path, text in sources.items():
        for comment in comments(text):
            for said in BANNER.findall(comment.text + '\n'):
                for step in re.findall(r'step (\d)/8', said.split('\n\n')[0]):
                    found.setdefault(int(step), set()).add(path)
    return found


def steps(text):
    """Which files the table names at each step."""
    return {int(step): set(re.findall(r'`([\w/]+\.h)`', cell)) for step, cell in ROW.findall(text)}


class Rules(unittest.TestCase):
    AROUND = {
        'a/b.h': '#include "c/d.h"\nstruct Bolt { int turns_; void turn(); };\nconstexpr int kMost = 1;\n',
        'c/d.h': 'namespace wire { enum class Kind { kNut }; }\nstruct JobOpen {};\n',
        'e/f.h': 'constexpr int kFar = 2;\nvoid far_away(int depth);\nconst char* text = "share of it";\n',
    }

    def names(self, text, path='a/x.cc'):
        code = Code({**self.AROUND, path: text}, ['docs/jobs.md', 'tests/fuzz/run'], ["executable('a_bench')"],
                    {'NaN'})
        return [name for _, name, _ in code.unknown(path)]

    def test_names_that_exist_are_fine(self):
        for text in ('// `turns_` of a Bolt, turn(), kMost, Bolt::turn and wire::Kind::kNut',
                     '// `kNut`: in what this folder includes', '/* far_away, far_away() and `far_away(share, depth)` */',
                     '// JOB_OPEN, JobOpen, JobOpens, kMo*', '// NaN, std::expected, DPDK, e.g. a.b.c:1, i.e. 25 Gb/s',
                     '// docs/jobs.md, tests/fuzz/run, tests/fuzz, a/b.h, b.h, c/d, <c/d.h>', '// a_bench --some_option',
                     'int x;  // `x` or `x.turns_`', '// `turns_` and\n// `\n// turns_`'):
            self.assertEqual(self.names(text), [], text)

    def test_names_that_do_not_are_found(self):
        for text, name in (('// `uplink_bps` and so on', 'uplink_bps'), ('// kFirst frames', 'kFirst'),
                           ('// then StartJob.', 'StartJob'), ('/* send_message\n refuses it */', 'send_message'),
                           ('// see send()', 'send'), ('// Bolt::push', 'Bolt::push'), ('// JOB_CLOSE', 'JOB_CLOSE'),
                           ('// wire::kBolt', 'wire::kBolt'), ('// docs/job.md', 'docs/job.md'), ('// z.h', 'z.h'),
                           ('// tests/fuzz/walk', 'tests/fuzz/walk'), ('// kNo*', 'kNo*'), ('// kFar', 'kFar'),
                           ('// `depth`', 'depth'), ('// `far_away(width)`', 'width'), ('// one ` too many', '`')):
            self.assertEqual(self.names(text), [name], text)

    def test_a_type_has_what_the_comment_above_it_names(self):
        below = 'struct Nut {\n  int turns_index;  // {\n};\nint turns_;\n'
        self.assertEqual(self.names('// Its `turns_`.\n' + below), ['turns_'])
        self.assertEqual(self.names('// Its `turns_index`.\n' + below), [])
        self.assertEqual(self.names('// Its `turns_`.\n\n' + below), [])
        self.assertEqual(self.names('// Its `turns_`.\nstruct Nut;\n'), [])

    def test_a_name_is_found_on_its_line(self):
        code = Code({'x.cc': 'int x;\n// one\n// kTwo\nint y; /* a\n * kThree */ int z;  // kFour\n// kFive'})
        self.assertEqual([(line, name) for line, name, _ in code.unknown('x.cc')],
                         [(3, 'kTwo'), (5, 'kThree'), (5, 'kFour'), (6, 'kFive')])

    def test_strings_and_code_are_no_comments(self):
        self.assertEqual(self.names('const char* s = "// kFirst";\nint k = kFirst;'), [])

    def test_a_banner_names_its_steps_up_to_the_first_blank_line(self):
        text = '// Gradient path: step 2/8, to the\n// scheduler; and step 8/8.\n//\n// Not step 3/8.\n'
        self.assertEqual(banners({'a.h': text, 'b.h': '/* Why.\n * Gradient path: step 1/8. */'}),
                         {1: {'b.h'}, 2: {'a.h'}, 8: {'a.h'}})

    def test_rows_are_read(self):
        self.assertEqual(steps('| 1 call | `a/b.h` `push`, `c.h` | program | x |\n| 2 next | `d.h` | x | y |\n'),
                         {1: {'a/b.h', 'c.h'}, 2: {'d.h'}})


class Tree(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.sources = {path: tree.read(ROOT, path) for path in tree.files(ROOT)}
        cls.others = tree.files(ROOT, ('',))
        cls.recipes = [tree.read(ROOT, path) for path in cls.others if os.path.basename(path) == 'meson.build']

    def test_every_name_exists(self):
        code = Code(self.sources, self.others, self.recipes)
        problems = [f'{path}:{line}: {name} {why}' for path in self.sources
                    for line, name, why in code.unknown(path)]
        self.assertEqual(problems, [], '\n' + '\n'.join(problems))

    def test_every_exception_is_still_needed(self):
        code = Code(self.sources, self.others, self.recipes, frozenset())
        missed = {name.removesuffix('s') for path in self.sources for _, name, _ in code.unknown(path)}
        self.assertEqual({name for name in ELSEWHERE if name.removesuffix('s') not in missed}, set())

    def test_the_way_of_a_gradient_is_the_table(self):
        table = steps(tree.read(ROOT, ARCHITECTURE))
        self.assertEqual(sorted(table), list(range(1, 9)), ARCHITECTURE)
        said = banners(self.sources)
        for step in sorted({*table, *said}):
            self.assertEqual(table.get(step), said.get(step), f'step {step}: left what {ARCHITECTURE} names, right '
                             f'which files begin with "Gradient path: step {step}/8"')


if __name__ == '__main__':
    unittest.main()
