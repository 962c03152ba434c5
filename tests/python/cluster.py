"""Jobs of the Python package's tests: members that are embedded, in threads of one process."""
import threading

import mercurystack
from programs import free_port

FOREVER_S = 120  # what a test waits for and must come


class Cluster:
    """A job of `workers`, with one server, all in this process: each with a context of its own."""

    def __init__(self, workers=2, **terms):
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.size = {"workers": workers, "servers": 1, "rendezvous": self.rendezvous, "timeout_ms": FOREVER_S * 1000}
        self.terms = terms
        self.contexts = [mercurystack.Context("embedded", listen=self.rendezvous if place == 0 else "127.0.0.1")
                         for place in range(workers + 1)]
        self.jobs = [None] * (workers + 1)
        opening = [threading.Thread(target=self.open, args=(place,)) for place in range(workers + 1)]
        for thread in opening:
            thread.start()
        for thread in opening:
            thread.join()

    def open(self, place):
        member = {"role": "server", "rank": 0} if place == 0 else {"role": "worker", "rank": place - 1}
        self.jobs[place] = self.contexts[place].open_job("test", **member, **self.size, **self.terms)

    @property
    def workers(self):
        return self.jobs[1:]

    def declare(self, numel, dtype="float32", number=7, **how):
        """A tensor of each worker, declared by all at once, as declaring waits for the others' servers."""
        if dtype == "bfloat16":  # which NumPy does not know
            how["dtype"] = dtype
        arrays = [context.zeros(numel, dtype) for context in self.contexts[1:]]
        return [job.declare(number, array, **how) for job, array in zip(self.workers, arrays)]

    def close(self):
        for context in reversed(self.contexts):
            context.close()
