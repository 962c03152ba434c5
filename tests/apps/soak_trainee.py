"""The program that tools/soak attaches to a daemon: trains for ever and checks each sum.

A line of JSON for each thing that happens. After an error it opens the job again; it ends with status 3
when its daemon has gone. A number on its input is the last round: it closes the job then, and ends.

usage: soak_trainee.py LIBMERCURYSTACK SOCKET RANK RENDEZVOUS
"""
import ctypes
import errno
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program import PATTERN, Worker  # noqa: E402

WORKERS, SERVERS = 2, 2
TENSORS = [[0, 150000, "f32", "sum"], [1, 777, "f32", "sum"], [2, 40000, "f32", "sum"], [3, 1, "f32", "sum"]]
OPEN_MS = 20000
REJOIN_MS = 20000
# Beyond what a lost peer, and a place that nobody takes, can cost, twice. In slices, so that a machine
# that stands still counts for one of them.
SLICE_MS = 1000
MOST_SLICES = 90


def say(**what):
    print(json.dumps(what), flush=True)


class JobLost(Exception):
    pass


class Trainee(Worker):
    def __init__(self, library, where, rank, rendezvous):
        super().__init__(library, where)
        self.place, self.rendezvous = rank, rendezvous
        self.last = None
        ranks = 100 * WORKERS * (WORKERS - 1) // 2
        self.values = {}  # of each tensor: what this worker pushes, and the sums; each round is a window
        for tensor, numel, *_ in TENSORS:
            pattern = [(i + tensor) % PATTERN for i in range(numel + PATTERN)]
            array = ctypes.c_float * len(pattern)
            self.values[tensor] = (array(*(100 * rank + p for p in pattern)), array(*(ranks + WORKERS * p for p in pattern)))

    def must(self, at, reply):
        if reply["code"] == 0:
            return reply
        say(error=errno.errorcode.get(-reply["code"], str(reply["code"])), at=at, text=reply["text"])
        if reply["code"] == -errno.EPIPE:
            os._exit(3)
        raise JobLost

    def join(self):
        self.must("open", self.open(name="soak", secret="sixteen bytes of it", rank=self.place, workers=WORKERS,
                                    servers=SERVERS, rendezvous=self.rendezvous, timeout_ms=OPEN_MS, rejoin_ms=REJOIN_MS))
        self.must("declare", self.declare(TENSORS))
        say(opened=True, taken_over=max(self.rounds.values()) > 0, rounds=self.rounds)

    def window(self, tensor, which):
        return ctypes.addressof(self.values[tensor][which]) + 4 * (self.rounds[tensor] % PATTERN)

    def exchange(self, tensors):
        handles = {}
        for tensor in tensors:
            self.rounds[tensor] += 1
            memory, numel = self.memory[tensor]
            ctypes.memmove(memory, self.window(tensor, 0), 4 * numel)
            handles[tensor] = self.must("push", self.push_pull(tensor))["handle"]
        for tensor, handle in handles.items():
            for slices in range(MOST_SLICES + 1):
                reply = self.wait(handle, SLICE_MS)
                if reply["code"] != -errno.ETIMEDOUT:
                    break
            else:
                say(hung=self.rounds[tensor], tensor=tensor, text=reply["text"])
            self.must("wait", reply)
            memory, numel = self.memory[tensor]
            if ctypes.string_at(memory, 4 * numel) != ctypes.string_at(self.window(tensor, 1), 4 * numel):
                say(wrong=self.rounds[tensor], tensor=tensor)

    def train(self):
        """One that takes a lost worker's place first brings the tensors that are behind to the others' round."""
        while self.last is None or min(self.rounds.values()) < self.last:
            ahead = max(self.rounds.values())
            behind = [tensor for tensor, done in self.rounds.items() if done < ahead]
            self.exchange(behind or self.rounds)
            if not behind:
                say(round=ahead + 1)

    def live(self):
        while True:
            try:
                self.join()
                self.train()
                self.close()
                return
            except JobLost:
                if self.job:
                    self.close()
                self.must("free", self.free())
                time.sleep(0.2)  # an interface that is down refuses at once

    def listen(self):
        for line in sys.stdin:
            self.last = int(line)


def main(library, where, rank, rendezvous):
    try:
        trainee = Trainee(library, where, int(rank), rendezvous)
    except RuntimeError as why:  # its daemon went before it had attached
        say(error="EPIPE", at="attach", text=str(why))
        sys.exit(3)
    threading.Thread(target=trainee.listen, daemon=True).start()
    trainee.live()
    trainee.mercury.mercury_detach(trainee.context)


if __name__ == "__main__":
    main(*sys.argv[1:])
