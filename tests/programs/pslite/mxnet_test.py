"""MXNet's wheel that was never changed, kvstore='dist_sync', on two workers, two servers and a scheduler between two
hosts: what it prints over Mercury is the kernel's, digit for digit, with updates on servers and on workers,
and through what it survives over the kernel.

usage: mxnet_test.py STACKD CTL MERCURY_RUN TRAIN [unittest arguments]

TRAIN: the script of examples/mxnet. PSLITE_CACHE: where MXNet is unpacked (a temporary folder without).
"""
import contextlib
import os
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
import mxnet_wheel  # noqa: E402
from pslite_job import Job  # noqa: E402
from two_hosts import BOTH, PATIENT, ProgramsTest, main, netlab, wait_until  # noqa: E402

PACKAGES = TRAIN = None
UPDATE_ON = ("servers", "workers")
EPOCHS, ITERATIONS = 3, 11  # of an epoch: 1438 images in batches of 128
MODEL_BYTES = 283_786 * 4
# Each iteration every worker pushes its gradients and pulls sums or weights; before the first, one pushes the
# weights and all pull them.
TENSOR_BYTES = MODEL_BYTES * (2 * 2 * EPOCHS * ITERATIONS + 1 + 2)
# ps-lite's and ZeroMQ's own words, and the optimizer that is sent to the servers.
MOST_BYTES = TENSOR_BYTES * 1.02
FAULT_S = 3
RESETS, GIVEN_UP_S = 3, 12  # of each kind; longer than a peer's time-out and than a job


class MxNetTest(ProgramsTest):
    printed_by_kernel = {}  # by where updates are: an undisturbed job's

    def job(self, update_on, mercury, servers="aa", workers="bb", **environment):
        """By default no tensor stays on a host. One thread each: how many share a sum may change its last digits."""
        return Job(self.hosts, [sys.executable, TRAIN, "--epochs", EPOCHS, "--update-on", update_on], mercury,
                   servers=servers, workers=workers, PYTHONPATH=PACKAGES, OMP_NUM_THREADS=1, **environment)

    def lines(self, job):
        """What the workers have printed so far."""
        lines = []
        for worker in job.workers:
            with open(worker.kept["stdout"].name) as file:
                lines += [line for line in file if line.endswith("\n")]
        return sorted(lines)

    def result(self, job):
        job.ends_well()
        return self.lines(job)

    def undisturbed(self, update_on):
        if update_on not in self.printed_by_kernel:
            lines = self.result(self.job(update_on, mercury=False))
            self.assertEqual(len(lines), 2 * (EPOCHS + 1), lines)
            self.assertEqual(len({line.split()[-1] for line in lines if "weights" in line}), 1, lines)
            MxNetTest.printed_by_kernel[update_on] = lines
        return self.printed_by_kernel[update_on]

    def learns(self, job):
        """Waits until a worker is in its second epoch."""
        self.assertTrue(wait_until(lambda: self.lines(job), 180), [self.hosts.words(process) for process in job.processes])

    def survives(self, fault, to_the_end=False):
        """`fault(job)` in the midst of a job, or from then on: over the kernel and over Mercury, in each mode."""
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            for mercury in BOTH:
                with self.subTest(update_on=update_on, mercury=mercury), contextlib.ExitStack() as during:
                    during.enter_context(self.carries(TENSOR_BYTES) if mercury else self.carries(0, at_most=0))
                    job = self.job(update_on, mercury)
                    self.learns(job)
                    with fault(job):
                        self.assertEqual([worker.poll() for worker in job.workers], [None] * 2, "it was done before")
                        if to_the_end:
                            self.result(job)
                    self.assertEqual(self.result(job), expected)

    @contextlib.contextmanager
    def stopped(self, process):
        process.send_signal(signal.SIGSTOP)
        try:
            yield
            time.sleep(FAULT_S)
        finally:
            process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def cut(self, seconds):
        self.hosts.cut("b")
        try:
            yield
            time.sleep(seconds)
        finally:
            self.hosts.heal("b")

    @contextlib.contextmanager
    def lossy(self, percent):
        for host in "ab":
            self.hosts.lose(host, percent)
        try:
            yield
        finally:
            for host in "ab":
                self.hosts.lose_nothing(host)


class MxNet(MxNetTest):
    def test_the_same_digits_and_all_bytes(self):
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            with self.subTest(update_on=update_on):
                with self.hosts.counts_tcp() as tcp, self.carries(0, at_most=0):
                    self.assertEqual(self.result(self.job(update_on, mercury=False)), expected)
                    self.assertGreaterEqual(tcp(), TENSOR_BYTES)
                before = self.hosts.bytes_carried()
                with self.hosts.counts_tcp() as tcp, self.carries(TENSOR_BYTES):
                    self.assertEqual(self.result(self.job(update_on, mercury=True)), expected)
                    self.assertEqual(tcp(), 0)
                carried = {name: sum(now) - sum(before[name]) for name, now in self.hosts.bytes_carried().items()}
                self.assertLessEqual(max(carried.values()), MOST_BYTES)
                print(f"\nupdates on {update_on}: {TENSOR_BYTES} bytes of tensors, {carried} by the daemons' counters ", end="")

    def test_servers_and_workers_on_both_hosts(self):
        """Of what a server gets or sends, half is a neighbour's and stays on its host."""
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            with self.subTest(update_on=update_on), self.carries(MODEL_BYTES * (2 * EPOCHS * ITERATIONS + 1)):
                self.assertEqual(self.result(self.job(update_on, True, servers="ab", workers="ba")), expected)

    def test_tensors_that_are_cut_over_both_servers(self):
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            with self.subTest(update_on=update_on), self.carries(TENSOR_BYTES):
                self.assertEqual(self.result(self.job(update_on, True, MXNET_KVSTORE_BIGARRAY_BOUND=10_000)), expected)

    def test_packets_are_lost(self):
        self.survives(lambda job: self.lossy(percent=2), to_the_end=True)

    def test_a_cut_that_is_shorter_than_the_time_out(self):
        self.survives(lambda job: self.cut(FAULT_S))

    def test_a_server_or_worker_that_is_stopped_for_a_while(self):
        self.survives(lambda job: self.stopped(job.servers[0]))
        self.survives(lambda job: self.stopped(job.workers[1]))

    def test_a_daemon_that_is_stopped_for_a_while(self):
        self.survives(lambda job: self.stopped(self.hosts.daemons["a"]))

    def reset_by_the_kernel(self):
        reset = [netlab.sh("ss", "-HKnt", "state", "established", ns=self.hosts.lab[host].ns) for host in "ab"]
        if not any(reset):
            self.skipTest("ss -K resets nothing: this kernel is without INET_DIAG_DESTROY")

    def restart_daemon(self):
        self.hosts.kill_daemon("b")
        self.hosts.start_daemon("b")

    def test_connections_that_are_reset(self):
        """What was on its way is lost, and ps-lite may wait for it forever; no digit changes, and the next job is well."""
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            for mercury, reset in ((False, self.reset_by_the_kernel), (True, self.restart_daemon)):
                done = 0
                for _ in range(RESETS):
                    with self.subTest(update_on=update_on, mercury=mercury):
                        job = self.job(update_on, mercury)
                        self.learns(job)
                        reset()
                        if wait_until(lambda: all(worker.poll() is not None for worker in job.workers), GIVEN_UP_S):
                            self.assertEqual(self.result(job), expected)
                            done += 1
                        self.assertLessEqual(set(self.lines(job)), set(expected))
                        self.hosts.end_programs()
                print(f"\nreset {'with the daemon' if mercury else 'by the kernel'}, updates on {update_on}: {done} of {RESETS} go on ", end="")
            with self.carries(TENSOR_BYTES):
                self.assertEqual(self.result(self.job(update_on, mercury=True)), expected)

    def test_connections_that_are_reset_while_messages_are_sent_again(self):
        """By ps-lite's PS_RESEND, with which processes may abort as they end, over the kernel too: by then all is said."""
        for update_on in UPDATE_ON:
            expected = self.undisturbed(update_on)
            for mercury, reset in ((False, self.reset_by_the_kernel), (True, self.restart_daemon)):
                with self.subTest(update_on=update_on, mercury=mercury):
                    job = self.job(update_on, mercury, PS_RESEND=1)
                    self.learns(job)
                    reset()
                    wait_until(lambda: len(self.lines(job)) == len(expected))
                    self.assertEqual(self.lines(job), expected)
                    self.hosts.end_programs()


class LongCut(MxNetTest):
    """The kernel goes on for minutes. Mercury does so for as long as it is told to."""
    HOSTS = {"extra": PATIENT + '[session]\npeer_timeout = "60s"\n'}

    def test_a_cut_that_is_longer_than_the_usual_time_out(self):
        self.survives(lambda job: self.cut(12))


class SlowLink(MxNetTest):
    HOSTS = {"rate_mbit": 100}

    def test_a_link_of_100_mbit_s(self):
        self.survives(lambda job: contextlib.nullcontext(), to_the_end=True)


if __name__ == "__main__":
    TRAIN = os.path.abspath(sys.argv.pop(4))
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        PACKAGES = mxnet_wheel.folder(os.environ.get("PSLITE_CACHE", folder))
        main()
