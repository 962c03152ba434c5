#!/usr/bin/env python3
"""What a fuzzer has learnt, as one file: an input a line, in base64, sorted.

    tests/fuzz/corpus.py unpack FILE FOLDER [STAMP]   a file in FOLDER for each line, and STAMP when done
    tests/fuzz/corpus.py pack FOLDER FILE             the other way

Files in FOLDER are called as libFuzzer calls them, by the SHA-1 of what is in them; others there (a seed, or
a finding, under a name of its own) are left alone and not packed. A single input: sed -n 5p FILE | base64 -d.
"""
import base64
import hashlib
import os
import re
import sys

NAME = re.compile(r'[0-9a-f]{40}')


def learnt(folder):
    """Paths of the files that are called by what is in them."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if NAME.fullmatch(name)]


def inputs_of(path):
    """The inputs of a packed file. ValueError: says which line is not as pack() writes it."""
    with open(path, encoding='ascii', errors='replace') as file:
        lines = file.read().splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(base64.b64decode(line, validate=True))
        except ValueError as error:
            raise ValueError(f'{path}:{number}: expected one input in base64: {error}') from None
        if not line or number > 1 and line <= lines[number - 2]:
            raise ValueError(f'{path}:{number}: expected sorted lines, each once and none empty: '
                             f'LC_ALL=C sort -u -o {path} {path}')
    return found


def pack(folder, path):
    lines = set()
    for name in learnt(folder):
        with open(name, 'rb') as file:
            lines.add(base64.b64encode(file.read()).decode())
    with open(path, 'w', encoding='ascii') as file:
        file.writelines(line + '\n' for line in sorted(lines - {''}))


def unpack(path, folder):
    inputs = inputs_of(path)
    os.makedirs(folder, exist_ok=True)
    for name in learnt(folder):
        os.remove(name)
    for data in inputs:
        with open(os.path.join(folder, hashlib.sha1(data).hexdigest()), 'wb') as file:
            file.write(data)


def main(arguments):
    if len(arguments) not in (3, 4) or (arguments[0], len(arguments)) not in (
            ('pack', 3), ('unpack', 3), ('unpack', 4)):
        sys.exit(__doc__)
    try:
        {'pack': pack, 'unpack': unpack}[arguments[0]](*arguments[1:3])
    except (OSError, ValueError) as error:
        sys.exit(f'corpus.py: {error}')
    if len(arguments) == 4:
        with open(arguments[3], 'w', encoding='ascii') as file:
            file.write('')


if __name__ == '__main__':
    main(sys.argv[1:])
