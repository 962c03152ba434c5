#!/usr/bin/python3
"""Trains digits.py's classifier on two workers over virtual links, with DistributedDataParallel over Gloo and with
ScheduledOptimizer in turns, and prints both beside each other and what mercury-sim said before.

As root: each worker is a virtual host with a shaped link of its own. Links are as fast as makes the exchange take as long
as computing does on this machine. Nothing else should run here meanwhile: both workers, and the engines, compute on
its processors.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "python"), HERE]
import built  # noqa: E402
import netlab  # noqa: E402

PYTHON = "/usr/bin/python3"  # whose PyTorch is Debian's
LIBRARY = os.path.join(ROOT, "build/shim/client/libmercurystack.so")
SIMULATOR = os.path.join(ROOT, "build/apps/sim/mercury-sim")
OUT = os.path.join(ROOT, "out", "pytorch")
NAMES = {"gloo": "DDP over Gloo", "mercury": "Mercury"}
WORKERS = 2
IMAGES = 512  # of a worker's share of a batch
MTU = 9000
ITERATIONS, WARM_UP = 24, 4
TURNS = 2
PATIENCE_S = 120


def share_of(rank, i, labels):
    """The images of a worker's share of iteration i: any of the training set, each in one share only."""
    import torch
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(i))
    return order[rank * IMAGES:(rank + 1) * IMAGES]


def profiled():
    """For mercury-trace: the model, and the loss of a share."""
    import torch
    from torch import nn
    from digits import DIGITS, classifier, images
    torch.set_num_threads(1)
    (pixels, labels), _ = images(DIGITS)
    model, mine = classifier(1), share_of(0, 0, labels)
    return model, lambda: nn.functional.cross_entropy(model(pixels[mine]), labels[mine])


# ---- a worker ----------------------------------------------------------------------------------

def train(rank, model, optimizer):
    """What the tables need of it, as JSON."""
    import torch
    from torch import nn
    from digits import DIGITS, images
    (pixels, labels), (test_pixels, test_labels) = images(DIGITS)
    times, losses, begin = [], [], time.perf_counter()
    for i in range(ITERATIONS):
        mine = share_of(rank, i, labels)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        end = time.perf_counter()
        times.append(end - begin)
        begin = end
    with torch.no_grad():
        right = float((model(test_pixels).argmax(1) == test_labels).float().mean())
    return {"times": times[WARM_UP:], "loss": float(losses[-1]), "right": right}


def work(system):
    import torch
    from digits import classifier
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    model = classifier(1 + rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if system == "gloo":
        torch.distributed.init_process_group("gloo")
        print(json.dumps(train(rank, torch.nn.parallel.DistributedDataParallel(model), sgd)))
        return
    import mercurystack
    from mercurystack.torch import ScheduledOptimizer
    with mercurystack.Context("embedded") as context, context.open_job("digits", serve=True) as job:
        with ScheduledOptimizer(sgd, model, context, job, timeline=100_000) as optimizer:
            said = train(rank, model, optimizer)
            optimizer.write_timeline(os.path.join(OUT, f"timeline-worker{rank}.json"))
            print(json.dumps({**said, "waited": str(optimizer.summary())}))


# ---- the hosts ---------------------------------------------------------------------------------

def run(lab, system):
    """What both workers say."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
    environment.update(MERCURY_LIBRARY=LIBRARY, MASTER_ADDR=lab["worker0"].ip, MASTER_PORT="29500", WORLD_SIZE=str(WORKERS),
                       GLOO_SOCKET_IFNAME="eth0", MERCURY_RATE=f"{lab.rate_mbit:.0f}Mbps")
    processes = [lab[f"worker{rank}"].popen([PYTHON, os.path.abspath(__file__), "--work", system], text=True,
                                            env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE) for rank in range(WORKERS)]
    try:
        return [json.loads(output) for output in netlab.outputs_of(processes, PATIENCE_S)]
    except netlab.LabError as error:
        sys.exit(f"{NAMES[system]}: {error}")


def profile():
    """(path of the trace, seconds of computing, elements)"""
    trace = os.path.join(OUT, "digits.csv")
    subprocess.run([PYTHON, os.path.join(ROOT, "tools/mercury-trace"), f"{os.path.abspath(__file__)}:profiled", "--output", trace],
                   check=True, env={**os.environ, "MERCURY_LIBRARY": LIBRARY})
    with open(trace, encoding="ascii") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    computing = sum(int(row["forward_pass_ns"]) + int(row["backward_pass_ns"]) for row in rows) / 1e9
    return trace, computing, sum(int(row["numel"]) for row in rows)


def predicted(trace, rate_mbit):
    said = subprocess.run([SIMULATOR, "--trace", trace, "--policy", "mercury", "--bandwidth", f"{rate_mbit:.3f}Mbps", "--workers",
                           str(WORKERS), "--servers", str(WORKERS), "--mtu", str(MTU), "--json", "-"], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout)["iteration_s"]


def print_table(results, computing, promise):
    def line(what, value):
        print(f"{what:34}" + "".join(f"{value(system):>18}" for system in NAMES))
    medians = {system: statistics.median(time for one in said for time in one["times"]) for system, said in results.items()}
    print(f"\n{'':34}" + "".join(f"{name:>18}" for name in NAMES.values()))
    line("iteration, median", lambda system: f"{1e3 * medians[system]:.1f} ms")
    line("  of it computing, profiled alone", lambda _: f"{1e3 * computing:.1f} ms")
    line("  mercury-sim said", lambda system: f"{1e3 * promise:.1f} ms" if system == "mercury" else "")
    line("speed", lambda system: f"{medians['gloo'] / medians[system]:.2f}")
    line(f"loss of iteration {ITERATIONS}, both workers'",
         lambda system: f"{statistics.mean(one['loss'] for one in results[system]):.4f}")
    line("test accuracy", lambda system: f"{100 * results[system][0]['right']:.1f} %")
    print(f"\nMercury, worker 0: {results['mercury'][-WORKERS]['waited']}")
    print(f"Its timeline, for ui.perfetto.dev: {os.path.relpath(os.path.join(OUT, 'timeline-worker0.json'), ROOT)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    built.need(LIBRARY, SIMULATOR)
    os.makedirs(OUT, exist_ok=True)
    trace, computing, elements = profile()
    rate_mbit = elements * 4 * 8 / 1e6 / computing
    print(f"Digits classifier in PyTorch, {elements:,} parameters, {WORKERS} workers of {IMAGES} images each")
    print(f"network: virtual links of {rate_mbit:.0f} Mbit/s; {TURNS} runs of {ITERATIONS} iterations each, in turns")
    results = {system: [] for system in NAMES}
    try:
        with netlab.Lab(f"ddp{os.getpid()}", [f"worker{rank}" for rank in range(WORKERS)], rate_mbit=rate_mbit, mtu=MTU) as lab:
            for _ in range(TURNS):
                for system in NAMES:
                    results[system] += run(lab, system)
    except netlab.LabError as error:
        sys.exit(str(error))
    print_table(results, computing, predicted(trace, rate_mbit))


if __name__ == "__main__":
    main()
