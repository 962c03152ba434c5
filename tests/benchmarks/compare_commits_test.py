#!/usr/bin/env python3
"""tools/compare-commits, of a tiny repository whose benchmarks say what they are told to: turns, ratios, what is told apart,
what is refused, and that nothing is left."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ("compare-commits", "recording.py", "turns.py")
LIMIT_S = 60
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import turns  # noqa: E402

# Each turn of the machine takes longer than the last one.
BENCH = """\
    #!/usr/bin/env python3
    import json, os, signal, sys
    if os.environ.get("HANG") == "bench":
        with open(os.environ["HERE"], "w") as here:
            here.write(str(os.getpid()))
        signal.pause()
    with open(os.environ["TURNS"], "a+") as log:
        log.write("NAME\\n")
        log.seek(0)
        turn = len(log.readlines())
    time_of = lambda cost: {"cpu_time": cost * (100 + turn), "time_unit": "us", "counter_ns": cost}
    error_of = lambda why: {"error_occurred": True, "error_message": why}
    print(json.dumps({"benchmarks": [{"name": name, **(error_of(it) if isinstance(it, str) else time_of(it))} for name, it in FIGURES.items()]}))
    """
COPY = """\
    import os, shutil, signal, sys
    if os.environ.get("HANG") == "build":
        with open(os.environ["HERE"], "w") as here:
            here.write(str(os.getpid()))
        signal.pause()
    shutil.copy(*sys.argv[1:])
    """
COUNTING = """\
    import json, os, sys
    assert sys.argv[2:] == ["--rewrite"] and os.path.isfile(sys.argv[1])
    with open(os.path.join(os.path.dirname(__file__), "instructions.json"), "w") as file:
        json.dump(HELD, file)
    """
RECIPES = {
    "meson.build": "project('tiny')\npython = find_program('python3')\ncopy = files('copy.py')\nsubdir('benchmarks')\nsubdir('tests')\n",
    "benchmarks/meson.build": "subdir('scheduler')\n",
    "benchmarks/scheduler/meson.build": "custom_target('bench', input: 'bench.py', output: 'scheduler_bench', "
                                        "command: [python, copy, '@INPUT@', '@OUTPUT@'])\n",
    "tests/meson.build": "subdir('behaviour')\n",
    "tests/behaviour/meson.build": "custom_target('cost', input: 'meson.build', output: 'chunk_cost', "
                                   "command: [python, copy, '@INPUT@', '@OUTPUT@'])\n",
    ".gitignore": "__pycache__/\n",
}


class TurnsTest(unittest.TestCase):
    def figures(self, before, after, drift, runs=5):
        """Of a machine that takes `drift` times as long at each turn."""
        taken = iter(range(2 * runs))
        run_of = {way: lambda cost=cost: {"cut": cost * drift ** next(taken)} for way, cost in (("before", before), ("after", after))}
        return turns.run_in_turns(run_of, runs)[0]["cut"]

    def test_every_second_run_goes_the_other_way_around(self):
        order = []
        turns.run_in_turns({way: lambda way=way: order.append(way) or {} for way in ("before", "after")}, 4)
        self.assertEqual(" ".join(order), "before after after before before after after before")

    def test_a_machine_that_drifts_is_no_difference(self):
        for drift in (1.0, 1.01, 0.9):
            self.assertEqual(self.figures(100, 100, drift).verdict(), "", drift)

    def test_own_ratios_are_of_turns_that_follow_each_other(self):
        found = self.figures(100, 200, 1.5)
        self.assertEqual([round(ratio, 3) for ratio in found.own_ratios()], [1.5] * 4)
        self.assertEqual([round(ratio, 3) for ratio in found.ratios()], [3, 1.333, 3, 1.333, 3])

    def test_a_difference_counts_if_every_run_has_it_and_it_exceeds_the_spread(self):
        self.assertEqual(self.figures(100, 110, 1.01).verdict(), "slower")
        self.assertEqual(self.figures(100, 90, 1.01).verdict(), "faster")
        self.assertEqual(self.figures(100, 110, 1.2).verdict(), "", "each ratio is of one side but one turn costs more")
        self.assertEqual(turns.Figures([10, 10, 10], [15, 9, 15]).verdict(), "", "one run says otherwise")
        self.assertEqual(turns.Figures([10, 10, 20], [11, 22, 21]).verdict(), "", "it differs from itself by as much")

    def test_what_fails_once_or_is_on_one_side_alone_has_no_figure(self):
        fails = iter([1.0, turns.NotMeasured("no room"), 1.0])
        run_of = {"before": lambda: {"cut": 1.0, "gone": 1.0, "both": 1.0}, "after": lambda: {"cut": next(fails), "new": 1.0, "both": 2.0}}
        figures, missing = turns.run_in_turns(run_of, 3)
        self.assertEqual(list(figures), ["both"])
        self.assertEqual(missing, {"cut": "after: no room", "gone": "after: there is no such benchmark", "new": "before: there is no such benchmark"})


class RealTest(unittest.TestCase):
    """What it says of this tree."""

    def setUp(self):
        loader = importlib.machinery.SourceFileLoader("compare_commits", str(ROOT / "tools/compare-commits"))
        self.tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare_commits", loader))
        loader.exec_module(self.tool)

    def test_its_options_are_those_of_a_build(self):
        setup = re.search(r"meson setup build (.*?) >", (ROOT / "tools/build").read_text(encoding="utf-8"))
        self.assertEqual(setup[1].split(), self.tool.OPTIONS)

    def test_its_programs_are_there(self):
        for program in [*map(self.tool.bench_of, self.tool.BENCHES), *self.tool.COUNTED]:
            self.assertTrue((ROOT / f"{program}.cc").is_file(), program)
        self.assertTrue((ROOT / self.tool.COUNTING).is_file())


class RepositoryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root, self.temporary = self.folder / "tiny", self.folder / "temporary"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TURNS": str(self.folder / "turns"), "HERE": str(self.folder / "here"), "TMPDIR": str(self.temporary),
                            "GIT_CONFIG_GLOBAL": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
        (self.root / "tools").mkdir(parents=True)
        for name in TOOLS:
            shutil.copy(ROOT / "tools" / name, self.root / "tools" / name)
        for path, text in {**RECIPES, "copy.py": textwrap.dedent(COPY)}.items():
            self.write(path, text)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.email", "tests@example.org")
        self.git("config", "user.name", "Tests")

    def git(self, *words):
        return subprocess.run(["git", "-C", self.root, *words], check=True, capture_output=True, text=True, env=self.environment).stdout

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def write_bench(self, name, figures):
        self.write("benchmarks/scheduler/bench.py", textwrap.dedent(BENCH).replace("NAME", name).replace("FIGURES", repr(figures)))
        (self.root / "benchmarks/scheduler/bench.py").chmod(0o755)

    def commit(self, name, figures, held):
        """With a tag of that name."""
        self.write_bench(name, figures)
        self.write("tests/behaviour/instructions_test.py", textwrap.dedent(COUNTING).replace("HELD", repr(held)))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"Do {name}")
        self.git("tag", name)

    def commit_two(self):
        self.commit("one", {"cut": 1, "same": 5, "seal": "this CPU cannot seal"}, {"MTU 1500": {"compiler": "gcc", "server": 100.0, "workers": 50.0}})
        self.commit("two", {"cut": 2, "same": 5, "seal": 1}, {"MTU 1500": {"compiler": "gcc", "server": {"bound": 110.0, "reason": "more"}, "workers": 50.1}})

    def start(self, *words, **environment):
        return subprocess.Popen([sys.executable, self.root / "tools/compare-commits", *words], env={**self.environment, **environment},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def compare(self, *words, status=0, **environment):
        """What it said; and nothing is left."""
        process = self.start(*words, **environment)
        said, errors = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, status, said + errors)
        self.check_nothing_is_left()
        return said + errors

    def check_nothing_is_left(self):
        self.assertEqual(len(self.git("worktree", "list").splitlines()), 1)
        self.assertEqual(os.listdir(self.temporary), [])

    def test_both_run_in_turns_and_what_differs_is_named(self):
        self.commit_two()
        said = self.compare("one", "two", "--runs", "3", "--json", str(self.folder / "out.json"), "--", "scheduler", "instructions", status=1)
        self.assertEqual((self.folder / "turns").read_text(encoding="utf-8").split(), ["one", "two", "two", "one", "one", "two"])
        result = json.loads((self.folder / "out.json").read_text(encoding="utf-8"))
        rows = {row["what"]: row for row in result["rows"]}
        self.assertEqual(rows["scheduler cut"]["before"], {"median": 104e3, "least": 101e3, "most": 105e3})
        self.assertAlmostEqual(rows["scheduler cut"]["ratio"]["median"], 2 * 106 / 105)
        self.assertEqual((rows["scheduler cut"]["verdict"], rows["scheduler same"]["verdict"]), ("slower", ""))
        self.assertEqual(rows["scheduler cut counter_ns"]["ratio"]["median"], 2)
        self.assertEqual([(row["what"], row["before"], row["after"], row["verdict"]) for row in result["counted"]],
                         [("MTU 1500, server", 100.0, 110.0, "more"), ("MTU 1500, workers", 50.0, 50.1, "")])
        self.assertIn("\nslower: scheduler cut, scheduler cut counter_ns\n", said)
        self.assertIn("\nmore: MTU 1500, server\n", said)
        self.assertIn("not measured, scheduler seal: before: this CPU cannot seal", said)
        self.assertRegex(said, "before is [0-9a-f]+ Do one, after is [0-9a-f]+ Do two; ")

    def test_a_commit_beside_itself_tells_nothing_apart(self):
        self.commit("one", {"cut": 1}, {})
        self.assertIn("nothing was told apart", self.compare("one", "HEAD", "--", "scheduler"))

    def test_the_checkout_is_compared_as_it_is_and_stays_so(self):
        self.commit("one", {"cut": 1}, {})
        self.write_bench("mine", {"cut": 3})
        before = self.git("status", "--porcelain")
        self.assertIn("slower: scheduler cut", self.compare("one", ".", "--runs", "3", "scheduler"))
        self.assertEqual((self.folder / "turns").read_text(encoding="utf-8").split()[:3], ["one", "mine", "mine"])
        self.assertEqual((self.git("status", "--porcelain"), self.git("stash", "list")), (before, ""))
        self.write("new.cc", "")
        self.assertIn("'.' would lack new.cc", self.compare("one", ".", status=2))

    def test_what_cannot_be_compared_is_refused_with_what_to_do(self):
        self.commit("one", {"cut": 1}, {})
        for words, why in ((("one", "v9"), "git knows no commit 'v9'"), (("one", "one", "--", "schedule"), "expected scheduler, wire"),
                           (("one", "one", "--", "wire:("), "'(' is no regular expression"), (("one", "one", "--runs", "2"), "expected 3 or more"),
                           (("one", "one", "--", "instructions:x"), "no benchmark 'instructions:x'"),
                           (("one", "one", "--json", "/nowhere/x"), "there is no folder /nowhere"), (("one",), "required: after")):
            self.assertIn(why, self.compare(*words, status=2))
        path = self.folder / "path"
        path.mkdir()
        for tool in ("git", "meson"):
            (path / tool).symlink_to(shutil.which(tool))
        self.assertIn("no ninja, valgrind, callgrind_annotate: tools/install-packages --tests", self.compare("one", "one", PATH=str(path), status=2))

    def test_a_commit_without_a_program_is_named_and_one_that_does_not_build(self):
        self.commit("one", {"cut": 1}, {})
        self.assertIn("not measured, wire: before has no benchmarks/wire/wire_bench", self.compare("one", "one", "--", "wire", status=1))
        self.write("meson.build", "project('tiny')\nno_such_thing()\n")
        self.git("commit", "--quiet", "--all", "--message", "Break it")
        said = self.compare("one", "HEAD", "--", "scheduler", status=2)
        self.assertIn("building after: ", said)
        self.assertIn("no_such_thing", said)

    def test_regexes_of_one_program_are_one(self):
        self.commit("one", {"cut": 1}, {})
        self.write("benchmarks/scheduler/bench.py", '#!/bin/sh\necho "$@" >&2\nexit 1\n')
        self.assertIn("--benchmark_filter=cut/1$|admit", self.compare("one", ".", "scheduler:cut/1$", "scheduler:admit", status=1))

    def test_a_program_that_fails_has_no_figure(self):
        self.commit("one", {"cut": 1}, {})
        self.write("benchmarks/scheduler/bench.py", "#!/bin/sh\necho out of memory >&2\nexit 3\n")
        self.assertIn("not measured, scheduler: out of memory", self.compare("one", ".", "scheduler", status=1))

    def test_nothing_is_left_of_what_is_interrupted(self):
        self.commit("one", {"cut": 1}, {})
        os.mkfifo(self.folder / "here")
        for hang, number in (("build", signal.SIGINT), ("bench", signal.SIGTERM), ("bench", signal.SIGHUP)):
            with self.subTest(hang=hang, signal=number):
                process = self.start("one", "one", "--", "scheduler", HANG=hang)
                with open(self.folder / "here", encoding="utf-8") as here:
                    pid = int(here.read())
                process.send_signal(number)
                process.communicate(timeout=LIMIT_S)
                self.assertEqual(process.returncode, 128 + number)
                self.assertFalse(os.path.exists(f"/proc/{pid}"), "what it started is still there")
                self.check_nothing_is_left()


if __name__ == "__main__":
    unittest.main()
