"""MercuryVan in a tree of ps-lite: some twenty ways to push and pull, with packets lost, a daemon started
again, processes killed; and what it refuses.

usage: mercury_van_test.py STACKD CTL MERCURY_RUN SOURCE_ROOT LIBRARY_FOLDER TREE [unittest arguments]

TREE: a source tree of ps-lite; "": that of BytePS's source distribution, as pslite_tree.py gets it.
PSLITE_CACHE: where it is built (a temporary folder without).
"""
import os
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
import pslite_tree  # noqa: E402
from pslite_job import Job  # noqa: E402
from two_hosts import ProgramsTest, main, wait_until  # noqa: E402

PATTERNS = TREE = None
LARGE = 2 * 8_000_000  # the largest tensor, from host to host and back


class MercuryVan(ProgramsTest):
    def job(self, *arguments, **environment):
        return Job(self.hosts, [PATTERNS, *arguments], mercury=False, DMLC_PS_VAN_TYPE="mercury", **environment)

    def rounds(self, worker):
        with open(worker.kept["stdout"].name) as file:
            return file.read().count("round")

    def has_pushed(self, worker):
        with open(worker.kept["stdout"].name) as file:
            return "pushed" in file.read()

    def test_all_that_is_pulled_is_what_was_pushed(self):
        with self.carries(at_least=2 * LARGE):
            self.job(2).ends_well()

    def test_what_is_no_tensor_is_zeromqs(self):
        with self.carries(at_least=0, at_most=10_000):
            self.job(1, "words", "barriers").ends_well()

    def test_packets_are_lost(self):
        for host in "ab":
            self.hosts.lose(host, 2)
        try:
            with self.carries(at_least=LARGE):
                self.job(1).ends_well()
        finally:
            for host in "ab":
                self.hosts.lose_nothing(host)

    def test_a_daemon_that_is_killed_and_started_again_costs_no_message(self):
        job = self.job(6, "around_256_kib", "outstanding", "sum_of_all", "threads", "answered_in_reverse")
        for done, host in ((1, "b"), (3, "a")):
            self.assertTrue(wait_until(lambda: min(map(self.rounds, job.workers)) >= done), job.said(job.workers[0]))
            self.hosts.kill_daemon(host)
            self.hosts.start_daemon(host)
        job.ends_well()
        self.assertEqual([self.rounds(worker) for worker in job.workers], [6, 6])

    def test_a_worker_that_is_killed_leaves_the_other_at_work(self):
        job = self.job(100_000, "own_key", "outstanding")
        self.assertTrue(wait_until(lambda: min(map(self.rounds, job.workers)) >= 1), job.said(job.workers[0]))
        job.kill(job.workers[0])
        done = self.rounds(job.workers[1])
        self.assertTrue(wait_until(lambda: self.rounds(job.workers[1]) >= done + 3), job.said(job.workers[1]))
        self.assertEqual([process.poll() for process in (job.scheduler, *job.servers)], [None] * 3)

    def test_an_answer_to_a_worker_that_has_gone_is_not_its_successors(self):
        job = self.job(1, "held", PS_HEARTBEAT_INTERVAL=1, PS_HEARTBEAT_TIMEOUT=3)
        self.assertTrue(wait_until(lambda: all(map(self.has_pushed, job.workers))), job.said(job.workers[0]))
        time.sleep(1)  # until the pushes are there
        job.kill(job.workers[0])
        time.sleep(6)  # until the scheduler takes it for dead
        job.common["PSLITE_TAKES_A_PLACE"] = 1
        other = job.start("b", "worker")
        self.assertTrue(wait_until(lambda: other.poll() is not None), job.said(other))
        self.assertEqual([other.poll(), job.workers[1].wait(30)], [0, 0], job.said(other)[-2000:])

    def test_a_worker_that_was_replaced_and_comes_back_is_refused(self):
        job = self.job(100_000, "own_key", "outstanding", PS_HEARTBEAT_INTERVAL=1, PS_HEARTBEAT_TIMEOUT=3)
        self.assertTrue(wait_until(lambda: min(map(self.rounds, job.workers)) >= 1), job.said(job.workers[0]))
        job.workers[0].send_signal(signal.SIGSTOP)
        time.sleep(6)  # until the scheduler takes it for dead
        job.common["PSLITE_TAKES_A_PLACE"] = 1
        other = job.start("b", "worker")
        self.assertTrue(wait_until(lambda: self.rounds(other) >= 3), job.said(other))
        job.workers[0].send_signal(signal.SIGCONT)
        self.assertTrue(wait_until(lambda: all("a process comes back as worker" in job.said(server) for server in job.servers)),
                        job.said(job.servers[0]))
        done = self.rounds(other)
        self.assertTrue(wait_until(lambda: self.rounds(other) >= done + 3), job.said(other))
        self.assertEqual([process.poll() for process in (job.scheduler, *job.servers, job.workers[1], other)], [None] * 5)

    def test_a_server_that_is_killed_stops_its_workers_and_no_other_job(self):
        job = self.job(100_000, "own_key", "outstanding")
        self.assertTrue(wait_until(lambda: min(map(self.rounds, job.workers)) >= 1), job.said(job.workers[0]))
        job.kill(job.servers[1])
        with self.carries(at_least=100_000):
            self.job(1, "outstanding").ends_well()
        self.assertEqual([process.poll() for process in job.workers], [None] * 2)

    def test_what_would_be_wrong_is_refused(self):
        refused = {"PS_RESEND": 1, "PS_DROP_MSG": 10, "DMLC_LOCAL": 1}
        if os.path.exists(f"{TREE}/src/van_common.h"):
            refused["DMLC_ENABLE_RDMA"] = "ibverbs"
        for name, value in refused.items():
            with self.subTest(name=name):
                job = self.job(1, "own_key", **{name: value})
                self.assertTrue(wait_until(lambda: all(process.poll() for process in job.processes)))
                self.assertIn(f"{name} is set", job.said(job.workers[0]))


if __name__ == "__main__":
    source, library, TREE = sys.argv[4:7]
    del sys.argv[4:7]
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        cache = os.environ.get("PSLITE_CACHE", folder)
        TREE = TREE or pslite_tree.tree(cache)
        built = pslite_tree.build_with_van(TREE, cache, source, library, ["pslite_patterns"])
        PATTERNS = built["pslite_patterns"]
        main()
