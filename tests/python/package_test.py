"""The Python package: two workers and a server, embedded, in processes of their own and in threads.

usage: package_test.py PACKAGE_FOLDER LIBRARY
"""
import asyncio
import ctypes
import errno
import gc
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import unittest
import unittest.mock
from dataclasses import replace

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [PACKAGE, os.path.dirname(os.path.abspath(__file__))]
os.environ["MERCURY_LIBRARY"] = LIBRARY

import numpy as np  # noqa: E402

import mercurystack  # noqa: E402
from mercurystack import _context, _native  # noqa: E402
from cluster import FOREVER_S, Cluster  # noqa: E402
from programs import free_port, outcomes_of, start  # noqa: E402


class Sums(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)

    def exchange(self, tensors):
        operations = [tensor.push_pull() for tensor in tensors]
        for operation in operations:
            operation.wait(FOREVER_S)

    def test_each_type_is_summed(self):
        for number, dtype in enumerate(("float32", "float64", "float16", "int32", "int64", "int8", "uint8")):
            with self.subTest(dtype=dtype):
                tensors = self.cluster.declare(60, dtype, number)
                for rank, tensor in enumerate(tensors):
                    tensor.array[:] = np.arange(60) + rank
                self.exchange(tensors)
                for tensor in tensors:
                    np.testing.assert_array_equal(tensor.array, 2 * np.arange(60) + 1)

    def test_least_and_greatest(self):
        for number, (op, expected) in enumerate((("min", [-5, 2]), ("max", [1, 7]))):
            tensors = self.cluster.declare(2, "int32", number, op=op)
            tensors[0].array[:] = [1, 7]
            tensors[1].array[:] = [-5, 2]
            self.exchange(tensors)
            np.testing.assert_array_equal(tensors[0].array, expected)

    def test_broadcast_all_gather_and_barrier(self):
        whole = self.cluster.declare(5, number=1)
        parts = self.cluster.declare(6, "int64", number=2)
        for rank in range(2):
            whole[rank].array[:] = rank + 1
            parts[rank].array[3 * rank:3 * rank + 3] = rank + 10
        flights = [tensor.broadcast(1) for tensor in whole] + [tensor.all_gather() for tensor in parts]
        for operation in flights:
            operation.wait(FOREVER_S)
        for rank in range(2):
            np.testing.assert_array_equal(whole[rank].array, np.full(5, 2, np.float32))
            np.testing.assert_array_equal(parts[rank].array, [10, 10, 10, 11, 11, 11])
        first, second = self.cluster.workers
        with self.assertRaises(TimeoutError):
            first.barrier(0.01)
        waiting = threading.Thread(target=first.barrier)
        waiting.start()
        second.barrier(FOREVER_S)
        waiting.join()

    def test_a_reduce_scatter_brings_each_its_part(self):
        tensors = self.cluster.declare(7, "int64", number=1)
        for rank, tensor in enumerate(tensors):
            tensor.array[:] = np.arange(7) + rank
        self.assertEqual([tensors[0].part(rank) for rank in range(2)], [slice(0, 4), slice(4, 7)])
        self.assertEqual(tensors[1].part(), slice(4, 7))
        for operation in [tensor.reduce_scatter() for tensor in tensors]:
            operation.wait(FOREVER_S)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.array[tensor.part()], (2 * np.arange(7) + 1)[tensor.part()])
        self.assertEqual([job.stats().bytes_pulled for job in self.cluster.workers], [4 * 8, 3 * 8])
        with self.assertRaisesRegex(ValueError, "rank: expected 0 to 1, got 2"):
            tensors[0].part(2)

    def test_bfloat16_is_summed_in_arrays_of_two_bytes(self):
        tensors = self.cluster.declare(16, "bfloat16")
        for tensor in tensors:
            tensor.array[:] = 0x3FC0  # 1.5
        self.exchange(tensors)
        np.testing.assert_array_equal(tensors[0].array, np.full(16, 0x4040, np.uint16))  # 3.0

    def test_averages_shapes_rounds_and_statistics(self):
        tensors = self.cluster.declare((20, 50), op="average")
        for round_ in range(1, 4):
            self.assertEqual([tensor.round for tensor in tensors], [round_, round_])
            for rank, tensor in enumerate(tensors):
                tensor.array[:] = round_ * (rank + 1)
            self.exchange(tensors)
            np.testing.assert_array_equal(tensors[1].array, np.full((20, 50), 1.5 * round_, np.float32))
        self.assertEqual(tensors[0].contributors(),
                         mercurystack.Contributors(3, frozenset({0, 1}), frozenset({0, 1})))
        self.assertEqual(self.cluster.workers[0].stats(), mercurystack.JobStats(3, 3 * 4000, 3 * 4000))
        self.assertEqual([(job.rank, job.workers, job.servers) for job in self.cluster.workers], [(0, 2, 1), (1, 2, 1)])
        self.assertEqual(self.cluster.contexts[0].mode, "embedded")

    def test_many_in_one_call(self):
        jobs = self.cluster.workers
        arrays = [{number: context.zeros(100) for number in range(161)} for context in self.cluster.contexts[1:]]
        declared = [job.declare_all(mine, priorities={number: 160 - number for number in mine})
                    for job, mine in zip(jobs, arrays)]
        for rank, mine in enumerate(arrays):
            for number, array in mine.items():
                array[:] = number + rank
        flights = [job.push_pull_all(tensors.values()) for job, tensors in zip(jobs, declared)]
        for job, operations in zip(jobs, flights):
            job.wait_all(operations, FOREVER_S)
        for number in range(161):
            self.assertEqual(arrays[1][number][99], 2 * number + 1)
        # One that cannot go keeps all of a call back.
        good, bad = declared[0][0], declared[0][1]
        bad.push_pull()
        with self.assertRaises(mercurystack.MercuryError) as failed:
            jobs[0].push_pull_all([good, bad])
        self.assertEqual(failed.exception.errno, errno.EBUSY)
        self.assertEqual(good.round, 2)

    def declared(self, count):
        """So many tensors of each worker, in one array."""
        arrays = [context.zeros((count, 2)) for context in self.cluster.contexts[1:]]
        for rank, array in enumerate(arrays):
            array[:] = rank + 1
        tensors = [list(job.declare_all(dict(enumerate(array))).values()) for job, array in zip(self.cluster.workers, arrays)]
        return arrays, tensors

    def test_who_finds_no_place_tries_again(self):
        """Every other call is told that there is none."""
        arrays, tensors = self.declared(4000)
        real, turns = _native.library.mercury_submit, itertools.count()

        def every_other(*arguments):
            return real(*arguments) if next(turns) % 2 else -errno.EAGAIN

        def submit(job, mine, outcome):
            operations = [tensor.push_pull() for tensor in mine[:2000]]
            for begin in range(2000, 4000, 500):
                operations += job.push_pull_all(mine[begin:begin + 500])
            job.wait_all(operations, FOREVER_S)
            outcome.append(len(operations))
        outcome = []
        threads = [threading.Thread(target=submit, args=(job, mine, outcome)) for job, mine in zip(self.cluster.workers, tensors)]
        with unittest.mock.patch.object(_native.library, "mercury_submit", every_other):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(outcome, [4000, 4000])
        for array in arrays:
            self.assertTrue((array == 3).all())

    def test_who_waits_for_a_place_is_told_of_the_end(self):
        """Of the job's failure, and of a close here."""
        real = _native.library.mercury_submit
        for end, expected in ((lambda jobs: jobs[1].close(), mercurystack.JobFailedError), (lambda jobs: jobs[0].close(), ValueError)):
            with self.subTest(expected.__name__):
                self.cluster.close()
                self.cluster = Cluster()
                self.addCleanup(self.cluster.close)
                _, tensors = self.declared(1)
                full, ends, raised = threading.Event(), threading.Event(), []

                def submit():
                    try:
                        tensors[0][0].push_pull().wait(FOREVER_S)
                    except (mercurystack.MercuryError, ValueError) as error:
                        raised.append(type(error))

                def none_until_the_end(*arguments):
                    full.set()
                    return real(*arguments) if ends.is_set() else -errno.EAGAIN
                with unittest.mock.patch.object(_native.library, "mercury_submit", none_until_the_end):
                    thread = threading.Thread(target=submit)
                    thread.start()
                    self.assertTrue(full.wait(FOREVER_S))
                    end(self.cluster.workers)
                    ends.set()
                    thread.join()
                self.assertEqual(raised, [expected])

    def test_memory_of_somebody_else_and_dlpack(self):
        arrays = [np.full(300, rank + 1, np.float32) for rank in range(2)]
        tensors = []
        for job, context, array in zip(self.cluster.workers, self.cluster.contexts[1:], arrays):
            context.register(array)
            tensors.append(job.declare(7, Exported(array)))
        self.exchange(tensors)
        np.testing.assert_array_equal(arrays[0], np.full(300, 3, np.float32))
        with self.assertRaises(mercurystack.MercuryError) as failed:
            self.cluster.contexts[1].deregister(arrays[0])
        self.assertEqual(failed.exception.errno, errno.EBUSY)

    def test_push_then_pull(self):
        tensors = self.cluster.declare(10)
        for tensor in tensors:
            tensor.array[:] = 4
        for operations in ([tensor.push() for tensor in tensors], [tensor.pull() for tensor in tensors]):
            for operation in operations:
                operation.wait(FOREVER_S)
        self.assertEqual(tensors[0].array[9], 8)


class Exported:
    """A tensor of another library, as far as DLPack knows it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Waiting(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.first, self.second = self.cluster.declare(1000)

    def test_a_limit_ends_a_wait_and_not_the_operation(self):
        operation = self.first.push_pull()
        self.assertFalse(operation.done())
        with self.assertRaises(TimeoutError):
            operation.wait(0.01)
        with self.assertRaises(mercurystack.MercuryTimeoutError):
            self.cluster.workers[0].wait_all([operation], 0)
        self.second.push_pull()
        operation.wait(FOREVER_S)
        operation.wait(0)
        self.assertTrue(operation.done())
        self.assertIsNone(operation.exception())

    def test_many_threads_wait_for_one_operation(self):
        operation = self.first.push_pull()
        done = []
        threads = [threading.Thread(target=lambda: done.append(operation.wait(FOREVER_S))) for _ in range(8)]
        for thread in threads:
            thread.start()
        self.second.push_pull()
        for thread in threads:
            thread.join()
        self.assertEqual(done, [None] * 8)

    def test_asyncio(self):
        async def rounds(tensor, count):
            for _ in range(count):
                await tensor.push_pull()

        async def both():
            await asyncio.wait_for(asyncio.gather(rounds(self.first, 20), rounds(self.second, 20)), FOREVER_S)
            # One that is cancelled leaves its operation to others.
            operation = self.first.push_pull()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(wait_for(operation), 0.01)
            await asyncio.wait_for(asyncio.gather(wait_for(self.second.push_pull()), wait_for(operation)), FOREVER_S)

        async def wait_for(operation):
            await operation

        asyncio.run(both())
        asyncio.run(both())  # in another loop
        self.assertEqual(self.first.round, 43)

    def test_a_signal_interrupts_a_wait_and_loses_nothing(self):
        operation = self.first.push_pull()
        interrupted = []

        def interrupt(*_):
            interrupted.append(True)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, interrupt)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        with self.assertRaises(KeyboardInterrupt):
            operation.wait()
        self.assertEqual(interrupted, [True])
        self.second.push_pull()
        operation.wait(FOREVER_S)

    def test_interrupts_at_any_time_lose_no_operation(self):
        before = signal.signal(signal.SIGALRM, self.interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        self.interrupts, self.armed = 0, False
        for _ in range(300):
            other = self.second.push_pull()
            operation = self.first.push_pull()
            while not operation.done():
                try:
                    self.armed = True
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(10e-6, 200e-6))
                    operation.wait(FOREVER_S)
                    self.armed = False
                except KeyboardInterrupt:
                    self.armed = False  # and there is no other alarm
            signal.setitimer(signal.ITIMER_REAL, 0)
            other.wait(FOREVER_S)
        self.assertEqual(self.first.round, 301)
        self.assertGreater(self.interrupts, 0)

    def interrupt(self, *_):
        if self.armed:
            self.interrupts += 1
            raise KeyboardInterrupt

    def test_other_threads_run_while_one_waits(self):
        """In one call: waits of the package's own are many short ones, between which others would run anyway."""
        operation, most_ms = self.first.push_pull(), 20_000  # over which nobody could push, were the GIL held
        entering, codes = threading.Event(), []

        def wait():
            with self.cluster.workers[0]._use as job:
                entering.set()
                codes.append(_native.library.mercury_wait(job, operation._handle, most_ms))
        # So long no thread has to yield: the other one pushes when this one gives the GIL up, which is in the call.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(FOREVER_S)
        waiting = threading.Thread(target=wait)
        waiting.start()
        entering.wait()
        self.second.push_pull()
        waiting.join()
        self.assertEqual(codes, [0])

    def test_no_call_holds_the_gil(self):
        for name in _native._ARGUMENTS:
            self.assertFalse(getattr(_native.library, name)._flags_ & ctypes.PyDLL._func_flags_ & ~ctypes.CDLL._func_flags_, name)


class Ends(unittest.TestCase):
    def test_closing_ends_waits_and_what_follows_is_an_error(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        tensor, _ = cluster.declare(10)
        operation = tensor.push_pull()
        failures = []

        def wait():
            try:
                operation.wait()
            except (mercurystack.MercuryError, ValueError) as failure:
                failures.append(failure)

        waiting = threading.Thread(target=wait)
        waiting.start()
        cluster.workers[0].close()
        waiting.join()
        self.assertEqual(len(failures), 1)
        for call in (tensor.push_pull, cluster.workers[0].poll, cluster.workers[0].stats, lambda: tensor.round):
            with self.assertRaises(ValueError):
                call()
        cluster.workers[0].close()

    def test_closing_ends_awaits(self):
        """Of a thread, or of the loop itself, the job or its context; the loop has nothing to complain of."""
        async def await_(operation):
            await operation

        async def outcomes_of(operation, close, closer):
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            awaiting = [asyncio.ensure_future(await_(operation)) for _ in range(2)]
            await asyncio.sleep(0)
            closer(close)
            return await asyncio.wait_for(asyncio.gather(*awaiting, return_exceptions=True), FOREVER_S)

        for what in "job", "context":
            for closer in (lambda close: threading.Thread(target=close).start()), (lambda close: close()):
                cluster = Cluster()
                self.addCleanup(cluster.close)
                tensor, complaints = cluster.declare(10)[0], []
                close = cluster.workers[0].close if what == "job" else cluster.contexts[1].close
                outcomes = asyncio.run(outcomes_of(tensor.push_pull(), close, closer))
                self.assertEqual([(type(one), str(one)) for one in outcomes], [(ValueError, "the job is closed")] * 2)
                self.assertEqual(complaints, [])

    def test_a_member_that_leaves_fails_the_others_operations(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        tensor, _ = cluster.declare(10)
        operation = tensor.push_pull()
        cluster.workers[1].close()
        with self.assertRaises(mercurystack.JobFailedError) as failed:
            operation.wait(FOREVER_S)
        self.assertEqual(failed.exception.errno, errno.ECONNRESET)
        self.assertRegex(str(failed.exception), "worker 1")
        self.assertIsInstance(operation.exception(), mercurystack.JobFailedError)
        with self.assertRaises(mercurystack.JobFailedError):
            tensor.push_pull()
        cluster.workers[0].close()
        with self.assertRaises(mercurystack.JobFailedError):
            cluster.jobs[0].wait_end(FOREVER_S)

    def test_an_array_outlives_its_context(self):
        context = mercurystack.Context("embedded", listen="127.0.0.1")
        array = context.zeros(1 << 20)
        part = array[10:20]
        del array
        context.close()
        part[:] = 3
        self.assertEqual(part.sum(), 30)
        with self.assertRaises(ValueError):
            context.zeros(1)
        del part
        gc.collect()

    def test_closing_a_context_ends_who_opens_a_job_on_it_or_is_about_to(self):
        """With an array that keeps its memory too, and then what it was opened for comes to nothing."""
        for turn in range(100):
            context = mercurystack.Context("embedded", listen="127.0.0.1")
            array = context.zeros(1) if turn % 2 else None
            told = []

            def open_one():
                try:
                    context.open_job("lonely", role="worker", rank=0, workers=2, servers=1, rendezvous="127.0.0.1:7470",
                                     timeout_ms=60_000)
                except ValueError as error:
                    told.append(str(error))

            opener = threading.Thread(target=open_one)
            opener.start()
            opener.join(turn / 50_000)  # somewhere
            context.close()
            opener.join(FOREVER_S)
            self.assertEqual(told, ["the context is closed"], turn)
            del array

    def test_closing_a_context_awaits_whoever_ends_its_jobs(self):
        """A thread that closes a job, or drops it, waits for another one's call."""
        for drops in False, True:
            with self.subTest(drops=drops):
                cluster = Cluster()
                context, job, use = cluster.contexts[1], cluster.jobs[1], cluster.jobs[1]._use
                inside, let_go, early, ranks = threading.Event(), threading.Event(), [], []
                detach = _native.library.mercury_detach

                def call():
                    with use as pointer:
                        inside.set()
                        let_go.wait(FOREVER_S)
                        ranks.append(_native.library.mercury_job_get_rank(pointer))

                def end(jobs):
                    if drops:
                        jobs.clear()
                    else:
                        jobs[0].close()

                def watched(pointer):
                    if use._to_close:
                        early.append(pointer)
                        return 0
                    return detach(pointer)

                caller = threading.Thread(target=call)
                ender = threading.Thread(target=end, args=([job],))
                closer = threading.Thread(target=context.close)
                cluster.jobs[1] = job = None
                with unittest.mock.patch.object(_native.library, "mercury_detach", watched):
                    caller.start()
                    inside.wait(FOREVER_S)
                    ender.start()
                    while not use._closed:
                        pass
                    closer.start()
                    closer.join(0.1)  # as far as it gets
                    let_go.set()
                    for thread in caller, ender, closer:
                        thread.join(FOREVER_S)
                self.assertEqual((early, ranks), ([], [0]))
                self.assertFalse(context._attachment._to_detach)
                cluster.close()

    def test_what_interrupts_a_close_leaves_the_rest_to_the_next(self):
        cluster = Cluster()
        context, job = cluster.contexts[1], cluster.jobs[1]
        with unittest.mock.patch.object(mercurystack.Job, "close", side_effect=KeyboardInterrupt), \
                self.assertRaises(KeyboardInterrupt):
            context.close()
        with self.assertRaisesRegex(mercurystack.MercuryError, "the job is being closed"):  # its context is closed
            job.barrier(0)
        self.assertTrue(context._attachment._to_detach)  # which is there, like the job
        context.close()
        self.assertFalse(context._attachment._to_detach)
        with self.assertRaises(ValueError):
            job.barrier(0)
        cluster.close()

    def test_a_handler_that_closes_the_context_amid_the_opening_of_a_job(self):
        rendezvous = f"127.0.0.1:{free_port()}"
        member = {"workers": 1, "servers": 1, "rendezvous": rendezvous, "timeout_ms": FOREVER_S * 1000}
        with mercurystack.Context("embedded", listen=rendezvous) as server:
            serving = threading.Thread(target=server.open_job, args=("x",), kwargs={"role": "server", "rank": 0, **member})
            serving.start()
            context = mercurystack.Context("embedded", listen="127.0.0.1")

            def interrupted(pointer):
                if threading.current_thread() is threading.main_thread():
                    context.close()
                return 1

            with unittest.mock.patch.object(_native.library, "mercury_job_get_servers", interrupted), \
                    self.assertRaisesRegex(ValueError, "the context is closed"):
                context.open_job("x", role="worker", rank=0, **member)
            self.assertFalse(context._attachment._to_detach)
            serving.join(FOREVER_S)
        with self.assertRaisesRegex(ValueError, "the context is closed"):
            context.mode

    def test_no_job_is_made_of_a_refusal(self):
        with mercurystack.Context("embedded", listen="127.0.0.1") as context, \
                unittest.mock.patch.object(_native.library, "mercury_job_open", lambda *_: -errno.ESHUTDOWN), \
                self.assertRaises(mercurystack.MercuryError) as caught:
            context.open_job("x", role="worker", rank=0, workers=1, servers=1, rendezvous="127.0.0.1:7999")
        self.assertEqual(caught.exception.errno, errno.ESHUTDOWN)

    def test_a_serving_worker_that_fails_takes_along_its_server_that_still_opens_the_job(self):
        job = mercurystack._context.Job

        def refused(attachment, options, *more, **named):
            if options.role == "worker":
                raise mercurystack.MercuryError(errno.ERANGE, "refused")
            return job(attachment, options, *more, **named)

        with unittest.mock.patch.object(mercurystack._context, "Job", refused):
            for _ in range(50):
                with mercurystack.Context("embedded", listen="127.0.0.1") as context, \
                        self.assertRaisesRegex(mercurystack.MercuryError, "refused"):
                    context.open_job("x", serve=True, role="worker", rank=1, workers=2, rendezvous="127.0.0.1:7999",
                                     timeout_ms=60_000)

    def test_memory_of_arrays_that_are_gone_comes_back(self):
        with mercurystack.Context("embedded", listen="127.0.0.1") as context:
            for _ in range(2000):  # 128 GB, if none did
                context.zeros(1 << 24)

    def test_without_a_close_a_program_ends_in_order(self):
        script = textwrap.dedent(f"""
            import sys; sys.path.insert(0, {PACKAGE!r})
            import mercurystack
            context = mercurystack.Context("embedded", listen="127.0.0.1:{free_port()}")
            job = None
            array = context.zeros(10)
            print("ready")
            """)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=FOREVER_S, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ready\n", ""))

    def test_a_forked_child_has_nothing_and_disturbs_nobody(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        first, second = cluster.declare(10)
        child = os.fork()
        if child == 0:
            try:
                first.push_pull()
            except mercurystack.MercuryError as failure:
                os._exit(0 if failure.errno == errno.ENOTCONN else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        operation = first.push_pull()
        second.push_pull()
        operation.wait(FOREVER_S)

    def test_a_forked_child_leaves_without_waiting_for_anybody(self):
        """Whose threads are the parent's, as the one that waits for the end of the server of its process."""
        for how, status in (("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("job.close(); context.close(); os._exit(4)", 4),
                            ("job.abandon(); os._exit(5)", 5), ("del array; os._exit(6)", 6), ("pass", 0)):
            with self.subTest(how):
                done = outcomes_of([start([sys.executable, "-c", FORKING, PACKAGE, how, f"127.0.0.1:{free_port()}"], LIBRARY)],
                                   FOREVER_S)
                self.assertEqual([(said, ended) for said, _, ended in done], [(f"{status}\n3.0\n", 0)], done)


FORKING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import mercurystack
with mercurystack.Context("embedded") as context, context.open_job("forking", serve=True, role="worker", rank=0, workers=1, rendezvous=sys.argv[3]) as job:
    array = context.zeros(10)
    tensor = job.declare(1, array)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        exec(sys.argv[2])
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        array[:] = 3
        tensor.push_pull().wait(60)
        print(array[9])
"""


SERVING = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mercurystack
with mercurystack.Context("embedded") as context, context.open_job("serving", serve=True, timeout_ms=100000) as job:
    array = context.zeros(100000)
    tensor = job.declare(1, array)
    for _ in range(3):
        array[:] = job.rank + 1
        tensor.push_pull().wait()
        assert (array == job.workers * (job.workers + 1) / 2).all(), array
        if os.environ.get("BREAK") == os.environ["RANK"]:
            raise SystemExit("broken")
    print(job.servers)
"""


SERVER_ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import mercurystack
with mercurystack.Context("embedded") as context, context.open_job("serving", timeout_ms=100000) as job:
    job.wait_end()
    print("ended")
"""


class Serving(unittest.TestCase):
    """Processes as torchrun starts them, without daemons and without processes for servers."""

    def run_all(self, **variables):
        variables.update(WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", MERCURY_RENDEZVOUS=f"127.0.0.1:{free_port()}")
        return outcomes_of([start([sys.executable, "-c", SERVING, PACKAGE], LIBRARY, RANK=str(rank), **variables)
                            for rank in range(3)], FOREVER_S)

    def test_each_worker_serves(self):
        self.assertEqual(self.run_all(), [("3\n", "", 0)] * 3)

    def test_servers_of_their_own_beside_those_of_the_workers(self):
        port = str(free_port())
        size = {"MERCURY_WORKERS": "2", "MERCURY_SERVERS": "3", "MERCURY_RENDEZVOUS": f"127.0.0.1:{port}"}
        workers = [start([sys.executable, "-c", SERVING, PACKAGE], LIBRARY, RANK=str(rank), MERCURY_ROLE="worker",
                         MERCURY_RANK=str(rank), **size) for rank in range(2)]
        server = start([sys.executable, "-c", SERVER_ALONE, PACKAGE], LIBRARY, MERCURY_ROLE="server", MERCURY_RANK="2", **size)
        self.assertEqual(outcomes_of([*workers, server], FOREVER_S), [("3\n", "", 0)] * 2 + [("ended\n", "", 0)])

    def test_who_breaks_fails_the_others_by_name(self):
        for rank, (_, errors, status) in enumerate(self.run_all(BREAK="1")):
            self.assertEqual(status, 1)
            self.assertRegex(errors, "^broken$" if rank == 1 else "JobFailedError.* 1 of 3")

    def test_a_rendezvous_by_name(self):
        self.assertEqual(self.run_all(MERCURY_RENDEZVOUS=f"localhost:{free_port()}"), [("3\n", "", 0)] * 3)

    def test_a_place_of_the_worker_is_not_its_server_s(self):
        self.assertEqual(self.run_all(MERCURY_LISTEN="127.0.0.1"), [("3\n", "", 0)] * 3)
        for rendezvous, listen in (("h", "h:7470"), ("h:1", "h:1"), ("[::1]", "[::1]:7470"), ("[::1]:1", "[::1]:1"), ("10.0.0.1", "10.0.0.1:7470")):
            self.assertEqual(_context.with_port(rendezvous), listen)

    def test_opening_can_be_interrupted(self):
        """As by Ctrl-C; the context ends what goes on."""
        def interrupt(number, frame):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        for serve in (False, True):
            port = free_port()
            with mercurystack.Context("embedded", listen="127.0.0.1") as context, self.assertRaises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                context.open_job("alone", serve=serve, role="worker", rank=0, workers=2, servers=2, rendezvous=f"127.0.0.1:{port}",
                                 timeout_ms=FOREVER_S * 1000)
        for opening in [thread for thread in threading.enumerate() if thread.name == "mercury-open"]:
            opening.join(FOREVER_S)  # the call has returned, or is about to
            self.assertFalse(opening.is_alive())

    def test_who_forgets_to_serve_is_told_so(self):
        place = {"role": "worker", "rank": 0, "workers": 1, "servers": 1, "rendezvous": f"127.0.0.1:{free_port()}"}
        with mercurystack.Context("embedded") as context, self.assertRaisesRegex(mercurystack.JobFailedError, "server 0 of 1 [^;]*$") as failed:
            context.open_job("alone", timeout_ms=300, **place)
        for serve, text in ((False, "with serve=True each worker's process serves, .*; timeout_ms= lets it wait longer$"),
                            (True, "[^;]*; timeout_ms= lets it wait longer$")):  # of one that waited as long as it does unless told
            hinted = _context._with_hint(failed.exception, serve, False)
            self.assertIs(type(hinted), mercurystack.JobFailedError)
            self.assertRegex(hinted.strerror, text)

    def test_who_waits_says_for_what(self):
        """Once for each member, not for the server in its process too, and less often as it goes on."""
        for serve in False, True:
            place = f"127.0.0.1:{free_port()}"
            with self.subTest(serve=serve), mercurystack.Context("embedded", listen="127.0.0.1") as context, \
                    unittest.mock.patch.object(mercurystack._job, "FIRST_TOLD_S", 0.1), \
                    self.assertLogs("mercurystack", "WARNING") as logs, self.assertRaises(mercurystack.JobFailedError):
                context.open_job("alone", serve=serve, role="worker", rank=0, workers=2, servers=2, rendezvous=place, timeout_ms=1500)
            lines = [record.getMessage() for record in logs.records]
            self.assertEqual(set(lines), {f"worker 0 of 2 waits for the members of job 'alone' (workers: 2, servers: 2, rendezvous: {place}); "
                                          "after 1.5 s it fails, and says which are missing"})
            self.assertLessEqual(len(lines), 5)

    def test_who_serves_must_know_who_it_is(self):
        with mercurystack.Context("embedded", listen="127.0.0.1") as context:
            with self.assertRaisesRegex(ValueError, "serve: .* says rank or rendezvous: every worker needs a rank"):
                context.open_job("x", serve=True, workers=2)
            with self.assertRaisesRegex(ValueError, "serve: .* the role must be worker"):
                context.open_job("x", serve=True, role="server", rank=0, workers=2, rendezvous="127.0.0.1")
            with self.assertRaisesRegex(mercurystack.MercuryError, "[Aa]ddress"):
                context.open_job("x", serve=True, rank=0, workers=2, rendezvous="192.0.2.1:7470", timeout_ms=500)

    def open_two_sizes(self):
        """What worker 0 of two and worker 1 of three are told, in one job."""
        port, told = free_port(), {}

        def open_one(rank, workers):
            with mercurystack.Context("embedded") as context, self.assertRaises(mercurystack.MercuryError) as failed:
                context.open_job("sizes", serve=True, role="worker", rank=rank, workers=workers, rendezvous=f"127.0.0.1:{port}",
                                 timeout_ms=3000)
            told[rank] = str(failed.exception)

        threads = [threading.Thread(target=open_one, args=(rank, rank + 2)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FOREVER_S)
        return told

    def test_workers_that_disagree_about_their_number(self):
        """Worker 1's server asks where nobody answers, so that it fails of being abandoned: that is not what its worker is told."""
        job, silent = mercurystack._context.Job, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(silent.close)
        silent.bind(("127.0.0.1", 0))
        silent.settimeout(FOREVER_S)

        def elsewhere(attachment, options, *more, **named):
            if options.rank == 1 and options.role == "server":
                options = replace(options, rendezvous=f"127.0.0.1:{silent.getsockname()[1]}")
            elif options.rank == 1:
                silent.recv(2048)  # the server is waiting
            return job(attachment, options, *more, **named)
        with unittest.mock.patch.object(mercurystack._context, "Job", elsewhere):
            told = self.open_two_sizes()
        self.assertRegex(told[1], "was opened with 2 workers, .* asks for 3 workers")
        self.assertRegex(told[0], r"1 of 2.*; (worker|server) 1 of 3 \(.*\) was refused: .* asks for 3 workers")


class Documented(unittest.TestCase):
    """help() says what each name is, of times and sizes in which unit."""

    def own(self, kind):
        """A class's public members, but for those of what it is derived from."""
        return {name: member for name, member in vars(kind).items() if not name.startswith("_")}

    def test_every_public_name(self):
        self.assertTrue(mercurystack.__doc__)
        for name in mercurystack.__all__:
            public = getattr(mercurystack, name)
            self.assertTrue(public.__doc__, name)
            fields = {*getattr(public, "_fields", ()), *getattr(public, "__dataclass_fields__", ()), *getattr(public, "__slots__", ())}
            for member, value in self.own(public).items() if isinstance(public, type) else ():
                if member in fields:  # which has no text of its own
                    self.assertRegex(public.__doc__, rf"\b{member}\b", name)
                else:
                    self.assertTrue(value.__doc__, f"{name}.{member}")

    def test_every_attribute_of_a_job_is_there_to_be_read(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        self.assertEqual([name for name in vars(cluster.workers[0]) if not name.startswith("_")], [])

    def test_times_have_their_unit(self):
        for field in mercurystack.JobOptions.__dataclass_fields__:
            if field.endswith("_ms"):
                self.assertRegex(mercurystack.JobOptions.__doc__, rf"\b{field}\b[^.]*\bmilliseconds\b")
        self.assertIn("Milliseconds", mercurystack.Job.rejoin_ms.__doc__)
        for method in (mercurystack.Job.wait_all, mercurystack.Job.barrier, mercurystack.Job.wait_end, mercurystack.Operation.wait):
            self.assertIn("`timeout` seconds", method.__doc__)


class Installed(unittest.TestCase):
    def test_every_file_of_the_package(self):
        with open(os.path.join(PACKAGE, "meson.build"), encoding="utf-8") as file:
            installed = re.findall(r"'mercurystack/([^']+)'", file.read())
        self.assertEqual(sorted(installed), sorted(set(os.listdir(os.path.join(PACKAGE, "mercurystack"))) - {"__pycache__"}))

    def test_the_version_is_pip_s(self):
        with open(os.path.join(PACKAGE, "..", "pyproject.toml"), encoding="utf-8") as file:
            self.assertIn(f'\nversion = "{mercurystack.__version__}"\n', file.read())
        self.assertRegex(mercurystack.version(), r"^1\.\d+\.\d+$")  # the library's


class BadInput(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.job, self.context = self.cluster.workers[0], self.cluster.contexts[1]

    def refused(self, kind, pattern, call, *arguments, **options):
        with self.assertRaisesRegex(kind, pattern):
            call(*arguments, **options)

    def test_arrays(self):
        inside = self.context.zeros((10, 10))
        self.refused(ValueError, "contiguous", self.job.declare, 1, inside[:, 1])
        self.refused(TypeError, "complex64", self.job.declare, 1, np.zeros(4, np.complex64))
        self.refused(TypeError, "float32", self.job.declare, 1, np.zeros(4, ">f4"))
        self.refused(TypeError, "2 bytes", self.job.declare, 1, inside, dtype="bfloat16")
        self.refused(TypeError, "__dlpack__", self.job.declare, 1, [1.0, 2.0])
        self.refused(mercurystack.MercuryError, "memory", self.job.declare, 1, np.zeros(4, np.float32))
        self.refused(ValueError, "no elements", self.context.zeros, 0)
        self.refused(ValueError, "op: expected", self.job.declare, 1, inside, op="product")

    def test_operations(self):
        tensor = self.cluster.declare(10)[0]
        self.refused(mercurystack.MercuryError, "push", tensor.pull)
        tensor.push_pull()
        self.refused(mercurystack.MercuryError, "round", tensor.push_pull)

    def test_integers_that_would_be_cut(self):
        """To 32 bits, they are others."""
        tensor, array = self.cluster.declare(10)[0], self.context.zeros(10)
        number, priority, rank = r"number: expected 0 to 2147483646, got ", r"priority: expected 0 to 65535, got ", r": expected 0 to 1, got "
        for given in -1, 2**31 - 1, 2**32 + 9:
            self.refused(ValueError, f"^{number}{given}$", self.job.declare, given, array)
        for given in -1, 65536, 2**32:
            self.refused(ValueError, f"^{priority}{given}$", self.job.declare, 9, array, priority=given)
            self.refused(ValueError, f"^{priority}{given}$", tensor.push_pull, given)
            self.refused(ValueError, f"^{priority}{given}$", self.job.push_pull_all, [tensor], given)
            for call in tensor.push, tensor.pull, tensor.all_gather, tensor.reduce_scatter:
                self.refused(ValueError, f"^{priority}{given}$", call, given)
        for given in -1, 2, 2**32 + 1:
            self.refused(ValueError, f"^root{rank}{given}$", tensor.broadcast, given)
            self.refused(ValueError, f"^rank{rank}{given}$", tensor.part, given)
        bounds = {"rank": (-1, 1023), "workers": (1, 1024), "servers": (1, 1024), "weight": (1, 1000), "quorum": (0, 1024),
                  **{name: (-1, 2**31 - 1) for name in ("timeout_ms", "rejoin_ms", "patience_ms", "stall_timeout_ms")}}
        for name, (least, most) in bounds.items():
            for given in least - 1, most + 1, 2**32 + 1:
                self.refused(ValueError, f"^{name}: expected {least} to {most}, got {given}$", self.context.open_job, "x", **{name: given})
            self.refused(TypeError, f"^{name}: expected an integer, {least} to {most}, got 0.5$", self.context.open_job, "x", **{name: 0.5})
        self.refused(ValueError, "bytes of an array of shape .*: expected 1 to", self.context.zeros, (2**32 + 1, 2**32))
        self.assertEqual(self.job.declare(np.int64(9), array, priority=np.int32(3)).id, 9)

    def test_jobs_and_contexts(self):
        self.refused(ValueError, "mode: expected", mercurystack.Context, "both")
        self.refused(mercurystack.MercuryError, "nowhere", mercurystack.Context, "daemon", socket="/nowhere/stackd.sock")
        self.refused(ValueError, "role: expected", self.context.open_job, "x", role="scheduler")
        self.refused(TypeError, "worker_count", self.context.open_job, "x", worker_count=2)
        self.refused(mercurystack.MercuryError, "name", self.context.open_job, "a b", workers=1, servers=1, rank=0,
                     rendezvous="127.0.0.1:1")
        self.refused(mercurystack.MercuryError, "policy", self.job.set_policy, "fastest")


if __name__ == "__main__":
    unittest.main()
