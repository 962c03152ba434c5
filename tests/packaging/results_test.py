"""What run-tests makes of Meson's log of tests. Usage: results_test.py SOURCES"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(sys.argv.pop(1), "tests", "results.py")


def logged(name, result, **more):
    return json.dumps({"name": name, "stdout": "", "result": result, "starttime": 1.0, "duration": 2.0,
                       "returncode": 0, "env": {}, "command": ["x"], **more}) + "\n"


class ResultsTest(unittest.TestCase):
    def run_script(self, log):
        with tempfile.TemporaryDirectory(prefix="mercury-") as build:
            if log is not None:
                os.mkdir(f"{build}/meson-logs")
                with open(f"{build}/meson-logs/testlog.json", "w", encoding="utf-8") as file:
                    file.write(log)
            done = subprocess.run([SCRIPT, build], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout, done.stderr

    def test_all_is_counted(self):
        counts, said = self.run_script(logged("a", "OK") + logged("b", "SKIP", returncode=77) + logged("c", "OK"))
        self.assertEqual((counts, said), ("2 0 1\n", "-- slowest, s: a 2, b 2, c 2\n"))

    def test_the_slowest_are_named(self):
        _, said = self.run_script("".join(logged(f"mercury:unit / {i}", "OK", duration=i) for i in range(30)))
        self.assertEqual(said, "-- slowest, s: " + ", ".join(f"{i} {i}" for i in range(29, 17, -1)) + "\n")

    def test_whatever_is_not_fine_failed(self):
        results = ["FAIL", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS", "ERROR", "RUNNING", "what comes later"]
        counts, said = self.run_script("".join(logged(f"test {result}", result) for result in results))
        self.assertEqual(counts, f"0 {len(results)} 0 {' '.join(f'test {result}' for result in results)}\n")
        for result in results:
            self.assertIn(f"test {result}: failed", said)

    def test_what_failed_is_named_with_its_last_words(self):
        lines = "".join(f"line {i}\n" for i in range(250))
        counts, said = self.run_script(logged("mercury:unit / mine", "FAIL", stdout=lines, stderr="the reason", returncode=3) +
                                  logged("killed", "FAIL", returncode=-11) + logged("fine", "OK", stdout="dull"))
        self.assertEqual(counts, "1 2 0 mine killed\n")
        self.assertIn("-- mercury:unit / mine: failed (status 3) after 2.0 s", said)
        self.assertIn("... 150 lines before\nline 150\n", said)
        self.assertIn("line 249\n   stderr:\nthe reason\n", said)
        self.assertIn("-- killed: failed (signal 11)", said)
        self.assertNotIn("line 149\n", said)
        self.assertNotIn("dull", said)

    def test_no_log_no_tests_and_half_a_line_are_failures(self):
        for log in (None, ""):
            counts, said = self.run_script(log)
            self.assertEqual(counts, "0 1 0\n")
            self.assertIn("no test ran", said)
        counts, said = self.run_script(logged("a", "OK") + logged("b", "OK")[:40])
        self.assertEqual(counts, "1 1 0\n")
        self.assertIn("testlog.json:2: expected a test", said)


if __name__ == "__main__":
    unittest.main()
