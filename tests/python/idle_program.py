"""One rank of idle_test.py: what of a processor it takes while it waits for rank 0. idle_program.py PACKAGE_FOLDER RENDEZVOUS"""
import sys
import time

PACKAGE, RENDEZVOUS = sys.argv[1:]
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import mercurystack  # noqa: E402
import mercurystack.distributed  # noqa: E402
from mercurystack.torch import ScheduledOptimizer  # noqa: E402

WAIT_S = 3


def measure(what, rank, exchange):
    """The second exchange is that which rank 0 comes late to. Of all threads together, also those that serve."""
    exchange()
    begun, spent = time.monotonic(), time.process_time()
    if rank == 0:
        time.sleep(WAIT_S)
    exchange()
    print(what, time.process_time() - spent, time.monotonic() - begun, flush=True)


def collective():
    dist.init_process_group("mercury")
    rank = dist.get_rank()
    dist.barrier()  # all have begun
    measure("collective", rank, lambda: dist.all_reduce(torch.ones(4)))
    dist.destroy_process_group()


def scheduled(**terms):
    with mercurystack.Context("embedded") as context, context.open_job("idle", serve=True, **terms) as job:
        model = torch.nn.Linear(8, 8)
        # With the thread that a timeline takes.
        with ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, context, job, timeline=100) as optimizer:
            def iteration():
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.flush()
            measure("scheduled", job.rank, iteration)


torch.set_num_threads(1)
collective()
scheduled(rendezvous=RENDEZVOUS)
