"""What the lint tests share: the source files of the tree, and their code without comments."""
import json
import os
import re
import sys

SOURCE_SUFFIXES = ('.h', '.hpp', '.cc', '.c')

TOKEN = re.compile(
    r'//(?:[^\n\\]|\\.|\\\n)*'  # line comment
    r'|/\*.*?\*/'  # block comment
    r'|R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw string
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)*'",  # character; 1'000 is a number
    re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)


def files(root, suffixes=SOURCE_SUFFIXES):
    """Paths relative to `root`, sorted. Build folders and hidden ones are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if not name.startswith('.') and
            not os.path.exists(os.path.join(folder, name, 'meson-private')))
        found += [os.path.relpath(os.path.join(folder, name), root)
                  for name in names if name.endswith(suffixes)]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def compile_commands(build):
    with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as file:
        units = json.load(file)
    if any(unit['file'].endswith('-unity0.cpp') for unit in units):
        sys.exit(f'{build} compiles each target as one unit, as ./run-tests sets it up: look through another that has none, '
                 'meson setup build-lint && meson test -C build-lint --suite compiling')
    return units


def without_comments(text, keep_strings=False):
    """Comments become blanks, strings become "", line breaks stay, so that line numbers hold."""

    def blank(match):
        token = match.group(0)
        if token[0] != '/':
            if keep_strings:
                return token
            return '""' + '\n' * token.count('\n') if token[0] in 'R"' else "' '"
        return ' ' + '\n' * token.count('\n')

    return TOKEN.sub(blank, text)


def includes(text):
    """(line, '<' or '"', path) of each #include that is not commented out."""
    code = without_comments(text, keep_strings=True)
    return [(code.count('\n', 0, match.start()) + 1, match.group(1), match.group(2))
            for match in INCLUDE.finditer(code)]
