"""A program that is attached to a daemon and does its worst, in one way of MODES, until it is killed.

It says what it is about to do, a line each: "ready" when it is attached and its job runs, and for "die"
the step before which it ends itself. The seed decides what is written where.

usage: hostile_program.py LIBMERCURYSTACK SOCKET RENDEZVOUS MODE SEED
"""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import re
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program import Worker  # noqa: E402

MODES = ("scribble", "resize", "punch", "collapse", "stop", "flood", "weight", "share", "fill", "attach", "die")
STEPS = ("attach", "open", "declare", "push", "wait", "close")
NUMEL = 60000
LARGE_NUMEL = 16 << 20  # 64 MiB: a hole takes long to punch, and longer to fill
WEIGHT = 1000  # the largest that a program may ask for
TINY = 3000  # tensors of one element
# Jobs, workers of each, and such tensors.
HOARDS = {"hoard": (4, 1, 60_000),  # more sums than a server keeps for all of them
          "crowd": (1, 60, 2000)}  # more results for its workers than a server has records of for one job
F_ADD_SEALS, F_SEAL_WRITE = 1033, 8
SHARED_BYTES = 64 << 20
OWN_PIECES = 15  # of so much
SYS_USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER = 323, 0xC018AA3F, 0xC020AA00
MANY = 1 << 30
MADV_DONTNEED, MADV_REMOVE, MADV_PAGEOUT, MADV_POPULATE_WRITE, MADV_COLLAPSE = 4, 9, 21, 23, 25
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def message(**fields):
    """A request: a CBOR map of short texts and small numbers."""
    def item(value):
        if isinstance(value, int):
            return b"\x1a" + value.to_bytes(4, "big")
        return bytes([0x60 + len(value)]) + value.encode()
    return bytes([0xa0 + len(fields)]) + b"".join(item(key) + item(value) for key, value in fields.items())


HELLO = message(type="hello", magic=0x4D455243, major=1, minor=6, pid=1, seq=1)
STATUS = message(type="job_status", slot=0, seq=2)


def say(word):
    print(word, flush=True)


def shared_memory():
    """(address, bytes, writable, name) of each mapping of a memfd: the rings, and where tensors lie."""
    with open("/proc/self/maps") as file:
        for line in file:
            if "/memfd:" in line:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                yield first, last - first, line.split()[1][1] == "w", line.split(":")[-1].split()[0]


DIALS = 5  # jobs


class Hostile:
    def __init__(self, library, where, rendezvous, mode, seed):
        self.library, self.where, self.rendezvous, self.mode = library, where, rendezvous, mode
        self.random = random.Random(seed)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.sources = []

    def step(self, name):
        if self.mode == "die":
            say(name)
            if name == self.dies_before:
                os.kill(os.getpid(), signal.SIGKILL)

    def join(self):
        """A job of its own with the server that the innocent use, too."""
        self.dies_before = self.random.choice(STEPS)
        self.step("attach")
        self.worker = Worker(self.library, self.where)
        self.step("open")
        self.open(self.worker, f"hostile-{os.getpid()}")
        self.step("declare")
        numel = LARGE_NUMEL if self.mode in ("punch", "collapse", "churn", "large") else NUMEL
        tiny = [[2 + i, 1, "f32", "sum"] for i in range(TINY if self.mode == "tiny" else 0)]
        self.declare(self.worker, [[0, numel, "f32", "sum"], [1, 500, "f32", "sum"], *tiny])
        say("ready")

    def open(self, worker, name, rank=0, workers=1):
        reply = worker.open(name=name, rank=rank, workers=workers, servers=1, rendezvous=self.rendezvous, timeout_ms=60000,
                            weight=WEIGHT if self.mode == "weight" else 1)
        assert reply["code"] == 0, reply

    @staticmethod
    def declare(worker, tensors):
        reply = worker.declare(tensors)
        assert reply["code"] == 0, reply

    def exchange_without_end(self):
        """In another thread: the operations go on while this one does something else."""
        threading.Thread(target=lambda: self.worker.exchange(0, MANY), daemon=True).start()

    def run(self):
        if self.mode in ("attach", "share"):
            say("ready")
            return self.share() if self.mode == "share" else self.attach_without_end()
        if self.mode == "dial":
            return self.dial()
        if self.mode in HOARDS:
            return self.hoard(*HOARDS[self.mode])
        self.join()
        getattr(self, self.mode)()

    def scribble(self):
        """Over its tensors and its own ring: at random, and from some time on where the engine looks next."""
        self.exchange_without_end()
        places = {name: (address, size) for address, size, _, name in shared_memory()}
        ring, tensors, engine = (places[name] for name in ("mercury-channel-a", "mercury-tensors", "mercury-channel-b"))
        for n in range(MANY):
            address, size = self.random.choice((ring, tensors))
            length = self.random.choice((1, 4, 8, 8, 32, 64, 4096))
            offset = self.random.randrange(size - length) // 8 * 8
            if self.random.randrange(3) == 0:
                offset %= 256  # the header and the positions
            ctypes.memmove(address + offset, self.random.randbytes(length), length)
            if n > 2000:  # channel_layout.h: the engine's position, and the descriptor that it waits for
                position = ctypes.c_uint64.from_address(engine[0] + 128).value
                words = self.random.randbytes(24) + (position + 1).to_bytes(8, "little")
                ctypes.memmove(ring[0] + 192 + position % 1024 * 32, words, 32)
                self.ring_doorbells()

    @staticmethod
    def ring_doorbells():
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if "eventfd" in os.readlink(f"/proc/self/fd/{number}"):
                    os.write(int(number), (1).to_bytes(8, "little"))

    def resize(self):
        """All that would make the daemon's mappings fault, or its memory another's."""
        self.exchange_without_end()
        done = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if re.match(r"/memfd:", os.readlink(f"/proc/self/fd/{number}")):
                    done += self.resize_one(int(number))
        for address, size, _, _ in shared_memory():  # again through its mapping, whoever closed the descriptor
            with contextlib.suppress(OSError):
                done += self.resize_one(os.open(f"/proc/self/map_files/{address:x}-{address + size:x}", os.O_RDWR))
        for address, size, may, _ in shared_memory():
            if may and self.libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_REMOVE) == 0:
                done.append("hole")
        say(f"done {sorted(set(done))}")
        signal.pause()

    def resize_one(self, memfd):
        size = os.fstat(memfd).st_size
        for what, how in (("write", lambda: os.pwrite(memfd, b"x", 0)), ("hole", lambda: self.punch_by(memfd, size)),
                          ("truncate", lambda: os.ftruncate(memfd, 0)), ("shrink", lambda: os.ftruncate(memfd, size - 1)),
                          ("grow", lambda: os.ftruncate(memfd, size + (1 << 20))),
                          ("seal", lambda: fcntl.fcntl(memfd, F_ADD_SEALS, F_SEAL_WRITE))):
            with contextlib.suppress(OSError):
                how()
                yield what

    def punch_by(self, memfd, size):
        if self.libc.fallocate(memfd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
            raise OSError

    def punch(self):
        """Pages of a large tensor taken away, by all means, and given back, while the engine reads and writes them: one that
        it touches within a hole that is being punched comes when the hole is, and every other one from the kernel."""
        threading.Thread(target=self.honest, daemon=True).start()  # who checks its sums would stop at the first
        punched = None
        while True:
            for address, size, _, name in shared_memory():
                if name == "mercury-tensors":
                    for advice in (MADV_POPULATE_WRITE, MADV_PAGEOUT, MADV_DONTNEED, MADV_REMOVE):
                        failed = self.libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
                    if punched is None:
                        punched = failed == 0
                        say(f"punched {punched}")

    def churn(self):
        """Not hostile: what those are compared with that have the kernel take and give pages. These are its own alone."""
        threading.Thread(target=self.honest, daemon=True).start()
        own = mmap.mmap(-1, 4 * LARGE_NUMEL)
        address = ctypes.addressof(ctypes.c_char.from_buffer(own))
        while True:
            for advice in (MADV_POPULATE_WRITE, MADV_PAGEOUT, MADV_DONTNEED):
                self.libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(4 * LARGE_NUMEL), advice)

    def collapse(self):
        """Its pages put together to huge ones, without end: for that the kernel takes them out of the daemon's mapping, too."""
        threading.Thread(target=self.honest, daemon=True).start()
        while True:
            for address, size, _, name in shared_memory():
                if name == "mercury-tensors":
                    for advice in (MADV_DONTNEED, MADV_POPULATE_WRITE, MADV_COLLAPSE):
                        self.libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)

    def stop(self):
        self.exchange_without_end()
        os.kill(os.getpid(), signal.SIGSTOP)

    def flood(self):
        """Submissions as fast as the ring takes them, for tensors that exist and not; nobody takes completions."""
        handle = ctypes.c_uint64()
        while True:
            tensor = self.random.choice((0, 0, 1, 7))
            self.worker.mercury.mercury_push_pull(self.worker.job, ctypes.c_uint32(tensor), self.random.randrange(-1, 100),
                                                  ctypes.byref(handle))

    def honest(self):
        """Not hostile: what the flood is compared with."""
        mercury, job, handle = self.worker.mercury, self.worker.job, ctypes.c_uint64()
        while True:
            handles = []
            for tensor in (0, 1):
                mercury.mercury_push_pull(job, ctypes.c_uint32(tensor), 0, ctypes.byref(handle))
                handles.append(handle.value)
            for number in handles:
                mercury.mercury_wait(job, ctypes.c_uint64(number), -1)

    def large(self):
        """Not hostile: what the one that punches is compared with."""
        self.honest()

    def greedy(self):
        """Not hostile either: exchanges each of its tensors as fast as it is served, and takes every completion."""
        mercury, job, handle = self.worker.mercury, self.worker.job, ctypes.c_uint64()
        waiting = {}
        while True:
            for tensor in (0, 1):
                if tensor in waiting and mercury.mercury_wait(job, ctypes.c_uint64(waiting[tensor]), 0) != 0:
                    continue
                mercury.mercury_push_pull(job, ctypes.c_uint32(tensor), 0, ctypes.byref(handle))
                waiting[tensor] = handle.value

    def weight(self):
        """The same, in a job that is to have nearly all of the link."""
        self.greedy()

    def tiny(self):
        """Not hostile, unless its host is: as many sums as its window takes, of one element each."""
        mercury, job, handle = self.worker.mercury, self.worker.job, ctypes.c_uint64()
        while True:
            handles = []
            for tensor in range(2, 2 + TINY):
                mercury.mercury_push_pull(job, ctypes.c_uint32(tensor), 0, ctypes.byref(handle))
                handles.append(handle.value)
            for number in handles:
                mercury.mercury_wait(job, ctypes.c_uint64(number), -1)

    def hoard(self, jobs, workers, tensors):
        """Nor these: each of many tensors of one element once, when it is told to; nothing afterwards."""
        def join(worker, number):
            self.open(worker, f"hoard-{number // workers}-{os.getpid()}", number % workers, workers)
            self.declare(worker, [[i, 1, "f32", "sum"] for i in range(tensors)])
        members = [Worker(self.library, self.where) for _ in range(jobs * workers)]
        threads = [threading.Thread(target=join, args=(worker, number)) for number, worker in enumerate(members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("ready")
        sys.stdin.readline()
        for worker in members:
            for tensor in range(tensors):
                while worker.push_pull(tensor)["code"] == -errno.EAGAIN:  # its ring is full
                    time.sleep(0.001)
        while True:
            signal.pause()

    def dial(self):
        """Several jobs, in each of which all addresses of the rendezvous are to be servers."""
        def join(worker, name):
            worker.open(name=name, rank=0, workers=1, servers=self.rendezvous.count(",") + 1, rendezvous=self.rendezvous,
                        timeout_ms=600_000)
        for number in range(DIALS):
            threading.Thread(target=join, args=(Worker(self.library, self.where), f"dial-{number}-{os.getpid()}")).start()
        say("ready")

    def share(self):
        """Memory that the daemon makes for it, to which it writes, and into which it punches holes, before it is sealed; it says that it is,
        which is not so, and gives it back. Every second one's lock is held all the while by a write whose source does not come. Every
        third it does not give back, but goes."""
        sequence = iter(range(2, MANY))
        connection = self.greeted()
        for number in range(1, MANY):
            connection = self.share_one(connection, sequence, number)
            if number == 6:
                say("shared")

    def fill(self):
        """As much memory as it may share, to which it writes, and then more; all of it it gives back for the same again."""
        mercury, held = self.worker.mercury, []
        while True:
            memory = ctypes.c_void_p()
            code = mercury.mercury_alloc(self.worker.context, ctypes.c_size_t(SHARED_BYTES), ctypes.byref(memory))
            if code == 0:
                ctypes.memset(memory, 1, SHARED_BYTES)
                held.append(memory)
                continue
            say(f"refused {code} of {len(held)}")
            for memory in held:
                mercury.mercury_free(self.worker.context, memory)
            held.clear()

    def hold(self):
        """Not hostile: the same with memory of its own."""
        while True:
            for memory in [mmap.mmap(-1, SHARED_BYTES) for _ in range(OWN_PIECES)]:
                ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, SHARED_BYTES)

    def greeted(self):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.where)
        connection.send(HELLO)
        connection.recv(4096)
        return connection

    def share_one(self, connection, sequence, number):
        """The connection to go on with."""
        def ask(**fields):
            connection.send(message(**fields, seq=next(sequence)))
            answer, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
            return answer, *descriptors
        added, memfd = ask(type="region_add", region=number, bytes=SHARED_BYTES)
        ends = threading.Event()
        stuck = self.stuck_write(memfd) if number % 2 else None
        works = [] if stuck else [self.fill_and_punch, self.write]
        threads = [threading.Thread(target=work, args=(memfd, ends)) for work in works]
        for thread in threads:
            thread.start()
        for fields, expected in (({"type": "region_add", "region": MANY - number, "bytes": SHARED_BYTES}, b"not sealed yet"),
                                 ({"type": "region_sealed", "region": number}, b"not sealed against holes")):
            answer, = ask(**fields)
            assert expected in answer, answer
        if number % 3:
            answer, = ask(type="region_del", region=number)
            assert b"failed" not in answer, answer
        else:
            connection.close()
            connection = self.greeted()
        ends.set()
        if stuck:
            os.close(stuck[0])
            threads = stuck[1:]
        for thread in threads:
            thread.join()
        os.close(memfd)
        return connection

    def stuck_write(self, memfd):
        """A write from a page that comes when the descriptor is closed, and its thread. None: this kernel lets nobody do that."""
        number = self.libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
        if number < 0:
            return None
        source = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(source))
        fcntl.ioctl(number, UFFDIO_API, struct.pack("QQQ", 0xAA, 0, 0))
        fcntl.ioctl(number, UFFDIO_REGISTER, struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0))
        thread = threading.Thread(target=lambda: self.libc.pwrite(memfd, ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE),
                                                                  ctypes.c_int64(0)))
        thread.start()
        self.sources.append(source)  # as long as that thread
        for _ in range(1000):  # where the kernel says what a thread waits for
            with open(f"/proc/self/task/{thread.native_id}/wchan", encoding="ascii") as file:
                if "userfault" in file.read():
                    break
            time.sleep(0.001)
        return number, thread

    def fill_and_punch(self, memfd, ends):
        while not ends.is_set():
            os.posix_fallocate(memfd, 0, SHARED_BYTES)
            self.punch_by(memfd, SHARED_BYTES)

    @staticmethod
    def write(memfd, ends):
        while not ends.is_set():
            os.pwrite(memfd, bytes(SHARED_BYTES // 4), 0)

    def attach_without_end(self):
        held = []
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.connect(self.where)
                for _ in range(self.random.randrange(300)):
                    connection.send(self.random.choice((HELLO, STATUS, STATUS, self.random.randbytes(30))))
            held.append(connection)
            while len(held) > 20:
                held.pop(self.random.randrange(len(held))).close()

    def die(self):
        if self.dies_before == "push":
            self.step("push")
        self.exchange_without_end()
        self.step("wait")
        self.step("close")


if __name__ == "__main__":
    Hostile(*sys.argv[1:5], int(sys.argv[5])).run()
