"""The fuzzers' packed corpora, and the script that packs them. Usage: corpus_test.py ROOT"""
import os
import subprocess
import sys
import tempfile
import unittest

FUZZ = os.path.join(sys.argv.pop(1), 'tests', 'fuzz')


def script(*arguments):
    return subprocess.run([sys.executable, os.path.join(FUZZ, 'corpus.py'), *arguments], capture_output=True,
                          text=True, check=False)


def text_of(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


class CorpusTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='mercury-')
        self.addCleanup(folder.cleanup)
        self.folder, self.file = os.path.join(folder.name, 'inputs'), os.path.join(folder.name, 'x.base64')

    def write(self, path, text):
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)

    def test_committed_files_are_as_packing_makes_them(self):
        packed = sorted(name for name in os.listdir(f'{FUZZ}/corpus') if name.endswith('.base64'))
        self.assertEqual(len(packed), 8)
        for name in packed:
            source = f'{FUZZ}/corpus/{name}'
            self.assertEqual(script('unpack', source, self.folder).stderr, '')
            self.assertEqual(len(os.listdir(self.folder)), text_of(source).count('\n'), name)
            self.assertEqual(script('pack', self.folder, self.file).returncode, 0)
            self.assertEqual(text_of(self.file), text_of(source), name)

    def test_what_has_a_file_of_its_own_has_a_name(self):
        for folder, _, names in os.walk(f'{FUZZ}/corpus'):
            for name in names:
                self.assertNotRegex(name, '^[0-9a-f]{40}$', f'{folder}: add it to a packed file, or name it')

    def test_files_are_called_by_what_is_in_them_and_others_stay(self):
        self.write(self.file, 'AA==\nYWJj\n')
        os.mkdir(self.folder)
        for name in ('golden_ack', '0' * 40):
            self.write(os.path.join(self.folder, name), 'old')
        self.assertEqual(script('unpack', self.file, self.folder).returncode, 0)
        abc = 'a9993e364706816aba3e25717850c26c9cd0d89d'  # FIPS 180-4's example
        self.assertEqual(sorted(os.listdir(self.folder)), ['5ba93c9db0cff93f52b521d7420e43f6eda2784f', abc, 'golden_ack'])
        self.assertEqual(text_of(os.path.join(self.folder, abc)), 'abc')
        self.assertEqual(script('pack', self.folder, self.file).returncode, 0)
        self.assertEqual(text_of(self.file), 'AA==\nYWJj\n')

    def test_what_is_wrong_with_a_packed_file_is_said(self):
        for text, line, wrong in (('AA==\nY*Jj\n', 2, 'base64'), ('YWJj\nAA==\n', 2, 'sort -u'),
                                  ('AA==\nAA==\n', 2, 'sort -u'), ('\nAA==\n', 1, 'none empty')):
            self.write(self.file, text)
            said = script('unpack', self.file, self.folder)
            self.assertEqual(said.returncode, 1)
            self.assertIn(f'{self.file}:{line}: expected', said.stderr)
            self.assertIn(wrong, said.stderr)
            self.assertFalse(os.path.exists(self.folder))
        self.assertIn('No such file', script('pack', self.folder, self.file).stderr)


if __name__ == '__main__':
    unittest.main()
