"""A worker that torchrun starts, of torchrun_test.py.

usage: torchrun_program.py scheduled|collectives PACKAGE_FOLDER         trains, or adds up, until it is interrupted
       torchrun_program.py elastic ARGUMENT... [KILL...]                elastic_program.py; is killed in its first life alone
"""
import os
import signal
import sys

WHAT, PACKAGE = sys.argv[1:3]
ELASTIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "elastic_program.py")
ELASTIC_ARGUMENTS = 5  # before the kills
MOST_S = 100  # not for ever, if nobody interrupts


def train_elastic(arguments):
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print("life", life, flush=True)
    os.execv(sys.executable, [sys.executable, ELASTIC, *arguments[:None if life == 0 else ELASTIC_ARGUMENTS]])


def ready():
    print("ready", os.getpid(), flush=True)


def train():
    import torch

    import mercurystack
    from mercurystack.torch import ScheduledOptimizer
    with mercurystack.Context("embedded") as context, context.open_job("interrupted", serve=True) as job:
        model = torch.nn.Linear(8, 4)
        with ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, context, job) as optimizer:
            ready()
            while True:
                optimizer.zero_grad()
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()


def add_up():
    import torch
    import torch.distributed as dist

    import mercurystack.distributed  # noqa: F401
    dist.init_process_group("mercury")
    ready()
    while True:
        dist.all_reduce(torch.ones(4))


if WHAT == "elastic":
    train_elastic(sys.argv[2:])
sys.path.insert(0, PACKAGE)
signal.alarm(MOST_S)
{"scheduled": train, "collectives": add_up}[WHAT]()
