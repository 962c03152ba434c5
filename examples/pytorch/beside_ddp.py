#!/usr/bin/python3
"""Trains digits_alone.py's classifier on two workers over virtual links, with DistributedDataParallel over Gloo and with
ScheduledOptimizer in turns, and prints both beside each other and what mercury-sim said before; and beside one process
that trains on both workers' images and averages their gradients itself.

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
from usage import Others  # noqa: E402

PYTHON = "/usr/bin/python3"  # whose PyTorch is Debian's
ALONE = "alone"
NAMES = {"gloo": "DDP over Gloo", "mercury": "Mercury"}
WORKERS = 2
IMAGES = 512  # of a worker's share of a batch
MTU = 9000
WARM_UP = 4  # iterations whose times do not count
PATIENCE_S = 120
DISTURBED = 0.1  # of a processor, that other programs use


def share_of(rank, i, labels):
    """The images of a worker's share of iteration i: any of the training set, each in one share only."""
    import torch
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(i))
    return order[rank * IMAGES:(rank + 1) * IMAGES]


def loss_of(model, images, rank, i):
    from torch import nn
    pixels, labels = images
    mine = share_of(rank, i, labels)
    return nn.functional.cross_entropy(model(pixels[mine]), labels[mine])


def profiled():
    """For mercury-trace: the model, and the loss of a share."""
    import torch
    from digits_alone import DIGITS, classifier, images
    torch.set_num_threads(1)
    training, _ = images(DIGITS)
    model = classifier(1)
    return model, lambda: loss_of(model, training, 0, 0)


# ---- a worker ----------------------------------------------------------------------------------

def part_right(model, images):
    import torch
    pixels, labels = images
    with torch.no_grad():
        return float((model(pixels).argmax(1) == labels).float().mean())


def train(rank, model, optimizer, iterations):
    """What the tables need of it, as JSON."""
    from digits_alone import DIGITS, images
    training, test = images(DIGITS)
    times, losses, begin = [], [], time.perf_counter()
    for i in range(iterations):
        optimizer.zero_grad()
        loss = loss_of(model, training, rank, i)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        end = time.perf_counter()
        times.append(end - begin)
        begin = end
    return {"times": times[WARM_UP:], "losses": [float(loss) for loss in losses], "right": part_right(model, test)}


def train_alone(model, optimizer, iterations):
    """One process, on all workers' shares: the losses of each."""
    import torch
    from digits_alone import DIGITS, images
    training, test = images(DIGITS)
    parameters, losses = list(model.parameters()), []
    for i in range(iterations):
        of_shares = [loss_of(model, training, rank, i) for rank in range(WORKERS)]
        gradients = [torch.autograd.grad(loss, parameters) for loss in of_shares]
        for parameter, first, *others in zip(parameters, *gradients):
            parameter.grad = sum(others, first) / WORKERS
        optimizer.step()
        losses.append([float(loss) for loss in of_shares])
    return {"losses": list(zip(*losses)), "right": part_right(model, test)}


def work(system, iterations, out):
    import torch
    from digits_alone import classifier
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", 0))
    model = classifier(1 + rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if system == ALONE:
        print(json.dumps(train_alone(model, sgd, iterations)))
        return
    if system == "gloo":
        torch.distributed.init_process_group("gloo")
        print(json.dumps(train(rank, torch.nn.parallel.DistributedDataParallel(model), sgd, iterations)))
        return
    import mercurystack
    from mercurystack.torch import ScheduledOptimizer
    with mercurystack.Context("embedded") as context, context.open_job("digits", serve=True, deterministic=True) as job:
        with ScheduledOptimizer(sgd, model, context, job, timeline=100_000) as optimizer:
            said = train(rank, model, optimizer, iterations)
            optimizer.write_timeline(timeline_of(out, rank))
            print(json.dumps({**said, "waited": str(optimizer.summary())}))


def timeline_of(out, rank):
    return os.path.join(out, f"timeline-worker{rank}.json")


# ---- the hosts ---------------------------------------------------------------------------------

class Runs:
    """Of each system, in turns."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.library = os.path.join(arguments.build, "shim/client/libmercurystack.so")
        self.simulator = os.path.join(arguments.build, "apps/sim/mercury-sim")
        built.need(self.library, self.simulator)
        os.makedirs(arguments.out, exist_ok=True)

    def command(self, system):
        return [PYTHON, os.path.abspath(__file__), "--work", system, "--iterations", str(self.arguments.iterations), "--out",
                self.arguments.out]

    def alone(self):
        said = subprocess.run(self.command(ALONE), check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(said.stdout)

    def once(self, lab, system):
        """What both workers say."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        environment.update(MERCURY_LIBRARY=self.library, MASTER_ADDR=lab["worker0"].ip, MASTER_PORT="29500", WORLD_SIZE=str(WORKERS),
                           GLOO_SOCKET_IFNAME="eth0", MERCURY_RATE=f"{lab.rate_mbit:.0f}Mbps")
        processes = [lab[f"worker{rank}"].popen(self.command(system), text=True, env={**environment, "RANK": str(rank)},
                                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(WORKERS)]
        try:
            return [json.loads(output) for output in netlab.outputs_of(processes, PATIENCE_S)]
        except netlab.LabError as error:
            sys.exit(f"{NAMES[system]}: {error}")

    def all(self, rate_mbit):
        results = {system: [] for system in NAMES}
        with netlab.Lab(f"ddp{os.getpid()}", [f"worker{rank}" for rank in range(WORKERS)], rate_mbit=rate_mbit, mtu=MTU) as lab:
            for _ in range(self.arguments.turns):
                for system in NAMES:
                    results[system] += self.once(lab, system)
        return results

    def profile(self):
        """(path of the trace, seconds of computing, elements)"""
        trace = os.path.join(self.arguments.out, "digits.csv")
        subprocess.run([PYTHON, os.path.join(ROOT, "tools/mercury-trace"), f"{os.path.abspath(__file__)}:profiled", "--output", trace],
                       check=True, env={**os.environ, "MERCURY_LIBRARY": self.library})
        with open(trace, encoding="ascii") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        computing = sum(int(row["forward_pass_ns"]) + int(row["backward_pass_ns"]) for row in rows) / 1e9
        return trace, computing, sum(int(row["numel"]) for row in rows)

    def predicted(self, trace, rate_mbit):
        said = subprocess.run([self.simulator, "--trace", trace, "--policy", "mercury", "--bandwidth", f"{rate_mbit:.3f}Mbps", "--workers",
                               str(WORKERS), "--servers", str(WORKERS), "--mtu", str(MTU), "--json", "-"], check=True,
                              stdout=subprocess.PIPE, text=True)
        return json.loads(said.stdout)["iteration_s"]


def print_table(results, alone, computing, promise):
    medians = {system: statistics.median(time for one in said for time in one["times"]) for system, said in results.items()}
    columns = {ALONE: "one process", **NAMES}

    def line(what, value, among=tuple(NAMES)):
        print(f"{what:38}" + "".join(f"{value(system) if system in among else '':>15}" for system in columns))

    def of_last(system):
        return statistics.mean([losses[-1] for losses in alone["losses"]] if system == ALONE else
                               [one["losses"][-1] for one in results[system]])

    def equal(system):
        """Losses, to the bit."""
        pairs = [pair for place, one in enumerate(results[system])
                 for pair in zip(one["losses"], alone["losses"][place % WORKERS], strict=True)]
        return f"{sum(loss == its for loss, its in pairs)} of {len(pairs)}"
    line("", columns.get, columns)
    line("iteration, median", lambda system: f"{1e3 * medians[system]:.1f} ms")
    line("  of it computing, profiled alone", lambda _: f"{1e3 * computing:.1f} ms")
    line("  mercury-sim said", lambda _: f"{1e3 * promise:.1f} ms", ("mercury",))
    line("speed", lambda system: f"{medians['gloo'] / medians[system]:.2f}")
    line("mean loss of the last iteration", lambda system: f"{of_last(system):.6f}", columns)
    line("workers' losses that are one process's", equal)
    line("test accuracy", lambda system: f"{100 * (alone if system == ALONE else results[system][0])['right']:.2f} %", columns)
    print(f"\nMercury, worker 0: {results['mercury'][-WORKERS]['waited']}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=24, help=f"of each run; the first {WARM_UP} are not timed (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each system (default: %(default)s)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help=argparse.SUPPRESS)
    parser.add_argument("--out", default=os.path.join(ROOT, "out", "pytorch"), help="a folder for timelines (default: %(default)s)")
    parser.add_argument("--work", choices=[ALONE, *NAMES], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.iterations <= WARM_UP or arguments.turns < 1:
        parser.error(f"--iterations, --turns: expected more than {WARM_UP}, and 1 or more")
    return arguments


def main():
    arguments = parsed()
    if arguments.work:
        work(arguments.work, arguments.iterations, arguments.out)
        return
    runs = Runs(arguments)
    trace, computing, elements = runs.profile()
    rate_mbit = elements * 4 * 8 / 1e6 / computing
    print(f"Digits classifier in PyTorch, {elements:,} parameters, {WORKERS} workers of {IMAGES} images each")
    print(f"network: virtual links of {rate_mbit:.0f} Mbit/s; {arguments.turns} runs of {arguments.iterations} iterations each, in turns\n",
          flush=True)
    others = Others()
    try:
        results = runs.all(rate_mbit)
    except netlab.LabError as error:
        sys.exit(str(error))
    theirs = others.processors()
    print_table(results, runs.alone(), computing, runs.predicted(trace, rate_mbit))
    if theirs > DISTURBED:
        print(f"Other programs used {theirs:.1f} of this machine's {os.cpu_count()} processors meanwhile, so these times say little; run it again "
              "when it is quiet")
    print(f"Its timeline, for ui.perfetto.dev: {os.path.relpath(timeline_of(arguments.out, 0), ROOT)}")


if __name__ == "__main__":
    main()
