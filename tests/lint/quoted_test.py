#!/usr/bin/env python3
"""What documents quote is what docs/records has. Usage: quoted_test.py ROOT

docs/records/quoted.toml says which figures stand where; its head says how.
"""
import csv
import os
import re
import statistics
import sys
import tomllib
import types
import unittest

ROOT = sys.argv.pop(1)
RECORDS = os.path.join(ROOT, 'docs', 'records')
ABOUT = ['date', 'commit', 'machine', 'command']
# A decimal, or a number with a unit that something was measured in.
FIGURE = re.compile(r'(?<![\w.,/-])\d[\d,]*(?:\.\d+| ?(?:%|ns|us|ms|s|[GM]B/s|[GM]b/s|times)(?![\w]))')


class Column:
    """The figures of a column in the rows that were selected, oldest first."""

    def __init__(self, values):
        self.least, self.most = min(values), max(values)
        self.median, self.last, self.sum = statistics.median(values), values[-1], sum(values)


def rows_of(name):
    with open(os.path.join(RECORDS, name), newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def selected(rows, where):
    """Rows whose columns have the values given; 'a|b' is either."""
    return [row for row in rows if all(row[column] in value.split('|') for column, value in where.items())]


def columns(rows):
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name]]
        if name not in ABOUT and values and all(re.fullmatch(r'-?\d+(\.\d+)?', value) for value in values):
            found[name] = Column([float(value) for value in values])
    return found


def prose(path):
    """A document on one line."""
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        return ' '.join(file.read().split())


def without_code(text):
    """A document's lines without code blocks, `code`, links' targets and headings' marks."""
    text = re.sub(r'^```.*?^```', '', text, flags=re.M | re.S)
    text = re.sub(r'^(?: {4}|\t).*$', '', text, flags=re.M)
    text = re.sub(r'`[^`]*`', '', text)
    return ' '.join(re.sub(r'\]\([^)]*\)', ']', text).split())


def quoted():
    with open(os.path.join(RECORDS, 'quoted.toml'), 'rb') as file:
        return tomllib.load(file)


def filled(quote):
    rows = selected(rows_of(quote['records']), quote.get('where', {}))
    if not rows:
        raise ValueError(f"{quote['records']} has no row of {quote.get('where')}")
    known = columns(rows)
    if 'over' in quote:
        known['over'] = types.SimpleNamespace(**columns(selected(rows_of(quote['records']), quote['over'])))
        known['times'] = known[quote['times_of']].median / getattr(known['over'], quote['times_of']).median
    return ' '.join(quote['text'].format(**known).split())


class Quoted(unittest.TestCase):

    def test_every_record_says_what_it_was_taken_with(self):
        for name in sorted(os.listdir(RECORDS)):
            if name.endswith('.csv'):
                rows = rows_of(name)
                self.assertEqual(list(rows[0])[:4], ABOUT, name)
                for number, row in enumerate(rows, 2):
                    with self.subTest(file=name, line=number):
                        self.assertRegex(row['date'], r'^\d{4}-\d\d-\d\d$')
                        self.assertRegex(row['commit'], r'^([0-9a-f]{7}\+?|unknown)$')
                        self.assertTrue(row['machine'] and row['command'])

    def test_documents_quote_the_records(self):
        for quote in quoted()['quoted']:
            with self.subTest(document=quote['document'], text=quote['text']):
                self.assertIn(filled(quote), prose(quote['document']))

    def test_no_figure_stands_in_a_document_that_nobody_recorded(self):
        held = quoted()
        for document in held['whole']:
            with open(os.path.join(ROOT, document), encoding='utf-8') as file:
                text = without_code(file.read())
            known = [filled(quote) for quote in held['quoted'] if quote['document'] == document]
            for given in held['given']:
                if given['document'] == document:
                    known.append(' '.join(given['text'].split()))
            # Of a quoted text, too, code is left out.
            for words in sorted({without_code(words) for words in known}, key=len, reverse=True):
                text = text.replace(words, ' ... ')
            left = [text[max(0, found.start() - 40):found.end() + 20] for found in FIGURE.finditer(text)]
            self.assertEqual(left, [], document)

    def test_figures_are_found(self):
        self.assertEqual(FIGURE.findall('it takes 3.4 ns, 21 us or 5 % of 1,424 bytes at MTU 1500'), ['3.4', '21 us', '5 %'])


if __name__ == '__main__':
    unittest.main()
