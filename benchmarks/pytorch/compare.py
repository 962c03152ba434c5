#!/usr/bin/env python3
"""PyTorch's DDP over Gloo and over Mercury's backend, and ScheduledOptimizer: seconds of an iteration, on the same links
in turns.

Two workers, each a virtual host with a link of its own (needs root); Mercury's servers run in the workers' processes.
Layers take their time asleep, as on an accelerator, so that programs do not compete for this machine's processors with
computing. Links are so fast that the exchange of all gradients takes as long as computing (--exchange: so many times
as long).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import netlab  # noqa: E402
import recording  # noqa: E402

COMPUTING_S = 0.24
LAYERS = 12
ELEMENTS = 3_000_000  # 12 MB
# Of each layer's elements, in parts of all: where a model's weight lies.
MODELS = {
    "last": [1] * (LAYERS - 2) + [90, 100],  # as VGG's and AlexNet's classifiers
    "even": [1] * LAYERS,                    # as a transformer's blocks
    "first": [100, 90] + [1] * (LAYERS - 2),  # as an embedding
}
NAMES = {"gloo": "DDP over Gloo", "backend": "DDP over Mercury", "mercury": "ScheduledOptimizer"}
WARM_UP = 4
PATIENCE_S = 300


def layers_of(model):
    parts = MODELS[model]
    return ",".join(f"{max(1, ELEMENTS * part // sum(parts))}:{COMPUTING_S / LAYERS:.6f}" for part in parts)


class Run:
    """The processes of one run."""

    def __init__(self, lab, system, model, arguments):
        self.lab, self.system, self.library = lab, system, arguments.library
        self.command = [arguments.python, os.path.join(HERE, "paced_train.py"), system, "--layers", layers_of(model), "--iterations",
                        str(arguments.iterations + WARM_UP), "--device", arguments.device]

    def start(self, host, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        environment.update({name: str(value) for name, value in variables.items()}, MERCURY_LIBRARY=self.library)
        return self.lab[host].popen(self.command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def seconds(self):
        """Of an iteration: the median of those of worker 0."""
        meet = {"MASTER_ADDR": self.lab["worker0"].ip, "MASTER_PORT": 29500, "WORLD_SIZE": 2, "GLOO_SOCKET_IFNAME": "eth0"}
        processes = [self.start(f"worker{rank}", RANK=rank, **meet) for rank in range(2)]
        try:
            return statistics.median(json.loads(netlab.outputs_of(processes, PATIENCE_S)[0])[WARM_UP:])
        except netlab.LabError as error:
            sys.exit(f"{self.system}: {error}")


def predicted(model, rate_mbit, simulator):
    """Seconds of an iteration with Mercury, as mercury-sim says: with processors free, and servers on hosts of their own.
    None: it is not built."""
    if not os.path.isfile(simulator):
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        trace.write("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n")
        for place, layer in enumerate(layers_of(model).split(",")):
            numel, seconds = layer.split(":")
            trace.write(f"{place},layer{place},{numel},f32,{round(float(seconds) * 1e9 / 3)},{round(float(seconds) * 2e9 / 3)},{place}\n")
        trace.flush()
        said = subprocess.run([simulator, "--trace", trace.name, "--policy", "mercury", "--bandwidth", f"{rate_mbit:.0f}Mbps",
                               "--workers", "2", "--servers", "2", "--mtu", "9000", "--json", "-"], check=True,
                              stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout)["iteration_s"]


def row_of(model, rate_mbit, times, promise):
    """Of a record: milliseconds."""
    row = {"model": model, "rate_mbit": round(rate_mbit), "predicted_ms": round(1e3 * promise, 1) if promise else ""}
    for system, seconds in times.items():
        for name, of in (("ms", statistics.median), ("least_ms", min), ("most_ms", max)):
            row[f"{system}_{name}"] = round(1e3 * of(seconds), 1)
    for system in ("backend", "mercury"):
        row[f"{system}_of_gloo"] = round(row[f"{system}_ms"] / row["gloo_ms"], 3)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--exchange", type=float, default=1.0, help="its time, in parts of computing (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turns (default: %(default)s)")
    parser.add_argument("--library", default=os.path.join(ROOT, "build/shim/client/libmercurystack.so"))
    parser.add_argument("--python", default="/usr/bin/python3", help="whose PyTorch is taken (default: %(default)s, Debian's)")
    parser.add_argument("--device", default="cpu", help="where the model is: cpu or cuda, both workers on one GPU (default: %(default)s)")
    parser.add_argument("--simulator", default=os.path.join(ROOT, "build/apps/sim/mercury-sim"))
    parser.add_argument("--record", type=pathlib.Path, help="a file of docs/records to add rows to")
    arguments = parser.parse_args()
    rows = []
    rate_mbit = ELEMENTS * 4 * 8 / 1e6 / (COMPUTING_S * arguments.exchange)
    print(f"{ELEMENTS * 4 / 1e6:.0f} MB of gradients, {1e3 * COMPUTING_S:.0f} ms of computing, links of {rate_mbit:.0f} Mbit/s; "
          f"{arguments.repeat} runs of {arguments.iterations} iterations, their medians")
    with netlab.Lab(f"pt{os.getpid()}", ["worker0", "worker1"], rate_mbit=rate_mbit, mtu=9000) as lab:
        for model in arguments.models:
            times = {"gloo": [], "backend": [], "mercury": []}
            for _ in range(arguments.repeat):
                for system, seconds in times.items():
                    seconds.append(Run(lab, system, model, arguments).seconds())
            gloo, promise = statistics.median(times["gloo"]), predicted(model, rate_mbit, arguments.simulator)
            rows.append(row_of(model, rate_mbit, times, promise))
            print(f"{model:6}" + "; ".join(
                f" {NAMES[system]} {1e3 * statistics.median(seconds):.0f} [{1e3 * min(seconds):.0f}, {1e3 * max(seconds):.0f}] ms"
                + ("" if system == "gloo" else f", {statistics.median(seconds) / gloo:.2f}") for system, seconds in times.items())
                + (f"; mercury-sim says {1e3 * promise:.0f} ms" if promise else ""), flush=True)
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
