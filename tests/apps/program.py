"""A program that trains through libmercurystack, as a process of its own, told what to do line by line.

Program(...) starts it; each method is a call of the C interface in that process and returns a
Reply. Run by itself, this file is that process: one JSON object per line in and out.

usage: program.py LIBMERCURYSTACK SOCKET|embedded:ADDRESS
"""
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys

DTYPES = {"f32": (0, 4), "f64": (1, 8), "f16": (2, 2), "bf16": (3, 2), "i32": (4, 4), "i64": (5, 8)}
OPS = {"sum": 0, "average": 1}
PATIENCE_S = 60
PATTERN = 97  # gradients repeat after so many elements


class AttachOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("mode", ctypes.c_int), ("socket", ctypes.c_char_p),
                ("listen", ctypes.c_char_p)]


class JobOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("secret", ctypes.c_char_p),
                ("role", ctypes.c_int), ("rank", ctypes.c_int), ("workers", ctypes.c_int),
                ("servers", ctypes.c_int), ("rendezvous", ctypes.c_char_p), ("timeout_ms", ctypes.c_int),
                ("deterministic", ctypes.c_int), ("policy", ctypes.c_char_p), ("weight", ctypes.c_int),
                ("rejoin_ms", ctypes.c_int), ("quorum", ctypes.c_int), ("patience_ms", ctypes.c_int),
                ("stall_timeout_ms", ctypes.c_int)]


class TensorOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_uint32), ("dtype", ctypes.c_int),
                ("numel", ctypes.c_uint64), ("op", ctypes.c_int), ("priority", ctypes.c_int),
                ("data", ctypes.c_void_p)]


class Worker:
    """This process."""

    def __init__(self, library, where):
        self.mercury = ctypes.CDLL(library)
        self.mercury.mercury_last_error.restype = ctypes.c_char_p
        self.job = None
        self.memory = {}
        self.rounds = {}  # by tensor
        options = AttachOptions(ctypes.sizeof(AttachOptions), 1, where.encode(), None)
        if where.startswith("embedded:"):
            options.mode, options.socket, options.listen = 2, None, where.partition(":")[2].encode()
        self.context = ctypes.c_void_p()
        code = self.mercury.mercury_attach(ctypes.byref(options), ctypes.byref(self.context))
        if code != 0:
            raise RuntimeError(f"attach: {code} {self.mercury.mercury_last_error().decode()}")

    def answer(self, code, **more):
        return {"code": code, "text": self.mercury.mercury_last_error().decode() if code < 0 else "", **more}

    def open(self, **named):
        options = JobOptions()
        self.mercury.mercury_job_options_init(ctypes.byref(options), ctypes.sizeof(options))
        for key, value in named.items():
            setattr(options, key, value.encode() if isinstance(value, str) else value)
        self.workers = options.workers
        job = ctypes.c_void_p()
        code = self.mercury.mercury_job_open(self.context, ctypes.byref(options), ctypes.byref(job))
        if code != 0:
            return self.answer(code)
        self.job = job
        self.rank = self.mercury.mercury_job_get_rank(job)
        return self.answer(0, rank=self.rank)

    def declare(self, tensors):
        options = (TensorOptions * len(tensors))()
        for option, (tensor, numel, dtype, op) in zip(options, tensors):
            memory = ctypes.c_void_p()
            number, width = DTYPES[dtype]
            code = self.mercury.mercury_alloc(self.context, ctypes.c_size_t(numel * width), ctypes.byref(memory))
            if code != 0:
                return self.answer(code)
            self.memory[tensor] = (memory.value, numel)
            option.size, option.id, option.numel = ctypes.sizeof(TensorOptions), tensor, numel
            option.dtype, option.op, option.data = number, OPS[op], memory.value
        code = self.mercury.mercury_declare(self.job, options, ctypes.c_size_t(len(tensors)))
        for tensor, *_ in tensors if code == 0 else ():
            first = ctypes.c_uint32()
            self.mercury.mercury_tensor_get_round(self.job, ctypes.c_uint32(tensor), ctypes.byref(first))
            self.rounds[tensor] = first.value - 1  # one that takes a lost worker's place begins later
        return self.answer(code)

    def push_pull(self, tensor, priority=-1):
        """Starts an exchange and waits for nothing. -1: the tensor's own priority."""
        handle = ctypes.c_uint64()
        code = self.mercury.mercury_push_pull(self.job, ctypes.c_uint32(tensor), priority, ctypes.byref(handle))
        return self.answer(code, handle=handle.value)

    def wait(self, handle, timeout_ms):
        return self.answer(self.mercury.mercury_wait(self.job, ctypes.c_uint64(handle), timeout_ms))

    def exchange(self, tensor, rounds):
        """Rounds of an f32 tensor, each sum checked. Ends early at an error or a wrong sum."""
        memory, numel = self.memory[tensor]
        pattern = [i % PATTERN for i in range(numel + PATTERN)]
        mine = (ctypes.c_float * len(pattern))(*(100 * self.rank + p for p in pattern))
        ranks = self.workers * (self.workers - 1) // 2
        sums = (ctypes.c_float * len(pattern))(*(100 * ranks + self.workers * p for p in pattern))
        for done in range(rounds):
            number = self.rounds[tensor] = self.rounds.get(tensor, 0) + 1
            offset = 4 * (number % PATTERN)
            ctypes.memmove(memory, ctypes.addressof(mine) + offset, 4 * numel)
            started = self.push_pull(tensor)
            if started["code"] == 0:
                started = self.wait(started["handle"], -1)
            if started["code"] != 0:
                return {**started, "rounds": done}
            if ctypes.string_at(memory, 4 * numel) != ctypes.string_at(ctypes.addressof(sums) + offset, 4 * numel):
                return {"code": 0, "text": f"the sum of round {number} is wrong", "rounds": done}
        return self.answer(0, rounds=rounds)

    def close(self):
        self.mercury.mercury_job_close(self.job)
        self.job = None
        return self.answer(0)

    def free(self):
        """Gives all tensors' memory back: their job must be closed."""
        for memory, _ in self.memory.values():
            code = self.mercury.mercury_free(self.context, ctypes.c_void_p(memory))
            if code != 0:
                return self.answer(code)
        self.memory.clear()
        self.rounds.clear()
        return self.answer(0)

    def fork(self):
        """A child that does nothing and holds all that this process has open, except its pipes to the test."""
        child = os.fork()
        if child == 0:
            for pipe in range(3):
                os.close(pipe)
            while True:
                signal.pause()
        return self.answer(0, child=child)

    def end(self):
        os._exit(0)  # without a word to the daemon


def serve(library, where):
    worker = Worker(library, where)
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("call"))(**request)), flush=True)
    worker.mercury.mercury_detach(worker.context)


class Reply:
    def __init__(self, fields):
        self.fields = fields
        self.code, self.text = fields["code"], fields["text"]

    def __repr__(self):
        return str(self.fields)


def environment():
    """For a process that loads libmercurystack."""
    runtime = os.environ.get("SANITIZER_RUNTIME")  # Python itself was built without it, and leaks
    return {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"} if runtime else None


class Program:
    """Such a process, seen from the test. begin() and result() let several be busy at once."""

    def __init__(self, library, where):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), library, where], text=True,
                                        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.process.stdout.readline() != "{}\n":
            raise AssertionError(self.process.communicate()[1])

    def begin(self, call, **arguments):
        self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self.process.stdin.flush()

    def result(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise AssertionError(f"no reply within {PATIENCE_S} s")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the program ended: {self.process.communicate()[1]}")
        return Reply(json.loads(line))

    def call(self, call, **arguments):
        self.begin(call, **arguments)
        return self.result()

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.reap()

    def reap(self):
        """Waits for its end. Of itself it ends with its input, and detaches."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.process.stderr.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
