"""MercuryVan's three modes in a tree of ps-lite: some twenty-five ways to push what all workers push and to
pull the sum, with packets lost and daemons started again; and what is refused.

usage: mercury_van_sums_test.py STACKD CTL MERCURY_RUN SOURCE_ROOT LIBRARY_FOLDER TREE [unittest arguments]

TREE: a source tree of ps-lite; "": that of BytePS's source distribution, as pslite_tree.py gets it.
PSLITE_CACHE: where it is built (a temporary folder without).
"""
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
import pslite_tree  # noqa: E402
from pslite_job import Job  # noqa: E402
from two_hosts import ProgramsTest, main, wait_until  # noqa: E402

MODES = ("transparent", "aggregate", "notify")
SUMS = None
LARGE = 16_000_000  # bytes of the largest key
# Sum, and the sum that servers add to what they have.
COMMANDS = "1,2"


class Sums(ProgramsTest):
    def job(self, mode, *arguments, by_role=None, **environment):
        environment = {"DMLC_PS_VAN_TYPE": "mercury", "MERCURY_PSLITE_MODE": mode, "MERCURY_PSLITE_COMMANDS": COMMANDS,
                       **environment}
        return Job(self.hosts, [SUMS, mode, *arguments], mercury=False, by_role=by_role, **environment)

    def rounds(self, worker):
        with open(worker.kept["stdout"].name) as file:
            return len(re.findall("^round", file.read(), re.MULTILINE))

    def seen(self, server):
        """What a server that has ended had counted: {"contributions": ..., "merged": ..., "plain": ..., "pulls": ...}"""
        with open(server.kept["stdout"].name) as file:
            words = file.read().split()
        return {name: int(count) for name, count in zip(words[::2], words[1::2])}

    def in_each_mode(self):
        for mode in MODES:
            with self.subTest(mode=mode):
                yield mode
                self.hosts.end_programs()

    def test_each_sum_is_that_of_all_workers(self):
        for mode in self.in_each_mode():
            self.job(mode, 1).ends_well()

    def test_what_servers_see(self):
        seen = {}
        for mode in self.in_each_mode():
            job = self.job(mode, 1, "rounds_in_a_row", "own_values", "pull_before_push")
            job.ends_well()
            seen[mode] = [self.seen(server) for server in job.servers]
        # Of each worker: rounds, and of own values three pushes, and first values; pulls alike.
        rounds, own, firsts = 10 + 1, 2 * 3, 1
        for server in seen["transparent"]:
            self.assertEqual(server, {"contributions": 2 * rounds, "merged": 0, "plain": own + firsts,
                                      "pulls": 2 * rounds + own + 2 * firsts})
        for server in seen["aggregate"]:
            self.assertEqual(server, {"contributions": 0, "merged": 0, "plain": own + firsts, "pulls": own + 2 * firsts})
        for server in seen["notify"]:
            self.assertEqual(server, {"contributions": 0, "merged": rounds, "plain": own + firsts,
                                      "pulls": 2 * rounds + own + 2 * firsts})

    def test_sums_of_aggregators_are_no_bytes_of_sockets(self):
        with self.carries(at_least=0, at_most=1_000_000):
            self.job("aggregate", 1, "large").ends_well()
        with self.carries(at_least=2 * LARGE):
            self.job("notify", 1, "large").ends_well()

    def test_the_first_worker_pushes_first_values_by_the_command_of_all(self):
        for mode in self.in_each_mode():
            job = self.job(mode, 3, "first_by_rank_zero", MERCURY_PSLITE_FIRST="rank0")
            job.ends_well()
            self.assertEqual([self.seen(server)["plain"] for server in job.servers], [3, 3])

    def test_keys_that_are_not_named_are_no_sums(self):
        job = self.job("notify", 1, "one_key", MERCURY_PSLITE_KEYS="5000-6000")
        self.assertTrue(wait_until(lambda: any(server.poll() for server in job.servers)))
        self.assertIn("a push of another sender than the mode says", "".join(map(job.said, job.servers)))

    def test_packets_are_lost(self):
        for host in "ab":
            self.hosts.lose(host, 1)
        try:
            for mode in self.in_each_mode():
                self.job(mode, 1).ends_well()
        finally:
            for host in "ab":
                self.hosts.lose_nothing(host)

    def test_a_daemon_that_is_killed_and_started_again_costs_no_sum(self):
        for mode in self.in_each_mode():
            job = self.job(mode, 6, "rounds_in_a_row", "keys_in_flight", "other_orders", "around_256_kib", "threads")
            for done, host in ((1, "b"), (3, "a")):
                self.assertTrue(wait_until(lambda: min(map(self.rounds, job.workers)) >= done), self.all_said(job))
                self.hosts.kill_daemon(host)
                self.hosts.start_daemon(host)
            job.ends_well()
            self.assertEqual([self.rounds(worker) for worker in job.workers], [6, 6])

    def all_said(self, job):
        return "\n".join(job.said(process)[-2000:] for process in job.processes)

    def refused(self, mode, words, *patterns, **environment):
        job = self.job(mode, 1, *patterns, **environment)
        self.assertTrue(wait_until(lambda: words in "".join(map(job.said, job.processes))), self.all_said(job))
        self.assertTrue(wait_until(lambda: any(process.poll() for process in job.processes)), "nobody ended")
        self.hosts.end_programs()

    def test_what_would_be_wrong_is_refused(self):
        self.refused("aggregate", "an optimiser is sent to the servers", "refused_optimiser")
        self.refused("notify", "workers 0 and 1 push 40 and 44 bytes", "refused_lengths")
        self.refused("aggregate", "workers push a key differently", "refused_lengths")
        self.refused("notify", "push them apart", "both_keys", MERCURY_PSLITE_KEYS="0")
        self.refused("notify", "by customers 0 and 2 of one worker", "two_customers")
        for mode in ("aggregate", "notify"):
            self.refused(mode, "PS_RESEND is set", "one_key", PS_RESEND=1)
        self.refused("transparent", "MERCURY_PSLITE_MODE is 'both': expected transparent, aggregate or notify", "one_key",
                     MERCURY_PSLITE_MODE="both")

    def test_variables_that_differ_between_workers_are_refused(self):
        for mode, name, value in (("aggregate", "FIRST", "rank0"), ("notify", "FIRST", "all"), ("aggregate", "KEYS", "0-7"),
                                  ("notify", "COMMANDS", "1")):
            with self.subTest(mode=mode, name=name):
                self.refused(mode, "do not take the same pushes for parts of sums: set the same", "one_key",
                             by_role={"worker 1": {f"MERCURY_PSLITE_{name}": value}})

    def test_modes_that_differ_are_refused(self):
        job = self.job("notify", 1, "one_key", by_role={"server": {"MERCURY_PSLITE_MODE": "transparent"}})
        self.assertTrue(wait_until(lambda: any(worker.poll() for worker in job.workers)), self.all_said(job))
        self.assertIn("different MERCURY_PSLITE_MODE", self.all_said(job))


if __name__ == "__main__":
    source, library, tree = sys.argv[4:7]
    del sys.argv[4:7]
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        cache = os.environ.get("PSLITE_CACHE", folder)
        SUMS = pslite_tree.build_with_van(tree or pslite_tree.tree(cache), cache, source, library, ["pslite_sums"])["pslite_sums"]
        main()
