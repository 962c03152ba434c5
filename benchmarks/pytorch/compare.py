#!/usr/bin/env python3
"""PyTorch's DDP over Gloo and over Mercury's backend, and ScheduledOptimizer: milliseconds of an iteration, on the same links
in turns, beside what mercury-sim says: before, and of the computing that each run of ScheduledOptimizer recorded.

Each worker is a virtual host with a link of its own (needs root); servers run in the workers' processes, unless --servers.
Layers take their time asleep, as on an accelerator, so that programs do not compete for this machine's processors with
computing. Links are so fast that the exchange of all gradients takes as long as computing (--exchange: so many times
as long): with fewer servers than workers, through the servers' links.
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
import built  # noqa: E402
import netlab  # noqa: E402
import recording  # noqa: E402

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
MTU = 9000
PATIENCE_S = 300


def layers_of(model, computing_s):
    parts = MODELS[model]
    return ",".join(f"{max(1, ELEMENTS * part // sum(parts))}:{computing_s / LAYERS:.6f}" for part in parts)


class Run:
    """The processes of one run, and what is left of it in a folder."""

    def __init__(self, lab, system, model, arguments, folder):
        self.lab, self.system, self.arguments = lab, system, arguments
        self.command = [arguments.python, os.path.join(HERE, "paced_train.py"), system, "--layers", layers_of(model, arguments.computing),
                        "--iterations", str(arguments.iterations + WARM_UP), "--device", arguments.device]
        self.trace = os.path.join(folder, f"{system}.csv")

    def start(self, host, *more, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
        environment.update({name: str(value) for name, value in variables.items()}, MERCURY_LIBRARY=self.arguments.library)
        if not self.arguments.untold:
            environment["MERCURY_RATE"] = f"{self.lab.rate_mbit:.0f}Mbps"
        return self.lab[host].popen([*self.command, *more], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def members(self):
        """Workers, the first of which says and records what it took; servers, if they have hosts of their own."""
        workers, servers = self.arguments.workers, self.arguments.servers if self.system == "mercury" else 0
        serving = self.system == "mercury" and self.arguments.workers_serve
        meet = {"MASTER_ADDR": self.lab["worker0"].ip, "MASTER_PORT": 29500, "WORLD_SIZE": workers, "GLOO_SOCKET_IFNAME": "eth0"}
        if servers:
            hosts = [f"worker{rank}" for rank in range(workers if serving else 0)] + [f"server{rank}" for rank in range(servers)]
            meet = {"MERCURY_WORKERS": workers, "MERCURY_SERVERS": len(hosts), "MERCURY_RENDEZVOUS": f"{self.lab[hosts[0]].ip}:7470"}
        for rank in range(workers):
            own = {"MERCURY_ROLE": "worker", "MERCURY_RANK": rank} if servers else {"RANK": rank}
            yield self.start(f"worker{rank}", *(["--serve"] if serving else []), *(["--trace", self.trace] if rank == 0 else []),
                             **meet, **own)
        for rank in range(servers):
            yield self.start(f"server{rank}", **meet, MERCURY_ROLE="server", MERCURY_RANK=rank + (workers if serving else 0),
                             MERCURY_LISTEN=f"{self.lab[f'server{rank}'].ip}:7470")

    def seconds(self):
        """Of an iteration: the median of those of worker 0."""
        processes = list(self.members())
        try:
            return statistics.median(json.loads(netlab.outputs_of(processes, PATIENCE_S)[0])[WARM_UP:])
        except netlab.LabError as error:
            sys.exit(f"{self.system}: {error}")


def lost_frames(lab):
    """Before all links: from hosts, to hosts."""
    return [sum(lost) for lost in zip(*map(lab.lost_frames, lab.hosts))]


def nominal_trace(model, folder, computing_s):
    """Of layers that take the time that they are to take, and nothing else."""
    path = os.path.join(folder, f"{model}.csv")
    with open(path, "w", encoding="ascii") as trace:
        trace.write("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n")
        for place, layer in enumerate(layers_of(model, computing_s).split(",")):
            numel, seconds = layer.split(":")
            trace.write(f"{place},layer{place},{numel},f32,{round(float(seconds) * 1e9 / 3)},{round(float(seconds) * 2e9 / 3)},{place}\n")
    return path


def predicted(trace, lab, arguments):
    """Seconds of an iteration with Mercury, as mercury-sim says: with processors free."""
    colocated = arguments.workers if arguments.workers_serve else 0
    said = subprocess.run([arguments.simulator, "--trace", trace, "--policy", "mercury", "--bandwidth", f"{lab.rate_mbit:.0f}Mbps",
                           "--workers", str(arguments.workers), "--servers", str(arguments.servers + colocated),
                           "--colocated", str(colocated), "--mtu", str(MTU), "--bucket", f"{lab.bucket_bytes}B", "--json", "-"],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout)["iteration_s"]


class Model:
    """Iterations of one, in seconds: of each system, and what mercury-sim says."""

    def __init__(self, name):
        self.name = name
        self.times = {system: [] for system in NAMES}
        self.before = 0.0  # of the computing that layers are to take
        self.lost = []  # frames before links in each run of ScheduledOptimizer: from hosts, to hosts
        self.recorded = []  # for the trace of each run of ScheduledOptimizer

    def measure(self, lab, arguments, folder):
        self.before = predicted(nominal_trace(self.name, folder, arguments.computing), lab, arguments)
        for _ in range(arguments.repeat):
            for system, seconds in self.times.items():
                run = Run(lab, system, self.name, arguments, folder)
                before = lost_frames(lab)
                seconds.append(run.seconds())
                if system == "mercury":
                    self.lost.append([lost - earlier for lost, earlier in zip(lost_frames(lab), before)])
            self.recorded.append(predicted(run.trace, lab, arguments))

    def reached(self):
        """Of what was predicted for the trace of the same run."""
        return [seconds / said for seconds, said in zip(self.times["mercury"], self.recorded)]

    def row(self, rate_mbit, arguments):
        """Of a record: milliseconds."""
        row = {"model": self.name, "workers": arguments.workers, "servers": arguments.servers,
               "workers_serve": int(arguments.workers_serve), "rate_mbit": round(rate_mbit), "told": int(not arguments.untold),
               "predicted_ms": round(1e3 * self.before, 1)}
        for what, seconds in (*self.times.items(), ("recorded", self.recorded)):
            for name, of in (("ms", statistics.median), ("least_ms", min), ("most_ms", max)):
                row[f"{what}_{name}"] = round(1e3 * of(seconds), 1)
        for system in ("backend", "mercury"):
            row[f"{system}_of_gloo"] = round(row[f"{system}_ms"] / row["gloo_ms"], 3)
        for name, of in (("", statistics.median), ("_least", min), ("_most", max)):
            row[f"mercury_of_recorded{name}"] = round(of(self.reached()), 3)
        return row


def columns(arguments):
    """Of a record."""
    any_model = Model("even")
    any_model.times, any_model.recorded = {system: [1.0] for system in NAMES}, [1.0]
    return list(any_model.row(1.0, arguments))


def text_of(row):
    def of(what):
        return f"{row[what + '_ms']:.0f} [{row[what + '_least_ms']:.0f}, {row[what + '_most_ms']:.0f}] ms"
    parts = [f"{NAMES['gloo']} {of('gloo')}"]
    parts += [f"{NAMES[system]} {of(system)}, {row[system + '_of_gloo']:.2f}" for system in ("backend", "mercury")]
    return (f"{row['model']:6} " + "; ".join(parts) + f"; mercury-sim says {row['predicted_ms']:.0f} ms\n"
            f"       for the computing that these runs recorded it says {of('recorded')}: reached {row['mercury_of_recorded']:.3f} "
            f"[{row['mercury_of_recorded_least']:.3f}, {row['mercury_of_recorded_most']:.3f}] of that")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--computing", type=float, default=0.24,
                        help="seconds of an iteration; with more, links are slower, and processors have less to do (default: %(default)s)")
    parser.add_argument("--exchange", type=float, default=1.0, help="its time, in parts of computing (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=0,
                        help="of ScheduledOptimizer's, on hosts of their own (default: in the workers' processes, as many as workers)")
    parser.add_argument("--workers-serve", action="store_true",
                        help="servers run in the workers' processes, too, beside those of --servers (without: only there)")
    parser.add_argument("--untold", action="store_true", help="nobody tells Mercury its links' rate (MERCURY_RATE)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turns (default: %(default)s)")
    parser.add_argument("--library", default=os.path.join(ROOT, "build/shim/client/libmercurystack.so"))
    parser.add_argument("--python", default="/usr/bin/python3", help="whose PyTorch is taken (default: %(default)s, Debian's)")
    parser.add_argument("--device", default="cpu", help="where the model is: cpu or cuda, both workers on one GPU (default: %(default)s)")
    parser.add_argument("--simulator", default=os.path.join(ROOT, "build/apps/sim/mercury-sim"))
    parser.add_argument("--record", type=pathlib.Path, help="a file of docs/records to add rows to")
    arguments = parser.parse_args()
    arguments.workers_serve |= not arguments.servers
    built.need(arguments.library, arguments.simulator)
    if arguments.record:
        recording.check(arguments.record, columns(arguments))
    rows, narrowest = [], max(1, arguments.workers / (arguments.servers or arguments.workers))
    rate_mbit = ELEMENTS * 4 * 8 / 1e6 * narrowest / (arguments.computing * arguments.exchange)
    hosts = [f"worker{rank}" for rank in range(arguments.workers)] + [f"server{rank}" for rank in range(arguments.servers)]
    print(f"{ELEMENTS * 4 / 1e6:.0f} MB of gradients, {1e3 * arguments.computing:.0f} ms of computing, links of {rate_mbit:.0f} Mbit/s; "
          f"{arguments.repeat} runs of {arguments.iterations} iterations, their medians")
    with netlab.Lab(f"pt{os.getpid()}", hosts, rate_mbit=rate_mbit, mtu=MTU) as lab, tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            model = Model(name)
            model.measure(lab, arguments, folder)
            rows.append(model.row(rate_mbit, arguments))
            print(text_of(rows[-1]))
            print("       frames that its runs lost, before hosts' own links and before others': " +
                  ", ".join(f"{own} and {others}" for own, others in model.lost), flush=True)
    if arguments.record:
        recording.append(arguments.record, rows)


if __name__ == "__main__":
    main()
