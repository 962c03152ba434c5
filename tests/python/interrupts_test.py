"""Where a signal's handler may run, it may raise an exception or poll itself: nobody who waits for an operation is lost.

usage: interrupts_test.py PACKAGE_FOLDER LIBRARY
"""
import asyncio
import ctypes
import errno
import itertools
import os
import select
import sys
import threading
import unittest
import unittest.mock

import numpy as np

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [PACKAGE, os.path.dirname(os.path.abspath(__file__))]
os.environ["MERCURY_LIBRARY"] = LIBRARY

import mercurystack  # noqa: E402
from mercurystack import _flight, _native  # noqa: E402
from mercurystack._operation import Operation  # noqa: E402
from cluster import FOREVER_S, Cluster  # noqa: E402

LOST_S = 10  # what has ended long ago is told within


def is_here(frame):
    return frame is not None and frame.f_code.co_filename == _flight.__file__


class Interrupt:
    """KeyboardInterrupt at the place-th point of _flight.py where a handler may run, which is after a call of C's, and where a function
    begins. A context, which suppresses it; `came` says whether there are so many points."""

    def __init__(self, place):
        self.left, self.came = place, False

    def __enter__(self):
        sys.setprofile(self.pass_by)
        return self

    def __exit__(self, kind, error, trace):
        sys.setprofile(None)
        return kind is KeyboardInterrupt

    def pass_by(self, frame, event, _):
        if self.came or not (event == "c_return" and is_here(frame) or event == "call" and (is_here(frame) or is_here(frame.f_back))):
            return
        self.left -= 1
        if self.left < 0:
            self.came = True
            raise KeyboardInterrupt


async def await_(operation):
    await operation


class Awaited(unittest.TestCase):
    """By a loop, which runs while nothing else does."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.first, self.second = self.cluster.declare(1000)
        self.job = self.cluster.workers[0]
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)

    def begin(self, operation):
        task = self.loop.create_task(await_(operation))
        self.loop.run_until_complete(asyncio.sleep(0))
        return task

    def complete(self):
        self.second.push_pull().wait(FOREVER_S)
        self.assertTrue(select.select([self.job.fileno()], [], [], FOREVER_S)[0])

    def test_whoever_awaits_while_another_polls(self):
        self.interrupt_everywhere(self.first.push_pull, lambda operation: self.job.poll())

    def test_whoever_awaits_while_another_waits(self):
        self.interrupt_everywhere(self.first.push_pull, lambda operation: operation.wait(FOREVER_S))

    def interrupt_everywhere(self, begin, call):
        """And nobody calls again."""
        for place in itertools.count():
            operation = begin()
            task = self.begin(operation)
            self.complete()
            with Interrupt(place) as interrupt:
                call(operation)
            try:
                self.loop.run_until_complete(asyncio.wait_for(task, LOST_S))
            except asyncio.TimeoutError:
                self.fail(f"interrupted at point {place}: who awaits is not told")
            self.assertTrue(operation.done())
            self.assertFalse(self.job._flight._operations)
            if not interrupt.came:
                break
        self.assertGreater(place, 10)

    def ended_and_interrupted(self):
        """An operation that has ended, which only the call of the library knows that an exception has kept from returning."""
        operation = self.first.push_pull()
        self.complete()
        waits = _flight.Use.wait

        def interrupted(*arguments):
            waits(*arguments)
            raise KeyboardInterrupt
        with unittest.mock.patch.object(_flight.Use, "wait", interrupted), self.assertRaises(KeyboardInterrupt):
            operation.wait(FOREVER_S)
        return operation

    def test_whoever_asks_after_an_interrupted_wait(self):
        self.assertTrue(self.ended_and_interrupted().done())

    def test_whoever_awaits_after_an_interrupted_wait(self):
        self.loop.run_until_complete(asyncio.wait_for(await_(self.ended_and_interrupted()), LOST_S))

    def test_a_handler_that_raises_an_error_of_mercury(self):
        operation = self.first.push_pull()
        task = self.begin(operation)
        self.complete()
        failure = mercurystack.MercuryTimeoutError(errno.ETIMEDOUT, "another's")
        with unittest.mock.patch.object(self.job._flight, "_read_completions", side_effect=failure), self.assertRaises(mercurystack.MercuryTimeoutError):
            self.job.poll()
        self.loop.run_until_complete(asyncio.wait_for(task, LOST_S))

    def test_what_an_interrupted_poll_has_is_not_the_job_s_failure(self):
        operation = self.first.push_pull()
        self.complete()
        with unittest.mock.patch.object(self.job._flight, "_read_completions", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.job.poll()
        self.cluster.contexts[2].close()
        with self.assertRaises(mercurystack.JobFailedError):
            self.first.push_pull().wait(FOREVER_S)
        operation.wait(FOREVER_S)
        self.assertIsNone(operation.exception())

    def test_a_handler_that_polls_as_an_await_begins(self):
        made = _flight._Reader

        def interrupted(*arguments):
            self.job.poll()
            return made(*arguments)

        operation = self.first.push_pull()
        self.complete()
        with unittest.mock.patch.object(_flight, "_Reader", interrupted):
            self.loop.run_until_complete(asyncio.wait_for(await_(operation), LOST_S))


class Interrupting(dict):
    """Operations; a handler runs behind the first look for the one of `handle`."""

    def __init__(self, operations, handle, handler):
        super().__init__(operations)
        self.handle, self.handler = handle, handler

    def get(self, handle):
        found = super().get(handle)
        if handle == self.handle and self.handler is not None:
            handler, self.handler = self.handler, None
            handler()
        return found


class Amid(unittest.TestCase):
    """Handlers that poll while another poll of the same thread reads what the library has written."""

    def setUp(self):
        self.flight = _flight.Flight(_flight.Use(ctypes.c_void_p()))
        self.operations = {handle: Operation(None) for handle in range(1, 6)}
        self.batches = []
        patch = unittest.mock.patch.object(_native.library, "mercury_poll", self.fill)
        patch.start()
        self.addCleanup(patch.stop)

    def fill(self, job, completions, *_):
        batch = self.batches.pop(0) if self.batches else []
        for one, (handle, status, message) in zip(completions, batch):
            one.handle, one.status, one.message = handle, status, message
        return len(batch)

    def collect(self):
        self.flight.collect(ctypes.c_void_p())

    def failures(self):
        return [operation._status and (operation._status, operation._text) for operation in self.operations.values()]

    def test_each_operation_has_its_own_failure(self):
        self.batches = [[(1, -errno.EPIPE, b"of 1"), (2, 0, None)], [(3, -errno.ETIME, b"of 3"), (4, -errno.EIO, b"of 4"), (5, 0, None)]]
        self.flight._operations = Interrupting(self.operations, 1, self.collect)
        self.collect()
        self.assertEqual(self.failures(), [(-errno.EPIPE, "of 1"), 0, (-errno.ETIME, "of 3"), (-errno.EIO, "of 4"), 0])

    def test_what_a_handler_leaves_is_there_for_the_next_poll(self):
        """It polls, is interrupted itself, and goes on."""
        def interrupted():
            with self.assertRaises(KeyboardInterrupt), \
                    unittest.mock.patch.object(self.flight, "_operations", Interrupting(self.operations, 4, self.interrupt)):
                self.collect()
        self.batches = [[(1, 0, None), (2, 0, None)], [(3, 0, None), (4, -errno.EIO, b"of 4"), (5, 0, None)]]
        self.flight._operations = Interrupting(self.operations, 1, interrupted)
        self.collect()
        self.collect()
        self.assertEqual(self.failures(), [0, 0, 0, (-errno.EIO, "of 4"), 0])

    def test_a_handler_that_reads_what_was_left(self):
        self.batches = [[(1, 0, None)]]
        self.flight._operations = Interrupting(self.operations, 1, self.interrupt)
        with self.assertRaises(KeyboardInterrupt):
            self.collect()
        counts = np.count_nonzero

        def interrupted(handles):
            with unittest.mock.patch.object(np, "count_nonzero", counts):
                self.collect()
            return counts(handles)
        with unittest.mock.patch.object(np, "count_nonzero", interrupted):
            self.collect()
        self.assertEqual(self.failures(), [0, None, None, None, None])

    def interrupt(self):
        raise KeyboardInterrupt


class Limits(unittest.TestCase):
    def test_of_a_wait_behind_another_thread(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        first, second = cluster.declare(1000)
        operation = first.push_pull()
        leader = threading.Thread(target=operation.wait, args=(FOREVER_S,))
        leader.start()
        ends = threading.Timer(2, second.push_pull)  # which ends the wait that has no limit
        ends.start()
        try:
            for _ in range(20):
                with self.assertRaisesRegex(mercurystack.MercuryTimeoutError, "still in flight"):
                    operation.wait(0.01)
        finally:
            ends.join()
            leader.join()
        operation.wait(0)


if __name__ == "__main__":
    unittest.main()
