#!/usr/bin/env python3
"""What benchmarks/peers makes of figures and of their absence; and, as root, whether its pairs run here.

usage: peers_test.py BUILD [unittest arguments]
"""
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))
import called  # noqa: E402
import pairs  # noqa: E402
import peers  # noqa: E402
import wire  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
LIMIT_S = 120
RATE = pairs.Measure("a stream", "Gbit/s", "more")


class FiguresTest(unittest.TestCase):
    def test_ratios_are_of_the_same_run(self):
        found = pairs.Pairs()
        for figure, mercury in ((1.0, 2.0), (10.0, 10.0), (2.0, 1.0)):
            found.add("sockets", "iperf3", RATE, figure, mercury)
        (row,) = found.rows()
        self.assertEqual([*row], pairs.FIELDS)
        self.assertEqual((row["peer_median"], row["peer_least"], row["peer_most"]), (2.0, 1.0, 10.0))
        self.assertEqual((row["ratio"], row["ratio_least"], row["ratio_most"], row["runs"]), (1.0, 0.5, 2.0, 3))
        self.assertIn("| iperf3 | 2 [1, 10] | 2 [1, 10] | 1 [0.5, 2] |", pairs.table_of([row], []))

    def test_who_fails_once_has_no_figure_of_any_run(self):
        found = pairs.Pairs()
        for peer in ("iperf3", "UCX"):
            found.add("sockets", peer, RATE, 1.0, 2.0)
        found.miss("sockets", "UCX", "it was\nkilled")
        found.add("sockets", "UCX", RATE, 1.0, 2.0)
        self.assertEqual([row["peer"] for row in found.rows()], ["iperf3"])
        self.assertEqual(found.reasons(), [{"group": "sockets", "peer": "UCX", "why": "it was killed"}])
        self.assertIn("not measured, sockets: UCX: it was killed", pairs.table_of([*found.rows()], found.reasons()))

    def test_without_mercury_there_are_no_pairs_of_a_group(self):
        found = pairs.Pairs()
        for group in ("sockets", "ports"):
            found.add(group, "iperf3", RATE, 1.0, 2.0)
        found.miss("sockets", pairs.MERCURY, "no daemon")
        found.add("sockets", "iperf3", RATE, 1.0, 2.0)
        self.assertEqual([row["group"] for row in found.rows()], ["ports"])

    def test_the_first_reason_is_kept(self):
        found = pairs.Pairs()
        found.miss("ports", "dpdk-testpmd", "it is missing")
        found.miss("ports", "dpdk-testpmd", "")
        self.assertEqual(found.reasons()[0]["why"], "it is missing")

    def test_what_ucx_says_is_known_or_refused(self):
        table = "|  iterations  | 50.0%ile |\n          762      0.327   498.415   498.415      250.80     251.90        2006        2007\n"
        self.assertEqual(wire.final_of(table), {"percentile_us": 0.327, "overall_mib_per_s": 251.9})
        for said in ("", "ucx_perftest: connection refused", table.replace("0.327", "inf")):
            with self.assertRaises(pairs.NotMeasured):
                wire.final_of(said)


class Way:
    """A peer that answers at once, or does not."""

    def __init__(self, answer, there=True):
        self.answer, self.there = answer, there

    def needs(self):
        yield self.there, "no iperf3: apt-get install iperf3"

    def stream(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class SocketsTest(unittest.TestCase):
    def figures(self, **ways):
        group, found = wire.Sockets(types.SimpleNamespace(message_sizes=[], peers=[])), pairs.Pairs()
        group.ways = {pairs.MERCURY: Way((4.0, 1.0)), **ways}
        group.check(found)
        for run in range(2):
            group.turn(run, found)
        return {row["peer"]: row["ratio"] for row in found.rows() if row["unit"] == "Gbit/s"}, found.reasons()

    def test_each_peer_is_measured_beside_mercury(self):
        self.assertEqual(self.figures(one=Way((8.0, 1.0)), other=Way((2.0, 1.0))), ({"one": 0.5, "other": 2.0}, []))

    def test_who_is_not_there_is_named_with_the_package_and_not_started(self):
        figures, reasons = self.figures(one=Way((8.0, 1.0)), other=Way(RuntimeError("was started"), there=False))
        self.assertEqual(figures, {"one": 0.5})
        self.assertEqual(reasons, [{"group": "sockets", "peer": "other", "why": "no iperf3: apt-get install iperf3"}])

    def test_who_fails_leaves_the_others_figures(self):
        figures, reasons = self.figures(one=Way((8.0, 1.0)), other=Way(AssertionError("status 1")))
        self.assertEqual(figures, {"one": 0.5})
        self.assertEqual(reasons[0]["why"], "stream: status 1")

    def test_without_mercury_nobody_has_a_figure(self):
        figures, reasons = self.figures(**{pairs.MERCURY: Way(pairs.NotMeasured("the daemon has ended"))}, one=Way((8.0, 1.0)))
        self.assertEqual(figures, {})
        self.assertEqual([reason["peer"] for reason in reasons], [pairs.MERCURY])


class CalledTest(unittest.TestCase):
    """The other benchmarks, which leave what they are to leave."""

    def group(self, kind, leaves, **options):
        """One turn of it, with a program that writes `leaves`, {file: content}, where it is to."""
        found = pairs.Pairs()

        def run_other(program, *words, **_):
            words = [str(word) for word in words]
            folder = pathlib.Path(words[words.index("--out") + 1]) if "--out" in words else None
            for name, content in leaves.items():
                path = folder / name if folder else pathlib.Path(words[words.index(f"--{name}") + 1])
                path.write_text(content, encoding="utf-8")
            if not leaves:
                raise pairs.NotMeasured(f"{program}: status 1: no link")
            return "", "af_xdp-1500: no such device\n"
        group = kind(types.SimpleNamespace(build=pathlib.Path("build"), quick=True, settings=[], cores=2, **options))
        with mock.patch.object(called, "run_other", run_other), mock.patch.object(called.shutil, "which", lambda _: None):
            group.check(found)
            group.turn(0, found)
        return {row["peer"]: row["ratio"] for row in found.rows()}, {each["peer"]: each["why"] for each in found.reasons()}

    def ports(self, settings, testpmd):
        rows = [{"setting": "memif-1500", "working_set": "1MB", "testpmd": testpmd, "reference": {"median": 2e6}, "checked": {"median": 1e6},
                 "mercury": {"median": 1e6}}]
        return self.group(called.Ports, {"json": json.dumps({"rows": rows})}, seconds=1, port_settings=settings, working_sets=["1MB"])

    def test_a_port_without_testpmd_has_the_other_figure(self):
        self.assertEqual(self.ports(["memif-1500"], None),
                         ({called.Ports.LOOP: 0.5, called.Ports.CHECKED: 1.0}, {called.Ports.TESTPMD: "no dpdk-testpmd: apt-get install dpdk"}))

    def test_a_port_that_was_not_measured_is_named(self):
        figures, reasons = self.ports(["memif-1500", "af_xdp-1500"], None)
        self.assertEqual(figures, {})
        self.assertEqual(reasons[pairs.MERCURY], "af_xdp-1500: no such device")

    def test_a_library_that_is_missing_has_no_figure_though_there_is_one(self):
        rows = [{"bytes": 4, "library": library, "sums_s": [seconds]} for library, seconds in (("mercury", 1.0), ("gloo", 2.0), ("pslite", 3.0))]
        figures, reasons = self.group(called.Sums, {"sizes.json": json.dumps({"rows": rows, "not_run": {"pslite": "built without"}})},
                                      clusters=[(2, 1)], mbit=1000, sizes=["4B"])
        self.assertEqual(figures, {called.Sums.PEERS["gloo"]: 0.5})
        self.assertEqual(reasons, {called.Sums.PEERS["pslite"]: "built without"})

    def test_a_library_that_ends_an_iteration_is_alone_in_it(self):
        figures, reasons = self.group(called.Models, {}, models=["resnet50"])
        self.assertEqual(figures, {})
        self.assertEqual(reasons, dict.fromkeys(called.Models.PEERS.values(), "emulation/emulate.py: status 1: no link"))

    def test_a_record_is_read_as_it_was_written(self):
        record = "what,unit,kernel,mercury\niperf3 1 stream,Gbit/s,20,10\nZeroMQ p50,us,20,10\n"
        figures, _ = self.group(called.Programs, {"record": record})
        self.assertEqual(figures, {called.Programs.PEER: 0.5})

    def test_a_benchmark_that_fails_says_why(self):
        self.assertEqual(self.group(called.PyTorch, {}, iterations=1, gradients=["even"]),
                         ({}, {pairs.MERCURY: "pytorch/compare.py: status 1: no link"}))


class CommandTest(unittest.TestCase):
    def refused(self, *words):
        with mock.patch.object(sys, "argv", ["peers.py", *words]), contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(SystemExit) as ended:
                peers.parse()
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_what_cannot_be_is_refused_with_a_reason(self):
        for words, why in ((("--clusters", "1+1"), "expected WORKERS"), (("--clusters", "2"), "expected WORKERS"),
                           (("--runs", "0"), "above 0"), (("--groups", "rdma"), "invalid choice"), (("--peers", "rsocket"), "invalid choice")):
            self.assertIn(why, self.refused(*words))

    def test_quick_keeps_what_was_said(self):
        with mock.patch.object(sys, "argv", ["peers.py", "--quick", "--groups", "models"]):
            self.assertEqual((peers.parse().groups, peers.parse().runs), (["models"], 1))
        with mock.patch.object(sys, "argv", ["peers.py", "--runs", "2", "--quick", "--clusters", "2+2"]):
            options = peers.parse()
        self.assertEqual((options.groups, options.runs, options.clusters, options.sizes), (["sockets", "ports", "sums"], 2, [(2, 2)], ["4KB"]))


class HostsTest(unittest.TestCase):
    """The smallest run of each. Peers of Debian's packages may be missing here, and then are named."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("skipped: virtual hosts need root")
            sys.exit(77)

    def session(self, *words, **environment):
        with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
            path = pathlib.Path(folder) / "peers.json"
            done = subprocess.run([sys.executable, PEERS / "peers.py", "--quick", "--build", BUILD, "--json", path, *words],
                                  capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **environment}, check=False)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            report = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(done.returncode == 1, bool(report["not_measured"]), done.stdout)
        return report, done.stdout

    def test_what_has_a_figure_has_no_reason_and_the_other_way_around(self):
        report, _ = self.session()
        measured = {(row["group"], row["peer"]) for row in report["rows"]}
        missing = {(each["group"], each["peer"]): each["why"] for each in report["not_measured"]}
        self.assertFalse(measured & set(missing))
        self.assertTrue(all(missing.values()))
        plain = [("sockets", wire.Sockets.PEERS[name]) for name in ("epoll", "io_uring")]
        plain += [("ports", loop) for loop in (called.Ports.LOOP, called.Ports.CHECKED)]
        self.assertLessEqual(set(plain), measured, missing)
        expected = {("sockets", peer) for peer in wire.Sockets.PEERS.values()} | {("sums", peer) for peer in called.Sums.PEERS.values()}
        self.assertEqual(expected | set(plain), measured | set(missing))
        for row in report["rows"]:
            self.assertGreater(min(row["peer_median"], row["mercury_median"], row["ratio"]), 0, row)
        for what in ("machine", "kernel", "cores", "commit", "scheduling", "command"):
            self.assertTrue(report[what])

    def test_a_program_that_is_missing_is_named_with_its_package(self):
        with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
            for place in os.environ["PATH"].split(":"):
                for program in pathlib.Path(place).glob("*") if place else ():
                    link = pathlib.Path(folder) / program.name
                    if program.name != "ucx_perftest" and not link.is_symlink():
                        link.symlink_to(program)
            report, said = self.session("--groups", "sockets", "--peers", "epoll", "ucx", PATH=folder)
        ucx = wire.Sockets.PEERS["ucx"]
        self.assertEqual({row["peer"] for row in report["rows"]}, {wire.Sockets.PEERS["epoll"]})
        self.assertEqual(report["not_measured"], [{"group": "sockets", "peer": ucx, "why": "no ucx_perftest: apt-get install ucx-utils"}])
        self.assertEqual(re.findall(f".*{ucx}.*", said), [f"not measured, sockets: {ucx}: no ucx_perftest: apt-get install ucx-utils"])


if __name__ == "__main__":
    unittest.main()
