#!/usr/bin/env python3
"""What programs take from daemons is given back, however they end, and what one may take is limited:
real daemons over io_uring on loopback, and real programs. No root needed.

usage: resources_test.py STACKD CTL LIBMERCURYSTACK [--kills N] [--connects N] [--seed S] [unittest arguments]

meson test runs the short form (30 kills, 500 connects); tools/nightly resources the long one.
"""
import argparse
import contextlib
import errno
import os
import random
import signal
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402
from hostile_program import HELLO  # noqa: E402
from program import Program  # noqa: E402

parser = argparse.ArgumentParser()
for name in ("stackd", "ctl", "library"):
    parser.add_argument(name)
parser.add_argument("--kills", type=int, default=30)
parser.add_argument("--connects", type=int, default=500)
parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
OPTIONS, REST = parser.parse_known_args()

PATIENCE_S = 300  # a busy machine may stop everything for minutes
KILLS_A_BATCH = 10
# Of the heap, what a table or a log line may keep for the next; not what a program could leave.
HEAP_LEEWAY_BYTES = 16384


class ResourcesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.daemons, self.addresses = {}, {}
        self.random = random.Random(OPTIONS.seed)

    def daemon(self, name, extra=""):
        self.addresses[name] = some_address()
        self.daemons[name] = Daemon(OPTIONS.stackd, OPTIONS.ctl, self.folder,
                                    config(self.folder, self.addresses[name], extra, name))
        self.addCleanup(self.daemons[name].stop, signal.SIGKILL)
        return self.daemons[name]

    def cluster(self, server="", workers=""):
        self.daemon("server", server)
        for name in ("left", "right"):
            self.daemon(name, workers)
        self.rendezvous = f"{self.addresses['server']}:{UDP_PORT}"

    def program(self, host):
        program = Program(OPTIONS.library, self.daemons[host].socket)
        self.addCleanup(program.kill)
        return program

    def open(self, program, **options):
        return program.call("open", **{"name": "train", "rank": 0, "workers": 1, "servers": 1,
                                       "rendezvous": self.rendezvous, **options})

    def wait_for(self, condition, what=lambda: ""):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"seed {OPTIONS.seed}: {what()}")
            time.sleep(0.005)

    def settled(self, before=None):
        """Of all daemons, once nobody uses them; the same as `before`, or it fails."""
        now = {}
        for name, daemon in self.daemons.items():
            def at_rest():
                now[name] = daemon.holds()
                return now[name] == before[name] if before else now[name]["idle"]
            self.wait_for(at_rest, lambda: f"{name} holds {now[name]}, before {before and before[name]}")
        return now

    def heaps(self):
        return {name: daemon.status()["heap_bytes"] for name, daemon in self.daemons.items()}

    def members(self, rejoin_ms):
        """Two programs in one job, and how they are begun: rank 1 is the one that will be killed."""
        survivor, victim = self.program("left"), self.program("right")
        for rank, program in enumerate((survivor, victim)):
            self.enter(program, rank, rejoin_ms)
        for program in (survivor, victim):
            self.entered(program)
        return survivor, victim

    def enter(self, program, rank, rejoin_ms):
        program.begin("open", name="train", rank=rank, workers=2, servers=1, rendezvous=self.rendezvous,
                      timeout_ms=120000, rejoin_ms=rejoin_ms)

    def entered(self, program):
        reply = program.result()
        self.assertEqual(reply.code, 0, reply.text)
        program.begin("declare", tensors=[[0, 100000, "f32", "sum"]])

    def exchanging(self, programs, rounds_of_last=1 << 30):
        """They are in the midst of it, at a place of the seed's choice, when this returns."""
        for program in programs:
            reply = program.result()
            self.assertEqual(reply.code, 0, reply.text)
        before = self.daemons["server"].counters()["push_chunks"]
        for program in programs:
            program.begin("exchange", tensor=0, rounds=rounds_of_last if program is programs[-1] else 1 << 30)
        wanted = before + self.random.choice((0, 1, 50, 500, 2000))
        self.wait_for(lambda: self.daemons["server"].counters()["push_chunks"] >= wanted)

    def test_programs_killed_during_transfer_leave_nothing(self):
        self.cluster()
        before, heaps, killed = self.settled(), [], 0
        while killed < OPTIONS.kills:
            for _ in range(min(KILLS_A_BATCH, OPTIONS.kills - killed)):
                survivor, victim = self.members(0)
                self.exchanging((survivor, victim))
                order = [survivor, victim]
                self.random.shuffle(order)
                order[0].process.send_signal(signal.SIGKILL)
                if self.random.randrange(2):  # the other is told, and goes in good order
                    reply = order[1].result()
                    self.assertEqual(-reply.code, errno.ECONNRESET, f"seed {OPTIONS.seed}: {reply.text}")
                    order[1].reap()
                else:
                    order[1].kill()
                order[0].kill()
                killed += 1
            self.settled(before)
            heaps.append(self.heaps())
        self.heap_is_flat(heaps)

    def heap_is_flat(self, heaps):
        """The first batch fills what is kept for the next."""
        for name in self.daemons:
            first = heaps[min(1, len(heaps) - 1)][name]
            self.assertLess(heaps[-1][name] - first, HEAP_LEEWAY_BYTES, f"seed {OPTIONS.seed}: {name}, {heaps}")

    def test_programs_killed_and_started_again_leave_nothing(self):
        self.cluster()
        before = self.settled()
        rejoin_ms = PATIENCE_S * 1000
        survivor, victim = self.members(rejoin_ms)
        self.exchanging((survivor, victim))
        lives = max(OPTIONS.kills // 3, 1)
        for life in range(lives):
            victim.kill()
            victim = self.program("right")
            self.enter(victim, 1, rejoin_ms)
            self.entered(victim)
            self.exchanging([victim], rounds_of_last=100 if life == lives - 1 else 1 << 30)
        reply = victim.result()
        self.assertEqual((reply.code, reply.text), (0, ""), f"seed {OPTIONS.seed}")
        victim.call("close")  # in good order: nobody is awaited, and the job ends
        reply = survivor.result()
        self.assertEqual((-reply.code, "wrong" in reply.text), (errno.ECONNRESET, False), f"seed {OPTIONS.seed}: {reply.text}")
        victim.reap()
        survivor.kill()
        self.settled(before)

    def connect(self):
        """A connection that has said something, or nothing, and whether it is a program's now: with a
        channel, that is memory and descriptors of the daemon's.
        """
        connection = self.daemons["server"].attach()
        cut = b"\xa1\x63" + b"seq"  # the beginning of a request
        what = self.random.choice((None, b"", cut, self.random.randbytes(40), HELLO, HELLO, HELLO))
        if what is not None:
            with contextlib.suppress(OSError):
                connection.send(what)
        if what != HELLO:
            return connection, False
        _, descriptors, _, _ = socket.recv_fds(connection, 65536, 16)
        for descriptor in descriptors:
            os.close(descriptor)
        return connection, len(descriptors) > 0

    def test_connections_that_come_and_go_leave_nothing(self):
        server = self.daemon("server")
        self.rendezvous = f"{self.addresses['server']}:{UDP_PORT}"
        before, heaps, seen, attached = self.settled(), [], 0, 0
        while seen < OPTIONS.connects:
            held, most = [], 0
            for _ in range(min(250, OPTIONS.connects - seen)):
                connection, greeted = self.connect()
                attached += greeted
                held.append(connection)
                if greeted:
                    most = max(most, server.holds()["mapped memfds"])
                if len(held) > self.random.randrange(20):
                    held.pop(self.random.randrange(len(held))).close()
                seen += 1
            # And one that has slots and sessions, and goes without a word.
            program = self.program("server")
            self.assertEqual(self.open(program).code, 0)
            self.assertEqual(program.call("declare", tensors=[[0, 100000, "f32", "sum"]]).code, 0)
            self.assertEqual(program.call("exchange", tensor=0, rounds=3).fields["rounds"], 3)
            self.assertNotEqual(server.holds()["engines"], before["server"]["engines"])
            program.kill()
            for connection in held:
                connection.close()
            self.assertGreater(most, before["server"]["mapped memfds"], f"seed {OPTIONS.seed}: nobody attached")
            self.settled(before)
            heaps.append(self.heaps())
        self.assertGreater(attached, OPTIONS.connects // 4, f"seed {OPTIONS.seed}")
        self.heap_is_flat(heaps)

    def refused(self, reply, code, *words):
        self.assertEqual(-reply.code, code, f"{errno.errorcode.get(-reply.code)}: {reply.text}")
        for word in words:
            self.assertIn(word, reply.text)

    def test_each_limit_is_named_to_who_meets_it(self):
        self.cluster('[jobs]\nmax_jobs = 2\nmax_tensors = 3\nmemory = "1MiB"\n[[job]]\nname = "small"\nmemory = "64KiB"\n')
        first, second = self.program("left"), self.program("right")
        self.assertEqual(self.open(first).code, 0)
        # jobs.memory, and a [[job]]'s own. No worker may go on without the tensor: the job fails for all.
        self.assertEqual(self.open(second, name="small").code, 0)
        self.refused(first.call("declare", tensors=[[0, 300000, "f32", "sum"]]), errno.ENOSPC, "tensor 0 needs", "limit of 1048576",
                     "jobs.memory, or memory of its [[job]], is 1048576 bytes")
        self.refused(second.call("declare", tensors=[[0, 30000, "f32", "sum"]]), errno.ENOSPC, "tensor 0 needs", "limit of 65536",
                     "jobs.memory, or memory of its [[job]], is 65536 bytes")
        for program, name in ((first, "train"), (second, "small")):
            program.call("close")
            self.assertEqual(self.open(program, name=name).code, 0)
            self.assertEqual(program.call("declare", tensors=[[0, 1000, "f32", "sum"]]).code, 0)
        # jobs.max_tensors: nothing was declared, and the job goes on.
        self.refused(first.call("declare", tensors=[[n, 10, "f32", "sum"] for n in range(1, 4)]), errno.ENOSPC, "jobs.max_tensors")
        # jobs.max_jobs
        self.refused(self.open(self.program("left"), name="third"), errno.ENOSPC, "jobs.max_jobs")
        for program in (first, second):
            self.assertEqual(program.call("exchange", tensor=0, rounds=3).fields["rounds"], 3)

    def test_memory_is_limited_where_nobody_configured_it(self):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.cluster(workers=f'program_memory = "{memory}B"\n')
        quarter = [[0, memory // 8 // 4, "f32", "sum"]]  # two sums of each element, and a little
        first = self.program("left")
        self.assertEqual(self.open(first).code, 0)
        self.refused(first.call("declare", tensors=quarter), errno.ENOSPC, "tensor 0 needs",
                     f"jobs.memory, or memory of its [[job]], is {memory // 4} bytes")

    def test_all_jobs_together_have_a_limit(self):
        self.cluster('[jobs]\nmemory = "1MiB"\ntotal_memory = "1536KiB"\n')
        tensors = [[0, 100000, "f32", "sum"]]  # 800,000 bytes of sums
        first, second = self.program("left"), self.program("right")
        for program, name in ((first, "first"), (second, "second")):
            self.assertEqual(self.open(program, name=name).code, 0)
        self.assertEqual(first.call("declare", tensors=tensors).code, 0)
        self.refused(second.call("declare", tensors=tensors), errno.ENOSPC, "all jobs have", "limit of 1572864",
                     "jobs.total_memory, for all jobs, is 1572864 bytes")
        self.assertEqual(first.call("exchange", tensor=0, rounds=3).fields["rounds"], 3)
        # What a job gives back another one may have.
        for program in (first, second):
            program.call("close")
        server = self.daemons["server"]
        self.wait_for(lambda: server.holds()["idle"], server.holds)
        self.assertEqual(self.open(second, name="second").code, 0)
        self.assertEqual(second.call("declare", tensors=tensors).code, 0)

    def test_each_limit_of_a_host_is_named_to_who_meets_it(self):
        self.daemon("server")
        self.daemon("left", 'max_programs = 2\nprogram_memory = "8MiB"\n[engine]\nmax_sessions = 3\n')
        self.rendezvous = f"{self.addresses['server']}:{UDP_PORT}"
        first = self.program("left")
        self.assertEqual(self.open(first).code, 0)
        # attach.program_memory
        self.refused(first.call("declare", tensors=[[0, 3000000, "f32", "sum"]]), errno.ENOSPC, "program_memory")
        self.assertEqual(first.call("declare", tensors=[[0, 1000, "f32", "sum"]]).code, 0)
        # engine.max_sessions: a job of one worker and one server takes two of them
        second = self.program("left")
        self.refused(self.open(second, name="second"), errno.ENOSPC, "all sessions of the engine are open (engine.max_sessions = 3)")
        # attach.max_programs
        with self.assertRaisesRegex(AssertionError, "attach.max_programs = 2"):
            self.program("left")
        self.assertEqual(first.call("exchange", tensor=0, rounds=3).fields["rounds"], 3)


if __name__ == "__main__":
    print(f"seed {OPTIONS.seed}", file=sys.stderr)
    unittest.main(argv=[sys.argv[0], "-v", *REST])
