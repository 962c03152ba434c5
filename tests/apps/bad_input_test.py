"""What is wrong is named to the one who is wrong, and harms nobody else: real daemons over io_uring
on loopback, and real programs. No root needed.

usage: bad_input_test.py STACKD CTL LIBMERCURYSTACK
"""
import contextlib
import ctypes
import errno
import json
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import frames  # noqa: E402
from daemons import UDP_PORT, Daemon, config, some_address  # noqa: E402
from program import Program  # noqa: E402

STACKD, CTL, LIBRARY = sys.argv[1:4]
VERSION_MISMATCH = 25  # Errc
TENSOR = [0, 20000, "f32", "sum"]


SO_ATTACH_FILTER = 26
LOAD_WORD, LOAD_BYTE, EQUAL, RETURN = 0x20, 0x30, 0x15, 0x06  # classic BPF


def capture(conditions):
    """A socket that gets the loopback's IP packets of which all conditions hold: (load, offset, value)."""
    program = b""
    for i, (load, offset, value) in enumerate(conditions):
        program += struct.pack("=HBBI", load, 0, 0, offset)
        program += struct.pack("=HBBI", EQUAL, 0, 2 * (len(conditions) - 1 - i) + 1, int.from_bytes(value, "big"))
    program += struct.pack("=HBBI", RETURN, 0, 0, 65536) + struct.pack("=HBBI", RETURN, 0, 0, 0)
    code = ctypes.create_string_buffer(program)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    wire.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                    struct.pack("HP", len(program) // 8, ctypes.addressof(code)))
    wire.bind(("lo", 0x0800))
    wire.settimeout(20)
    return wire


class Bystander:
    """A job of two workers that goes on beside what a test does; stop() says how that went."""

    def __init__(self, test):
        self.programs = [test.program(host) for host in ("left", "right")]
        self.replies = []
        self.stopping = threading.Event()
        self.exchanging, self.turn = threading.Lock(), threading.Lock()
        for rank, program in enumerate(self.programs):
            program.begin("open", name="bystander", rank=rank, workers=2, servers=1, rendezvous=test.rendezvous)
        self.everyone(test)
        for program in self.programs:
            program.begin("declare", tensors=[TENSOR])
        self.everyone(test)
        self.rounds = 0
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        test.addCleanup(self.end)

    def everyone(self, test):
        for program in self.programs:
            reply = program.result()
            test.assertEqual(reply.code, 0, reply.text)

    def run(self):
        try:
            while not self.stopping.is_set() and not self.error:
                with self.turn:  # of whoever waits in at_rest()
                    pass
                with self.exchanging:
                    self.exchange()
        except Exception as error:  # shown by stop()
            self.error = error

    def exchange(self):
        for program in self.programs:
            program.begin("exchange", tensor=0, rounds=5)
        for reply in [program.result() for program in self.programs]:
            if reply.code != 0 or reply.text:
                self.error = reply
        self.rounds += 5

    @contextlib.contextmanager
    def at_rest(self):
        """Between two exchanges, so that what daemons hold for it is the same each time."""
        with self.turn, self.exchanging:
            yield

    def end(self):
        self.stopping.set()
        self.thread.join(30)

    def stop(self, test):
        before = self.rounds
        deadline = time.monotonic() + 60
        while self.rounds < before + 10 and not self.error and time.monotonic() < deadline:
            time.sleep(0.01)  # it still goes on, after all that has happened
        self.end()
        test.assertIsNone(self.error)
        test.assertGreaterEqual(self.rounds, before + 10)
        for program in self.programs:
            program.begin("close")
        for program in self.programs:
            program.result()


class Overheard:
    """A chunk that a host has sent to another, and whatever is made of it, from that host."""

    def __init__(self, test, packet, to="server"):
        self.test, self.packet, self.to = test, packet, to
        self.frame = packet[28:28 + 48 + int.from_bytes(packet[28 + 6:28 + 8], "big")]
        self.payload, self.tag = self.frame[48:], frames.tag_of(self.frame)
        self.session, = struct.unpack_from(">I", self.frame, 8)
        self.chunk = struct.unpack_from(">IIIHHI", self.frame, 24)
        self.forger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        test.addCleanup(self.forger.close)

    def forge(self, frame, counter):
        """It is dropped, and counted."""
        daemon = self.test.daemons[self.to]
        before = daemon.counters()[counter]
        udp = self.packet[20:24] + struct.pack(">HH", 8 + len(frame), 0)
        self.forger.sendto(self.packet[:10] + bytes(2) + self.packet[12:20] + udp + frame,
                           (self.test.addresses[self.to], 0))
        self.test.wait_for(lambda: daemon.counters()[counter] > before, counter)


UNUSED = 1 << 31  # a packet number that nobody comes to, near enough to be believed


class BadInputTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.daemons, self.addresses = {}, {}

    def daemon(self, name, extra=""):
        self.addresses[name] = some_address()
        path = config(self.folder, self.addresses[name], extra, name)
        self.daemons[name] = Daemon(STACKD, CTL, self.folder, path)
        self.addCleanup(self.daemons[name].stop, signal.SIGKILL)
        return self.daemons[name]

    def cluster(self, server="", everywhere="", worker=""):
        """Hosts "left" and "right" for workers, "server" for the sums."""
        self.daemon("server", everywhere + server)
        for name in ("left", "right"):
            self.daemon(name, everywhere + "[jobs]\nserve = false\n" + worker)
        self.rendezvous = f"{self.addresses['server']}:{UDP_PORT}"

    def program(self, host):
        where = host if host.startswith("embedded:") else self.daemons[host].socket
        program = Program(LIBRARY, where)
        self.addCleanup(program.kill)
        return program

    def open(self, program, begin=False, **options):
        given = {"name": "train", "rank": 0, "workers": 1, "servers": 1, "rendezvous": self.rendezvous, **options}
        if begin:
            return program.begin("open", **given)
        return program.call("open", **given)

    def refused(self, reply, code, *words):
        self.assertEqual(-reply.code, code, f"{errno.errorcode.get(-reply.code)}: {reply.text}")
        for word in words:
            self.assertIn(word, reply.text)

    def pair(self, hosts=("left", "right"), **options):
        """Two programs in one job, both open."""
        programs = [self.program(host) for host in hosts]
        for rank, program in enumerate(programs):
            self.open(program, begin=True, rank=rank, workers=2, **options)
        for program in programs:
            reply = program.result()
            self.assertEqual(reply.code, 0, reply.text)
        return programs

    def test_each_wrong_job_has_its_own_error(self):
        self.cluster('[jobs]\nopen = false\n[[job]]\nname = "guarded"\nsecret = "right"\n'
                     '[[job]]\nname = "train"\n[[job]]\nname = "bystander"\n')
        bystander = Bystander(self)
        stranger = self.program("left")
        self.refused(self.open(stranger, name="nobody"), errno.ESRCH, "'nobody'", self.rendezvous, "[[job]]")
        before = self.daemons["server"].counters()["sessions_refused"]
        self.refused(self.open(stranger, name="guarded", secret="wrong"), errno.ESRCH, "'guarded'", self.rendezvous, "with this secret")
        self.assertEqual(self.daemons["server"].counters()["sessions_refused"], before + 1)
        self.refused(self.open(stranger, name="guarded"), errno.ESRCH, "with this secret")
        self.assertEqual(self.open(stranger, name="guarded", secret="right").code, 0)
        stranger.call("close")
        self.refused(self.open(stranger, rank=2, workers=2), errno.EINVAL, "rank is 2", "-1 to 1")
        self.refused(self.open(stranger, rank=-2), errno.EINVAL, "rank is -2")
        self.refused(self.open(stranger, workers=0), errno.EINVAL, "workers", "1 to 1024")
        self.refused(self.open(stranger, workers=1025), errno.EINVAL, "workers", "1 to 1024")
        self.refused(self.open(stranger, servers=0), errno.EINVAL, "servers", "1 to 1024")
        self.refused(self.open(stranger, name="no spaces"), errno.EINVAL, "name")
        self.refused(self.open(stranger, timeout_ms=0), errno.EINVAL, "time")
        self.refused(self.open(stranger, rendezvous="nowhere"), errno.EINVAL, "nowhere")
        bystander.stop(self)

    def test_sizes_that_differ_and_ranks_that_are_taken(self):
        self.cluster()
        bystander = Bystander(self)
        first, wrong, second = (self.program(host) for host in ("left", "right", "right"))
        self.open(first, begin=True, rank=0, workers=2)
        self.wait_for(lambda: any("worker 0 1" in line for line in self.members("train")))
        opened = "'train' was opened with 2 workers, 1 servers"
        self.refused(self.open(wrong, rank=1, workers=3), errno.ERANGE, opened, "3 workers, 1 servers")
        self.refused(self.open(wrong, rank=1, workers=2, servers=2), errno.ERANGE, opened, "2 workers, 2 servers")
        self.refused(self.open(wrong, rank=1, workers=2, deterministic=1), errno.ERANGE,
                     "'train' was opened with deterministic = 0", "this worker asks for deterministic = 1")
        self.refused(self.open(wrong, rank=0, workers=2), errno.EADDRINUSE, "worker 0 of 2", self.addresses["left"])
        self.assertEqual(self.open(second, rank=1, workers=2).code, 0)  # the wrong ones have done no harm
        self.assertEqual(first.result().code, 0)
        self.refused(self.open(wrong, rank=1, workers=2), errno.EADDRINUSE, "'train'")
        bystander.stop(self)

    def members(self, job):
        answer = self.daemons["server"].ctl("jobs", "--json")
        return [line for entry in json.loads(answer.stdout)["jobs"] if entry["name"] == job
                for line in entry["members"]]

    def wait_for(self, condition, what=""):
        """`what`: for the message, or a function that says it."""
        deadline = time.monotonic() + 30
        while not condition():
            if time.monotonic() > deadline:
                self.fail(what() if callable(what) else what)
            time.sleep(0.005)

    def test_declarations_that_differ(self):
        self.cluster()
        bystander = Bystander(self)
        first, second = self.pair()
        self.assertEqual(first.call("declare", tensors=[[7, 1000, "f32", "sum"]]).code, 0)
        for wrong in ([7, 1001, "f32", "sum"], [7, 1000, "f64", "sum"], [7, 500, "f64", "sum"],
                      [7, 1000, "i32", "sum"], [7, 1000, "f32", "average"]):
            numel, dtype, op = wrong[1:]
            self.refused(second.call("declare", tensors=[wrong]), errno.EPROTOTYPE, "tensor 7",
                         f"by worker 1 as {numel} x {dtype}, {op}", "by worker 0 as 1000 x f32, sum")
        # The one that was wrong may correct itself; nobody else has noticed.
        self.assertEqual(second.call("declare", tensors=[[7, 1000, "f32", "sum"]]).code, 0)
        for program in (first, second):
            program.begin("exchange", tensor=7, rounds=20)
        for program in (first, second):
            reply = program.result()
            self.assertEqual((reply.code, reply.text), (0, ""))
        bystander.stop(self)

    def test_a_tensor_that_only_some_workers_declared(self):
        self.cluster()
        bystander = Bystander(self)
        first, second = self.pair()
        self.assertEqual(first.call("declare", tensors=[TENSOR, [1, 1000, "f32", "sum"]]).code, 0)
        self.assertEqual(second.call("declare", tensors=[TENSOR]).code, 0)
        self.refused(second.call("push_pull", tensor=1), errno.ENOENT, "tensor 1 is not declared")
        handle = first.call("push_pull", tensor=1).fields["handle"]
        self.refused(first.call("wait", handle=handle, timeout_ms=200), errno.ETIMEDOUT, "in flight")
        second.call("close")
        self.refused(first.call("wait", handle=handle, timeout_ms=30000), errno.ECONNRESET, "worker 1 of 2",
                     self.addresses["right"],
                     "left the job while tensor 1 waits for it in round 1; it had not declared tensor 1")
        bystander.stop(self)

    def test_a_program_that_gives_up_after_its_declaration_was_refused(self):
        self.cluster()
        bystander = Bystander(self)
        first, second = self.pair()
        self.assertEqual(first.call("declare", tensors=[[7, 1000, "f32", "sum"]]).code, 0)
        self.refused(second.call("declare", tensors=[[7, 1001, "f32", "sum"]]), errno.EPROTOTYPE, "tensor 7")
        handle = first.call("push_pull", tensor=7).fields["handle"]
        self.refused(first.call("wait", handle=handle, timeout_ms=200), errno.ETIMEDOUT, "in flight")
        second.call("close")
        self.refused(first.call("wait", handle=handle, timeout_ms=30000), errno.ECONNRESET, "worker 1 of 2",
                     self.addresses["right"], "left the job while tensor 7 waits for it in round 1; its declaration "
                     "was refused: tensor 7 is declared by worker 1 as 1001 x f32, sum, by worker 0 as 1000 x f32, sum")
        bystander.stop(self)

    def test_the_rendezvous_says_who_is_missing(self):
        self.cluster()
        bystander = Bystander(self)
        nobody = f"{some_address()}:{UDP_PORT}"
        waiting = [self.program("left") for _ in range(3)]
        options = ({"name": "a", "workers": 3, "rank": 1}, {"name": "b", "servers": 2, "rendezvous": f"{self.rendezvous},{nobody}"},
                   {"name": "c", "rendezvous": nobody})
        for program, option in zip(waiting, options):
            self.open(program, begin=True, timeout_ms=700, **option)
        for program, missing in zip(waiting, ("worker 0 of 3, worker 2 of 3", f"server 1 of 2 ({nobody})",
                                              f"server 0 of 1 ({nobody})")):
            self.refused(program.result(), errno.ETIME, "missing when the time limit passed: " + missing)
        bystander.stop(self)

    def dropped(self, daemon, counter, sender, frame, target):
        """The frame is dropped, and counted under that name."""
        before = daemon.counters()[counter]
        sender.sendto(frame, target)
        self.wait_for(lambda: daemon.counters()[counter] > before)

    def test_frames_of_strangers(self):
        self.cluster()
        bystander = Bystander(self)
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        good = frames.frame(frames.HELLO, frames.hello("bystander", 5))
        damaged = good[:-1] + bytes([good[-1] ^ 1])
        strange = {
            "drop_truncated": (b"", b"M", good[:31], frames.frame(frames.PUSH, chunk=(1, 0, 0, 0, 0, 0))[:40]),
            "drop_magic": (b"\x16\x03" + bytes(60), frames.frame(frames.PING, magic=0x4D4D)),
            "drop_version": (frames.frame(frames.PING, version=1), frames.frame(frames.PING, version=3),
                             frames.frame(frames.HELLO, version=2)),
            "drop_type": (frames.frame(0), frames.frame(200), frames.frame(255)),
            "drop_header_crc": (good[:12] + bytes(4) + good[16:], good[:9] + b"\xff" + good[10:]),
            "drop_length": (good[:-1], good + b"x", frames.frame(frames.PING, length=65535)),
            "drop_no_session": (frames.frame(frames.ACK, b"x" * 24, session=77), frames.frame(frames.CLOSE),
                                frames.frame(frames.RESET_TOKEN, bytes(8), session=77), frames.frame(frames.RESET, session=77, number=5),
                                frames.frame(frames.PUSH, b"x" * 64, session=0xFFFFFFFF, chunk=(1, 0, 0, 0, 0, 0))),
            "drop_handshake": (damaged, frames.frame(frames.HELLO), frames.frame(frames.HELLO, b"x" * 81),
                               frames.frame(frames.HELLO, frames.hello("no spaces", 5)),
                               frames.frame(frames.HELLO, frames.hello("bystander", 0))),
        }
        for name in ("server", "left"):
            for counter, drops in strange.items():
                for frame in drops:
                    with self.subTest(host=name, counter=counter, frame=frame.hex()):
                        self.dropped(self.daemons[name], counter, sender, frame, (self.addresses[name], UDP_PORT))
        # A session is for the address that opened it.
        where = (self.addresses["server"], UDP_PORT)
        sender.settimeout(10)
        sender.sendto(good, where)
        kind, _, answer = frames.parse(sender.recv(2048))
        self.assertEqual(kind, frames.HELLO_ACK)
        session, = struct.unpack_from(">I", answer, 8)
        thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(thief.close)
        for frame in (frames.frame(frames.CLOSE, frames.reason(5, 30, "believe me"), session=session),
                      frames.frame(frames.PUSH, b"x" * 64, session=session, chunk=(1, 0, 0, 0, 0, 0))):
            self.dropped(self.daemons["server"], "drop_foreign_source", thief, frame, where)
        generator = random.Random(20251121)
        for _ in range(3000):
            frame = bytearray(good)
            for _ in range(generator.randrange(1, 4)):
                frame[generator.randrange(len(frame))] ^= 1 << generator.randrange(8)
            del frame[generator.randrange(1, 2 * len(frame)):]
            sender.sendto(frame, (self.addresses[generator.choice(("server", "left"))], UDP_PORT))
        bystander.stop(self)

    def capture(self, host, tensor, to="server", kind=frames.PUSH):
        """What the host sends of the tensor, whatever else is on the loopback."""
        source, target = (socket.inet_aton(self.addresses[name]) for name in (host, to))
        wire = capture([(LOAD_WORD, 12, source), (LOAD_WORD, 16, target), (LOAD_BYTE, 28 + 3, bytes([kind])),
                        (LOAD_WORD, 28 + 28, struct.pack(">I", tensor))])
        self.addCleanup(wire.close)
        return wire

    def overheard_pair(self, **options):
        """Two programs after a round of tensor 4000, and what their hosts pushed in it."""
        first, second = self.pair(**options)
        wires = {host: self.capture(host, 4000) for host in ("left", "right")}
        for program in (first, second):
            program.begin("declare", tensors=[[4000, 1000, "f32", "sum"]])
        for program in (first, second):
            self.assertEqual(program.result().code, 0)
            program.begin("exchange", tensor=4000, rounds=1)
        for program in (first, second):
            self.assertEqual((program.result().fields["rounds"]), 1)
        return first, second, {host: Overheard(self, wire.recv(65536)) for host, wire in wires.items()}

    @unittest.skipUnless(os.geteuid() == 0, "only root may read and forge the frames of others")
    def test_frames_damaged_on_the_way(self):
        self.cluster()
        bystander = Bystander(self)
        first, second, overheard = self.overheard_pair()
        victim = overheard["right"]
        forge, frame, session = victim.forge, victim.frame, victim.session
        number, tensor, chunk, priority, sender, incarnation = victim.chunk
        first.begin("exchange", tensor=4000, rounds=1)  # the round is open, and lacks the second worker
        payload, tag = victim.payload, victim.tag
        for bit in (0, 17, 8 * len(payload) - 1):
            damaged = bytearray(payload)
            damaged[bit // 8] ^= 1 << bit % 8
            # A packet number that was never used: it is not a duplicate.
            forge(frames.frame(frames.PUSH, bytes(damaged), session=session, number=UNUSED, payload_crc=frames.crc32c(payload),
                               chunk=(number + 1, tensor, chunk, priority, sender, incarnation), tag=tag),
                  "drop_payload_crc")
        for byte in (4, 5, 12, 20, 25, 33, 47):
            damaged = bytearray(frame)
            damaged[byte] ^= 4
            forge(bytes(damaged), "drop_header_crc")
        # Whoever has not read the session's frames does not know its tag: all else of these is right.
        for guess in ((0, 0), (tag[0] ^ 1, tag[1]), (tag[0], tag[1] ^ 0x80000000)):
            forge(frames.frame(frames.PUSH, payload, session=session, number=UNUSED, tag=guess,
                               chunk=(number + 1, tensor, chunk, priority, sender, incarnation)),
                  "drop_payload_crc" if guess[0] == tag[0] else "drop_header_crc")
        forge(frames.frame(frames.PUSH, payload, session=session, number=1 << 33, tag=tag,
                           chunk=(number + 1, tensor, chunk, priority, sender, incarnation)), "drop_far_ahead")
        forge(frame, "drop_duplicate")
        forge(frame[:-1], "drop_length")
        second.begin("exchange", tensor=4000, rounds=1)
        for program in (first, second):
            reply = program.result()
            self.assertEqual((reply.code, reply.text), (0, ""))
        bystander.stop(self)

    @unittest.skipUnless(os.geteuid() == 0, "only root may read and forge the frames of others")
    def test_sums_damaged_on_the_way(self):
        """What they have written into the tensor the sum replaces."""
        self.cluster()
        sums = self.capture("server", 4000, to="left", kind=frames.RESULT)
        first, second, _ = self.overheard_pair()
        victim = Overheard(self, sums.recv(65536), to="left")
        number, *others = victim.chunk
        pushes = self.capture("left", 4000)
        first.begin("exchange", tensor=4000, rounds=1)
        pushes.recv(65536)  # it waits for the next sum, which lacks the second worker
        for bit in (0, 17, 8 * len(victim.payload) - 1):
            damaged = bytearray(victim.payload)
            damaged[bit // 8] ^= 1 << bit % 8
            victim.forge(frames.frame(frames.RESULT, bytes(damaged), session=victim.session, number=UNUSED,
                                      payload_crc=frames.crc32c(victim.payload), chunk=(number + 1, *others), tag=victim.tag),
                         "drop_payload_crc")
        second.begin("exchange", tensor=4000, rounds=1)
        for program in (first, second):
            reply = program.result()
            self.assertEqual((reply.code, reply.text), (0, ""))

    @unittest.skipUnless(os.geteuid() == 0, "only root may read and forge the frames of others")
    def test_frames_forged_by_one_who_reads_them(self):
        """The session, its tag and the checksums are right, the packet number is new; what they say is wrong."""
        self.cluster()
        bystander = Bystander(self)
        first, second, overheard = self.overheard_pair()
        left, right = overheard["left"], overheard["right"]
        others = Overheard(self, self.capture("right", TENSOR[0]).recv(65536))
        round_, tensor, chunk, priority, sender, incarnation = right.chunk
        wire = self.capture("left", tensor)
        first.begin("exchange", tensor=tensor, rounds=1)  # the round is open, and lacks the second worker
        now = Overheard(self, wire.recv(65536)).chunk[0]
        self.assertEqual(now, round_ + 1)
        # Who hears that a packet has arrived which it never sent ends the session: not until all of these are sent.
        for host in ("left", "right"):
            self.daemons[host].process.send_signal(signal.SIGSTOP)
        rows = (
            ("another job's tag", "drop_header_crc", right, others.tag, right.chunk),
            ("the round before", "drop_round_old", right, right.tag, right.chunk),
            ("two rounds before", "drop_round_old", right, right.tag, (now - 2, *right.chunk[1:])),
            ("the next round", "drop_round_new", right, right.tag, (now + 1, *right.chunk[1:])),
            ("no such tensor", "drop_unknown_tensor", right, right.tag, (now, tensor + 1, *right.chunk[2:])),
            ("no such chunk", "drop_chunk_range", right, right.tag, (now, tensor, chunk + 1, *right.chunk[3:])),
            ("its last incarnation", "drop_incarnation", right, right.tag, (now, *right.chunk[1:5], incarnation - 1)),
            ("the other worker", "drop_worker_rank", right, right.tag, (now, *right.chunk[1:4], sender - 1, incarnation)),
            ("once more", "drop_contributed_twice", left, left.tag, (now, *left.chunk[1:])),
        )
        for i, (what, counter, worker, tag, header) in enumerate(rows):
            with self.subTest(what):
                worker.forge(frames.frame(frames.PUSH, worker.payload, session=worker.session, number=UNUSED + i,
                                          tag=tag, chunk=header), counter)
        for host in ("left", "right"):
            self.daemons[host].process.send_signal(signal.SIGCONT)
        reply = first.result()
        self.assertIn("never sent", reply.text)
        bystander.stop(self)

    @unittest.skipUnless(os.geteuid() == 0, "only root may read and forge the frames of others")
    def test_who_reads_frames_with_seals_forges_none(self):
        """All that one frame shows is right, tag and sums too; the seal is the one that he has read."""
        required = 'authentication = "required"\n'
        self.cluster(f'[jobs]\n{required}[[job]]\nname = "train"\nsecret = "hush"\n', worker=required)
        bystander = Bystander(self)
        first, second, overheard = self.overheard_pair(secret="hush")
        victim = overheard["right"]
        server = self.daemons["server"].counters()
        self.assertGreater(server["sessions_sealed"], 0)
        self.assertLess(server["sessions_sealed"], server["sessions_opened"], "the bystander has no secret")
        seal, payload = victim.payload[:16], victim.payload[16:]
        tag = frames.tag_of(victim.frame[:48] + payload)
        round_, tensor, chunk, priority, sender, incarnation = victim.chunk
        first.begin("exchange", tensor=tensor, rounds=1)  # the round is open, and lacks the second worker
        close = frames.reason(victim.session, 34, "go away")
        for i, (kind, body, words) in enumerate(((frames.PUSH, payload, (round_ + 1, tensor, chunk, priority, sender, incarnation)),
                                                 (frames.PUSH, bytes(len(payload)), victim.chunk),
                                                 (frames.CLOSE, close, None), (frames.PING, b"", None))):
            for wrong in (seal, bytes(16)):
                victim.forge(frames.frame(kind, wrong + body, session=victim.session, number=UNUSED + i, tag=tag,
                                          payload_crc=frames.crc32c(body), chunk=words), "drop_seal")
        victim.forge(victim.frame, "drop_duplicate")
        second.begin("exchange", tensor=tensor, rounds=1)
        for program in (first, second):
            reply = program.result()
            self.assertEqual((reply.code, reply.text), (0, ""))
        bystander.stop(self)

    def heard_of_an_exchange(self, authentication):
        """All payloads between the left worker's host and the server's in a round of tensor 4000."""
        self.cluster(f'[jobs]\nauthentication = "{authentication}"\n[[job]]\nname = "train"\nsecret = "hush"\n')
        left, server = (socket.inet_aton(self.addresses[name]) for name in ("left", "server"))
        wires = [capture([(LOAD_WORD, 12, source), (LOAD_WORD, 16, target)]) for source, target in ((left, server), (server, left))]
        for program in self.overheard_pair(secret="hush")[:2]:
            program.begin("close")
            self.assertEqual(program.result().code, 0)
        heard = []
        for wire in wires:
            self.addCleanup(wire.close)
            wire.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.append(wire.recv(65536)[28:])
        return [frame[48 if frame[3] in (frames.PUSH, frames.RESULT) else 32:] for frame in heard if frame[:2] == b"MU"]

    def shows_gradients_and_sums(self, authentication):
        heard = self.heard_of_an_exchange(authentication)
        self.assertGreater(len(heard), 10)
        gradients, sums = (struct.pack("<4f", *(first + step * i for i in range(1, 5))) for first, step in ((0, 1), (100, 2)))
        shown = [any(values in payload for payload in heard) for values in (gradients, sums)]
        self.assertEqual(shown[0], shown[1])
        return shown[0]

    @unittest.skipUnless(os.geteuid() == 0, "only root may read the frames of others")
    def test_who_reads_frames_with_seals_reads_gradients_and_sums(self):
        self.assertTrue(self.shows_gradients_and_sums("required"))
        self.assertEqual(self.daemons["server"].counters()["sessions_encrypted"], 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root may read the frames of others")
    def test_who_reads_encrypted_frames_reads_neither_of_them(self):
        """Although the server's host alone asks for it."""
        self.assertFalse(self.shows_gradients_and_sums("encrypted"))
        counted = self.daemons["server"].counters()
        self.assertGreater(counted["sessions_encrypted"], 0)
        self.assertEqual(counted["sessions_encrypted"], counted["sessions_opened"])

    def test_who_requires_authentication_is_told_by_name_who_has_it_off(self):
        self.cluster('[jobs]\nauthentication = "required"\n[[job]]\nname = "train"\nsecret = "hush"\n', worker='authentication = "off"\n')
        self.refused(self.open(self.program("left"), secret="hush"), errno.ENOTSUP, "only authenticated frames", "required")
        self.wait_for(lambda: "only authenticated frames" in self.daemons["server"].log())

    def test_versions_that_differ_from_a_stranger(self):
        self.cluster()
        bystander = Bystander(self)
        server = self.daemons["server"]
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(stranger.close)
        stranger.settimeout(10)
        stranger.bind((some_address(), 0))
        before = server.counters()["sessions_refused"]
        stranger.sendto(frames.frame(frames.HELLO, frames.hello("bystander", 5, versions=(3, 4))),
                        (self.addresses["server"], UDP_PORT))
        kind, session, payload = frames.parse(stranger.recv(2048))
        self.assertEqual((kind, session), (frames.REFUSE, 5))
        said = "the connecting side speaks wire version 3 to 4, the answering side 2"
        self.assertEqual(frames.parse_reason(payload), (VERSION_MISMATCH, said))
        who = "%s:%d" % stranger.getsockname()
        self.wait_for(lambda: f"refused {who} for job 'bystander': {said}" in server.log())
        self.assertEqual(server.counters()["sessions_refused"], before + 1)
        # One that speaks ours too is answered by the version that both have.
        stranger.sendto(frames.frame(frames.HELLO, frames.hello("bystander", 6, versions=(1, 9), nonce=bytes(range(16)))),
                        (self.addresses["server"], UDP_PORT))
        frame = stranger.recv(2048)
        kind, session, payload = frames.parse(frame)
        self.assertEqual((kind, session, payload[0]), (frames.HELLO_ACK, 6, frames.VERSION))
        self.assertEqual(frame[16:24], bytes(range(8, 16)))
        bystander.stop(self)

    def test_versions_that_differ_from_the_server(self):
        self.cluster()
        bystander = Bystander(self)
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(server.close)
        server.settimeout(10)
        server.bind((some_address(), UDP_PORT))
        there = "%s:%d" % server.getsockname()
        program = self.program("left")

        def hello():
            while True:  # CLOSE of an earlier session may come three times
                frame, source = server.recvfrom(2048)
                if frame[3] == frames.HELLO:
                    _, _, payload = frames.parse(frame)
                    return int.from_bytes(payload[8:12], "big"), payload[24:40], payload[72:].decode(), source
        self.open(program, begin=True, rendezvous=there)
        session, nonce, _, source = hello()
        said = "the connecting side speaks wire version 2, the answering side 3 to 4"
        # Whoever has not seen the HELLO is not believed.
        self.dropped(self.daemons["left"], "drop_forged_answer", server,
                     frames.frame(frames.REFUSE, frames.reason(session, VERSION_MISMATCH, "go away"), session=session,
                                  number=frames.echo_of(nonce) ^ 1), source)
        server.sendto(frames.frame(frames.REFUSE, frames.reason(session, VERSION_MISMATCH, said), session=session,
                                   number=frames.echo_of(nonce)), source)
        self.refused(program.result(), errno.EPROTONOSUPPORT, said, there)
        server.setblocking(False)
        with self.assertRaises(BlockingIOError):  # HELLO was said again before the answer
            while True:
                server.recv(2048)
        server.settimeout(10)
        self.open(program, begin=True, rendezvous=there)
        session, nonce, job, source = hello()
        server.sendto(frames.frame(frames.HELLO_ACK, frames.hello_ack(9, version=3), session=session,
                                   number=frames.echo_of(nonce)), source)
        self.refused(program.result(), errno.EPROTONOSUPPORT, "chose wire version 3, which was not offered", there)
        frame = server.recv(2048)
        while frame[3] == frames.HELLO:
            frame = server.recv(2048)
        kind, session, payload = frames.parse(frame, frames.frame_tag(frames.job_key(job), nonce, bytes(16)))
        self.assertEqual((kind, session), (frames.CLOSE, 9))
        self.assertEqual(frames.parse_reason(payload)[0], VERSION_MISMATCH)
        bystander.stop(self)

    def held(self, name):
        """Of what a daemon keeps for others: all that must go back to where it was."""
        status = self.daemons[name].status()
        for changing in ("uptime_s", "resident_bytes", "heap_bytes"):
            del status[changing]
        for engine in status["engines"]:
            if engine["jobs"] > 0:  # one that is left has frames on their way
                del engine["packet_buffers"]
        return status

    def held_by_all(self, names):
        """The same for each of `names`, once the engines' gauges show that all sessions are open and at rest."""
        moving = ("handshakes", "queued_ranges", "sent_blocks")
        seen = {}

        def at_rest():  # the gauges that are looked at are those that are returned: a PING may be sent meanwhile
            seen.update({name: self.held(name) for name in names})
            return not any(engine[gauge] for held in seen.values() for engine in held["engines"] for gauge in moving)
        self.wait_for(at_rest, lambda: f"they hold {seen}")
        return seen

    def wait_until_held(self, before):
        """Until the daemons named in `before` hold what it says again."""
        for name in before:
            self.wait_for(lambda: self.held(name) == before[name],
                          lambda: f"{name} holds {self.held(name)}, before {before[name]}")

    def begin_mid_exchange(self, programs, rounds_of_last=1 << 30):
        """They exchange without end, and are in the midst of it when this returns."""
        for program in programs:
            program.begin("declare", tensors=[[0, 250000, "f32", "sum"]])
        for program in programs:
            self.assertEqual(program.result().code, 0)
        before = self.daemons["server"].counters()["push_chunks"]
        for program in programs:
            program.begin("exchange", tensor=0, rounds=rounds_of_last if program is programs[-1] else 1 << 30)
        self.wait_for(lambda: self.daemons["server"].counters()["push_chunks"] > before + 1000)

    def test_programs_that_end_in_the_midst_leave_nothing(self):
        self.cluster(everywhere='[session]\npeer_timeout = "1s"\n')  # so long sessions that have ended are remembered
        bystander = Bystander(self)
        with bystander.at_rest():
            before = self.held_by_all(self.daemons)
        heap = {}
        for cycle in range(12):
            first, second = self.pair()
            if cycle % 2:
                self.begin_mid_exchange((first, second))
                second.kill()
            else:
                self.begin_mid_exchange((first, second), rounds_of_last=15)
                second.begin("end")  # its last word to anyone is its 15th round
            self.refused(first.result(), errno.ECONNRESET, "worker 1 of 2", self.addresses["right"], "program")
            if cycle % 3:
                first.kill()
            else:
                first.reap()
            second.kill()
            with bystander.at_rest():
                self.wait_until_held(before)
            heap[cycle] = {name: self.daemons[name].status()["heap_bytes"] for name in self.daemons}
        for name in self.daemons:  # the first ones fill what is kept for the next
            self.assertLess(heap[11][name] - heap[3][name], 8192, name)
        bystander.stop(self)

    def test_a_program_is_dead_although_its_child_holds_its_connection(self):
        self.cluster()
        before = self.held_by_all(self.daemons)
        first, second = self.pair()
        child = second.call("fork").fields["child"]
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.begin_mid_exchange((first, second))
        second.kill()
        self.refused(first.result(), errno.ECONNRESET, "worker 1 of 2", self.addresses["right"], "program")
        first.kill()
        self.wait_until_held(before)
        os.kill(child, 0)  # has lived all the while

    def test_the_log_says_what_became_of_jobs(self):
        self.cluster()
        server = f"server 0 of 1 ({self.rendezvous})"
        worker = [f"worker {rank} of 2 ({self.addresses[host]}:{UDP_PORT})" for rank, host in enumerate(("left", "right"))]

        def logged(host, line):
            self.wait_for(lambda: line in self.daemons[host].log(), lambda: f"{line}\nis not in\n{self.daemons[host].log()}")
        pair = self.pair(name="good")
        for program in pair:
            program.begin("close")
        for program in pair:
            program.result()
        for host, who in (("server", server), ("left", worker[0]), ("right", worker[1])):
            logged(host, f"info: job 'good' opened for {who}\n")
            logged(host, f"info: job 'good' ended for {who}\n")
        pair = self.pair(name="bad")
        pair[1].kill()
        for host in ("server", "left", "right"):
            logged(host, f"warning: job 'bad' failed (peer_left): {worker[1]}: its program ended\n")
        lonely = self.program("left")
        self.refused(self.open(lonely, name="late", workers=2, timeout_ms=300), errno.ETIME, "worker 1 of 2")
        for host in ("server", "left"):
            logged(host, "warning: job 'late' did not open (missing_members): missing when the time limit passed: worker 1 of 2\n")
        # Coming back is told where the coordinator is.
        pair = self.pair(name="again", rejoin_ms=60000)
        pair[1].kill()
        logged("server", f"warning: job 'again' waits 60000 ms for the return of {worker[1]}: its program ended\n")
        self.assertEqual(self.open(self.program("right"), name="again", rank=1, workers=2, rejoin_ms=60000).code, 0)
        logged("server", f"info: job 'again' has {worker[1]} back\n")

    def test_jobs_do_not_fill_the_log(self):
        self.cluster()
        program = self.program("left")
        for _ in range(40):
            self.assertEqual(self.open(program).code, 0)
            program.call("close")
        for host in ("left", "server"):
            said = [line for line in self.daemons[host].log().splitlines() if "job 'train'" in line]
            self.assertIn("opened", said[0])
            self.assertLess(len(said), 60, "\n".join(said))

    def test_hosts_that_are_lost_are_named_within_the_peer_time_out(self):
        self.cluster(everywhere='[session]\npeer_timeout = "2s"\n')
        bystander = Bystander(self)
        with bystander.at_rest():
            before = self.held_by_all(("server", "left"))
        lost = some_address()
        first, second = self.pair(hosts=("left", f"embedded:{lost}"))
        self.begin_mid_exchange((first, second))
        second.kill()  # nobody is left to say goodbye for it
        self.refused(first.result(), errno.EHOSTDOWN, "worker 1 of 2", lost, "for 2 s")
        self.assertRegex(self.daemons["left"].log(), rf"warning: job 'train' failed \(peer_lost\): .*worker 1 of 2 \({lost}:")
        first.reap()
        with bystander.at_rest():
            self.wait_until_held(before)
        bystander.stop(self)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
