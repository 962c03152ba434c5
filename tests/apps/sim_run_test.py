#!/usr/bin/env python3
"""Runs simulations as users do. usage: sim_run_test.py SIM"""
import collections
import csv
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import frames

SIM = sys.argv.pop(1)
DISSECTOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "wireshark",
                         "mercury.lua")
LIMIT_S = 120

HEADER = "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority"
# 8 Mb/s carry a byte a microsecond.
SMALL = f"""{HEADER}
0,a,2224,f32,1000000,2000000,0
1,b,222400,f32,1000000,2000000,1
2,c,5000,bf16,0,0,2
"""
POLICIES = ["mercury", "mercury-fifo", "wfbp", "mercury:forward=tensor",
            "p3", "byteps:partition=50KB,credit=100KB", "bytescheduler:startup=0"]


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.trace = os.path.join(self.folder, "small.csv")
        with open(self.trace, "w", encoding="utf-8") as file:
            file.write(SMALL)

    def run_sim(self, *options, status=0):
        done = subprocess.run([SIM, "--quiet", *options], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, status, (options, done.stderr))
        return done

    def text(self, *options, policy="mercury"):
        return self.run_sim("--trace", self.trace, "--policy", policy, "--json", "-",
                            *options).stdout

    def figures(self, *options, policy="mercury"):
        return json.loads(self.text(*options, policy=policy))

    def test_prints_the_figures_of_every_policy(self):
        for policy in POLICIES:
            json_ = self.figures("--bandwidth", "1Gbps", policy=policy)
            self.assertGreaterEqual(json_["iteration_s"], json_["optimum_s"], policy)
            self.assertEqual((json_["retransmits"], json_["drops"]), (0, 0), policy)
            self.assertEqual(json_["bytes_up"], 4 * (2224 + 222400) + 2 * 5000, policy)
            for tensor in json_["tensors"]:
                self.assertGreater(tensor["pulled_s"], tensor["ready_s"], policy)
            for host in json_["hosts"]:
                self.assertGreater(host["wire_bytes_up"], json_["bytes_up"] / 2, policy)

    def test_agrees_with_the_equations_where_the_wire_is_the_bottleneck(self):
        for policy in ("mercury", "mercury-fifo", "wfbp"):
            json_ = self.figures("--bandwidth", "1Gbps", policy=policy)
            unhidden_s = json_["iteration_s"] - json_["latency_s"]
            self.assertAlmostEqual(unhidden_s / json_["model_s"], 1, delta=0.02, msg=policy)

    def test_repeats_itself_from_a_seed(self):
        options = ("--bandwidth", "200Mbps", "--jitter", "0.2", "--link",
                   "workers=random:100Mbps-1Gbps/1ms", "--also", self.trace + "@wfbp")
        first = self.text(*options, "--seed", "7")
        self.assertEqual(first, self.text(*options, "--seed", "7"))
        self.assertNotEqual(first, self.text(*options, "--seed", "8"))

    def test_carries_payload_and_takes_as_long_with_it(self):
        for policy in POLICIES:
            with_payload = self.figures("--payload", "--workers", "3", policy=policy)
            without = self.figures("--workers", "3", policy=policy)
            self.assertTrue(with_payload.pop("payload"))
            self.assertFalse(without.pop("payload"))
            self.assertEqual(with_payload, without, policy)

    def test_waits_for_a_partition_only_while_its_last_frame_and_the_answer_travel(self):
        with open(self.trace, "w", encoding="utf-8") as file:
            file.write(f"{HEADER}\n0,a,1000000,f32,1000000,1000000,0\n")  # 25 partitions

        def gap_s(*options):
            json_ = self.figures("--bandwidth", "500Mbps", "--delay", "25us", *options,
                                 policy="p3:startup=0")
            return json_["protocol_s"] / 24

        # The frame on the server's link, and four delays; delayed acknowledgements take 500 us more.
        self.assertAlmostEqual(gap_s(), 9038 * 8 / 500e6 + 4 * 25e-6, delta=10e-6)
        # Links that repay what they could not send while they waited.
        self.assertLess(gap_s("--bucket", "125KB"), 20e-6)

    def test_makes_slow_workers_and_links_slow(self):
        base = self.figures("--bandwidth", "1Gbps")["iteration_s"]
        for options in (["--slow", "1=3"], ["--link", "worker0.up=100Mbps"],
                        ["--link", "server1.down=100Mbps"],
                        ["--link", "all=1Gbps,1us:100Mbps"], ["--also", self.trace]):
            slower = self.figures("--bandwidth", "1Gbps", *options)["iteration_s"]
            self.assertGreater(slower, 1.3 * base, options)

    def test_says_what_is_least_only_where_the_equations_know(self):
        known = ("worker_up_bps", "oracle_s", "optimum_s", "model_s", "framing_s", "latency_s", "protocol_s")
        base = self.figures("--bandwidth", "1Gbps")
        as_rules = self.figures("--link", "all=5Gbps", "--link", "all=1Gbps")
        self.assertEqual({key: base[key] for key in known}, {key: as_rules[key] for key in known})
        for options in (["--link", "server1.down=100Mbps"], ["--link", "all=1Gbps,1us:100Mbps"],
                        ["--link", "workers=random:1Gbps-2Gbps/1ms"], ["--slow", "1=3"], ["--jitter", "0.1"]):
            json_ = self.figures("--bandwidth", "1Gbps", *options)
            self.assertEqual([json_[key] for key in ("optimum_s", "model_s", "framing_s", "protocol_s")], [0] * 4, options)
        self.assertAlmostEqual(self.figures("--slow", "1=3")["oracle_s"], 3 * base["oracle_s"])
        alike = self.figures("--slow", "0=0.5", "--slow", "1=0.5")
        self.assertGreater(alike["optimum_s"], 0)
        self.assertGreaterEqual(alike["iteration_s"], alike["optimum_s"])
        table = self.run_sim("--trace", self.trace, "--policy", "mercury", "--slow", "0=2").stdout
        self.assertRegex(table, "least possible +unknown")

    def test_survives_loss(self):
        json_ = self.figures("--bandwidth", "1Gbps", "--queue", "20KB", "--workers", "4",
                             "--servers", "1", "--payload")
        self.assertGreater(json_["drops"], 0)
        self.assertGreater(json_["retransmits"], 0)

    def test_writes_a_line_for_each_iteration(self):
        path = os.path.join(self.folder, "out.csv")
        self.figures("--csv", path, "--iterations", "4", policy="p3:startup=0")
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 2 * 4)
        self.assertEqual(rows[0]["policy"], "p3:partition=160KB,credit=160KB,startup=0ns")
        self.assertAlmostEqual(float(rows[1]["begin_s"]), float(rows[0]["iteration_s"]), 8)

    def test_writes_a_timeline(self):
        path = os.path.join(self.folder, "timeline.json")
        self.figures("--timeline", path, "--iterations", "2")
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {event["name"] for event in events}
        self.assertLessEqual({"forward a", "backward b", "c", "process_name"}, names)
        spans = [event for event in events if event["ph"] == "X"]
        self.assertEqual(len(spans), 2 * 2 * 3 * 3)  # workers, iterations, tensors, kinds
        links = [event["args"] for event in events if event["ph"] == "C" and event["pid"] == 1]
        self.assertGreater(len(links), 5)  # milliseconds
        for way in ("up", "down"):
            mean = sum(link[way] for link in links) / len(links)
            self.assertTrue(0 < mean < 10, (way, mean))
            self.assertTrue(all(0 <= link[way] < 12 for link in links), (way, links))

    def test_waits_for_updates(self):
        def iteration_s(update_ns):
            with open(self.trace, "w", encoding="utf-8") as file:
                file.write(f"{HEADER},update_ns\n0,a,22240,f32,1000000,2000000,0,{update_ns}\n")
            return self.figures("--bandwidth", "1Gbps", "--workers", "1", "--servers", "1")[
                "iteration_s"]

        # 3 ms on the GPU, 10 frames of 9010 bytes on the first link, the last on three more, four
        # delays of 1 us; there are a few acknowledgements of less than a microsecond between them.
        by_hand_s = 3e-3 + 13 * 9010 * 8 / 1e9 + 4e-6
        self.assertAlmostEqual(iteration_s(0), by_hand_s, delta=5e-6)
        self.assertAlmostEqual(iteration_s(5_000_000), by_hand_s + 5e-3, delta=5e-6)

    def dissected(self, path, *fields):
        """{values of the fields: frames}, as tshark and Mercury's dissector have them."""
        done = subprocess.run(
            ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", path, "-n", "-o",
             "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields",
             *(word for field in fields for word in ("-e", field))],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={**os.environ, "WIRESHARK_CONFIG_DIR": self.folder, "HOME": self.folder})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Lua", done.stderr)
        return collections.Counter(tuple(line.split("\t")) for line in done.stdout.splitlines())

    @unittest.skipUnless(shutil.which("tshark"), "tshark is not here")
    def test_writes_frames_that_tshark_dissects(self):
        chunks = 1 + 100 + 2  # of 8896 bytes
        for more in ([], ["--ipv6"]):
            path = os.path.join(self.folder, "frames.pcap")
            json_ = self.figures("--pcap", path, "--payload", "--iterations", "2", *more)
            self.assertEqual((json_["retransmits"], json_["drops"]), (0, 0))
            intact = self.dissected(
                path, "udp.checksum.status", "udp.dstport", "mercury.header_crc.ok",
                "mercury.payload_crc.ok", "mercury.malformed", "_ws.malformed", "_ws.expert")
            self.assertEqual(intact, {("1", "7470", "1", "1", "", "", ""): json_["frames"]})
            types = self.dissected(path, "mercury.type")
            self.assertEqual(types["8",], 2 * 2 * chunks)  # PUSH, workers times iterations
            self.assertEqual(types["9",], 2 * 2 * chunks)  # RESULT
            rounds = self.dissected(path, "mercury.type", "mercury.round", "mercury.tensor",
                                    "mercury.sender")
            for tensor, count in enumerate((1, 100, 2)):
                for number in ("1", "2"):
                    for rank in ("0", "1"):
                        self.assertEqual(rounds["8", number, str(tensor), rank], count, rounds)
            sizes = self.dissected(path, "frame.len")
            self.assertGreater(max(int(size) for size, in sizes), 8900)

    def chunks(self, *options, policy):
        """(kind, host it is from, host it is to, tensor, chunk, priority) of each chunk of round 2."""
        path = os.path.join(self.folder, "frames.pcap")
        self.figures("--pcap", path, "--payload", "--iterations", "2", *options, policy=policy)
        with open(path, "rb") as file:
            data = file.read()
        found = []
        position = 24
        while position < len(data):
            length = struct.unpack_from("<I", data, position + 8)[0]
            frame = data[position + 16:position + 16 + length]
            position += 16 + length
            mercury = frame[42:]  # Ethernet, IPv4, UDP
            if mercury[3] not in (frames.PUSH, frames.RESULT):
                continue
            round_, tensor, chunk, priority = struct.unpack_from(">IIIH", mercury, 24)
            if round_ == 2:
                found.append((mercury[3], frame[29] - 1, frame[33] - 1, tensor, chunk, priority))
        return found

    def test_servers_answer_in_the_order_of_the_policy(self):
        # The server has all of tensor 1 before tensor 0 is ready, and sends it for 70 ms.
        with open(self.trace, "w", encoding="utf-8") as file:
            file.write(SMALL.replace("1000000,2000000,0", "1000000,20000000,0"))
        links = ("--servers", "1", "--bandwidth", "10Gbps", "--server-up", "200Mbps")
        for policy, last in (("mercury", False), ("mercury:answers=fifo", True)):
            sums = [c for c in self.chunks(*links, policy=policy) if c[0] == frames.RESULT and c[2] == 0]
            self.assertEqual(len(sums), 1 + 100 + 2)
            self.assertEqual(sums[-1][3] == 0, last, policy)
            self.assertEqual({priority for *_, priority in sums}, {0} if last else {0, 1, 2}, policy)

    def test_units_are_preempted_and_answered_as_wholes(self):
        links = ("--bandwidth", "1Gbps", "--worker-up", "200Mbps")
        for policy, unit in (("mercury", 1), ("mercury:unit=100KB", 11)):
            frames_ = self.chunks(*links, policy=policy)
            # Tensor 0 is one chunk. It preempts tensor 1 on the way to its server, from both workers.
            server = next(to for kind, _, to, tensor, *_ in frames_ if kind == frames.PUSH and tensor == 0)
            seen = []
            for worker in (0, 1):
                pushed = [c[3] for c in frames_ if c[:3] == (frames.PUSH, worker, server)]
                before = pushed[:pushed.index(0)].count(1)
                self.assertLess(before, 50, policy)
                if before > 0:  # else its unit was for the other server, with which it begins
                    self.assertEqual(before % 11 == 0, unit == 11, (policy, before))
                seen.append(before)
            self.assertGreater(max(seen), 0, policy)
            first = next(n for n, c in enumerate(frames_) if c[0] == frames.RESULT and c[1] == server and c[3] == 1)
            summed = [c[1] for c in frames_[:first] if c[:1] == (frames.PUSH,) and c[2] == server and c[3] == 1]
            self.assertGreaterEqual(min(summed.count(0), summed.count(1)), unit, policy)
            if unit == 1:
                self.assertLess(min(summed.count(0), summed.count(1)), 11)

    def test_tensors_are_where_the_policy_places_them(self):
        for policy, servers in (("wfbp", [{3}, {2, 3, 4}, {2, 4}]),
                                ("wfbp:place=key", [{2}, {2 + 9973 % 3}, {2 + 2 * 9973 % 3}])):
            pushes = [c for c in self.chunks("--servers", "3", policy=policy) if c[0] == frames.PUSH]
            for tensor, hosts in enumerate(servers):
                found = {to for _, _, to, number, *_ in pushes if number == tensor}
                self.assertEqual(len(found), len(hosts), (policy, tensor, found))
                if policy != "wfbp":
                    self.assertEqual(found, hosts, (policy, tensor))
        large = os.path.join(self.folder, "large.csv")
        for numel, spread in ((999_999, False), (1_000_000, True)):
            with open(large, "w", encoding="utf-8") as file:
                file.write(f"{HEADER}\n0,a,{numel},f32,1000000,1000000,0\n")
            hosts = json.loads(self.run_sim("--trace", large, "--policy", "wfbp:place=key", "--json", "-").stdout)["hosts"]
            self.assertEqual(hosts[3]["wire_bytes_down"] > 10**6, spread, numel)

    def test_grants_follow_urgency_only_where_the_policy_says_so(self):
        trace = ("--trace", "alexnet", "--bandwidth", "100Gbps", "--iterations", "2", "--json", "-")

        def figures(policy):
            json_ = json.loads(self.run_sim(*trace, "--policy", policy).stdout)
            return json_["iteration_s"], json_["hosts"], json_["tensors"]
        self.assertNotEqual(figures("mercury"), figures("mercury:grants=even"))
        # All is of one priority.
        self.assertEqual(figures("mercury-fifo"), figures("mercury-fifo:grants=even"))

    def test_engines_that_cost_time_are_the_bottleneck_where_they_are_the_slowest(self):
        large = os.path.join(self.folder, "large.csv")
        with open(large, "w", encoding="utf-8") as file:
            file.write(f"{HEADER}\n0,a,2000000,f32,1000,1000,0\n")

        def run(*options):
            return json.loads(self.run_sim("--trace", large, "--policy", "mercury", "--json", "-", "--bandwidth",
                                           "100Gbps", "--servers", "1", *options).stdout)
        free = run()
        self.assertEqual(free, run("--frame-cost", "0"))
        for cost_us in (2, 10):
            slow = run("--frame-cost", f"{cost_us}us")
            self.assertAlmostEqual(slow["frame_cost_s"], cost_us * 1e-6, places=12)
            self.assertEqual((slow["retransmits"], slow["drops"]), (0, 0))
            server = slow["hosts"][2]
            busy_s = (server["frames_up"] + server["frames_down"]) * cost_us * 1e-6
            self.assertGreater(busy_s, 2 * free["iteration_s"])
            self.assertAlmostEqual(slow["iteration_s"] / busy_s, 1, delta=0.01, msg=cost_us)
        # A tenth of what the wire takes is hidden behind it, but for the frames at both ends.
        cheap = run("--frame-cost", "30ns")
        self.assertAlmostEqual(cheap["iteration_s"] / free["iteration_s"], 1, delta=0.01)
        self.assertEqual(cheap, run("--frame-cost", "30ns"))

    def test_without_turns_the_most_urgent_of_all_jobs_goes(self):
        late, early = (os.path.join(self.folder, name) for name in ("late.csv", "early.csv"))
        for path, priority in ((late, 9), (early, 1)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{HEADER}\n0,a,500000,f32,1000,1000,{priority}\n")
        alone = json.loads(self.run_sim("--trace", early, "--policy", "mercury", "--json", "-").stdout)["iteration_s"]
        for turns, factor in (("fair", 2), ("urgency", 1)):
            both = json.loads(self.run_sim("--trace", early, "--policy", "mercury", "--also", late, "--turns", turns,
                                           "--json", "-").stdout)
            self.assertAlmostEqual(both["iteration_s"] / alone, factor, delta=0.2, msg=turns)

    def test_keeps_what_it_finished_when_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                self.interrupt(number)

    def interrupt(self, number):
        iterations = 400  # a mark of the progress bar for ten of them
        ours, theirs = pty.openpty()  # the bar is for terminals
        self.addCleanup(os.close, ours)
        with subprocess.Popen(
                [SIM, "--trace", "vgg16", "--policy", "mercury", "--bandwidth", "100Gbps",
                 "--iterations", str(iterations), "--json", "-"], stdout=subprocess.PIPE,
                stderr=theirs, text=True) as process:
            self.addCleanup(process.kill)
            os.close(theirs)
            shown = b""
            while b"#" not in shown and select.select([ours], [], [], LIMIT_S)[0]:
                shown += os.read(ours, 4096)
            process.send_signal(number)
            out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, shown)
        json_ = json.loads(out)
        shown += os.read(ours, 4096)
        self.assertIn(f"interrupted: {json_['iterations']} of {iterations} iterations are done", shown.decode())
        self.assertTrue(json_["interrupted"])
        self.assertTrue(1 < json_["iterations"] < iterations, json_["iterations"])

    def test_takes_more_workers_and_more_servers_than_a_byte_counts(self):
        tiny = os.path.join(self.folder, "tiny.csv")
        with open(tiny, "w", encoding="utf-8") as file:
            file.write(f"{HEADER}\n0,a,4448,i32,1000000,2000000,0\n")
        # As many as a job may have: tools/nightly members.
        for workers, servers in ((257, 1), (1, 257)):
            done = self.run_sim("--trace", tiny, "--policy", "mercury", "--json", "-", "--iterations", "2",
                                "--workers", str(workers), "--servers", str(servers))
            self.assertEqual(len(json.loads(done.stdout)["hosts"]), workers + servers)
        for option in ("--workers", "--servers"):
            done = self.run_sim("--trace", tiny, "--policy", "mercury", option, "1025", status=2)
            self.assertIn("1025 not in range 1 to 1024", done.stderr)

    def test_refuses_what_makes_no_sense(self):
        def refusal(*options, status=2):
            done = self.run_sim(*options, status=status)
            self.assertEqual(done.stdout, "")
            return done.stderr

        job = ("--trace", self.trace, "--policy", "mercury")
        self.assertIn("--trace is required", refusal("--policy", "mercury"))
        self.assertIn("--policy is required", refusal("--trace", "vgg16"))
        self.assertIn("unknown policy", refusal("--trace", self.trace, "--policy", "magic"))
        self.assertNotIn("wfbp-eq7", refusal("--trace", self.trace, "--policy", "magic"))
        self.assertIn("model` alone", refusal("--trace", self.trace, "--policy", "wfbp-eq7"))
        self.assertIn("model` alone", refusal(*job, "--also", f"{self.trace}@wfbp-eq7"))
        self.assertIn("needs --payload", refusal(*job, "--pcap", "x.pcap"))
        self.assertIn("no such host", refusal(*job, "--link", "worker2=1Gbps"))
        self.assertIn("there are 2 workers", refusal(*job, "--slow", "2=2"))
        self.assertIn("there are 2 workers and 3 servers", refusal(*job, "--servers", "3", "--colocated", "3"))
        self.assertIn("the link is worker0's", refusal(*job, "--colocated", "1", "--link", "server0=1Gbps"))
        for links in (("--link", "servers=1Gbps"), ("--server-up", "1Gbps")):
            self.assertIn("no server has a link", refusal(*job, "--colocated", "2", *links))
        self.assertIn("leaves no iteration", refusal(*job, "--iterations", "1"))
        self.assertIn("less than 1280B", refusal(*job, "--queue", "1279B"))
        self.assertIn("more than 500ms", refusal(*job, "--delay", "501ms"))
        self.assertIn("more than 100us", refusal(*job, "--frame-cost", "101us"))
        for slow in (("--bandwidth", "500kbps"), ("--server-up", "500kbps"), ("--link", "all=1Gbps,1s:500kbps"),
                     ("--link", "worker0=random:500kbps-1Gbps/1s")):
            self.assertIn(f"{slow[0]}", refusal(*job, *slow))
            self.assertIn("at least 723040bps", refusal(*job, *slow))
        self.figures("--bandwidth", "724kbps")
        for bad in ("worker=1Gbps", "all", "all=", "all=fast", "all.left=1Gbps", "workerx=1Gbps",
                    "all=1Gbps,0s:2Gbps", "all=1Gbps,2s:1Gbps,1s:2Gbps",
                    "all=random:2Gbps-1Gbps/1s", "all=random:1Gbps-2Gbps", "server-1=1Gbps"):
            self.assertTrue(refusal(*job, "--link", bad), bad)
        for bad in ("0", "0=", "x=1", "0=0", "0=nan", "-1=2"):
            self.assertTrue(refusal(*job, "--slow", bad), bad)
        self.assertIn("nothere.csv", refusal("--trace", "nothere.csv", "--policy", "mercury",
                                             status=1))
        self.assertIn("cannot write", refusal(*job, "--csv", "/nowhere/x", status=1))
        for bad in ("-1", "18446744073709551616", "one", "1.5"):
            self.assertIn("from 0 to 2^64 - 1", refusal(*job, "--seed", bad), bad)

    def test_overwrites_neither_the_trace_nor_its_own_files(self):
        job = ("--trace", self.trace, "--policy", "mercury")
        link = os.path.join(self.folder, "link.csv")
        os.symlink(self.trace, link)
        with open(self.trace, encoding="utf-8") as file:
            before = file.read()
        path = os.path.join(self.folder, "out")
        rows = [(("--csv", self.trace), "overwrite the trace"), (("--json", link), "overwrite the trace"),
                (("--json", path, "--csv", path), "--csv .*would overwrite --json"),
                (("--json", "-", "--csv", "-"), "--csv - would overwrite --json"),
                (("--timeline", "-"), "--timeline -: expected a file"),
                (("--payload", "--pcap", "-"), "--pcap -: expected a file")]
        for options, expected in rows:
            self.assertRegex(self.run_sim(*job, *options, status=2).stderr, expected)
        with open(self.trace, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)
        self.assertFalse(os.path.exists(path))

    def test_jobs_share_their_hosts_until_all_are_done(self):
        fast = os.path.join(self.folder, "fast.csv")
        with open(fast, "w", encoding="utf-8") as file:
            file.write(f"{HEADER}\n0,a,2224,f32,100000,200000,0\n")
        slow = self.figures("--also", fast, "--iterations", "3")
        self.assertEqual(slow["iterations"], 3)
        self.assertGreater(slow["other_jobs"][0]["iterations"], 10)
        (tensor,) = slow["other_jobs"][0]["tensors"]
        self.assertLess(tensor["pulled_s"], slow["other_jobs"][0]["iteration_s"])

    def test_servers_on_workers_hosts_share_their_links(self):
        large = os.path.join(self.folder, "large.csv")
        numel, workers = 2_000_000, 4
        with open(large, "w", encoding="utf-8") as file:
            file.write(f"{HEADER}\n0,a,{numel},f32,1000000,2000000,0\n")
        times = {}
        for servers, colocated in ((4, 0), (4, 4), (6, 4), (6, 1)):
            said = json.loads(self.run_sim("--trace", large, "--policy", "mercury", "--bandwidth", "1Gbps", "--json", "-", "--payload",
                                           "--workers", str(workers), "--servers", str(servers), "--colocated", str(colocated)).stdout)
            self.assertEqual([(host["role"], host["rank"]) for host in said["hosts"]],
                             [("worker", rank) for rank in range(workers)] +
                             [("server", rank) for rank in range(colocated, servers)])
            self.assertEqual((said["colocated"], said["optimum_s"] == 0), (colocated, colocated > 0))
            self.assertEqual(said["server_up_bps"], 0 if colocated == servers else 1e9)
            # Up go gradients for servers on other hosts, and the own server's sums for the other workers.
            share = 1 / servers
            for host in said["hosts"]:
                up = {"worker": 1, "server": workers * share}[host["role"]]
                if host["role"] == "worker" and host["rank"] < colocated:
                    up += (workers - 2) * share
                self.assertAlmostEqual(host["wire_bytes_up"] / (4 * numel), up, delta=0.05, msg=(servers, colocated, host))
            times[servers, colocated] = said["iteration_s"]
        self.assertLess(times[6, 4], 0.95 * times[4, 4])
        self.assertLess(times[4, 0], 0.8 * times[4, 4])

    def test_leaves_no_empty_file_when_it_fails(self):
        path = os.path.join(self.folder, "figures.json")
        self.run_sim("--trace", "nothere.csv", "--policy", "mercury", "--json", path, status=1)
        self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
