#!/usr/bin/env python3
"""Counts the simulator's instructions per frame, with callgrind, and those of knobs that are off.

A frame is what the engine of its sender and of its receiver do for it, and the network between
them. With the first bound a core that executes 6.5 instructions a nanosecond handles a million
frames in a second; docs/simulator.md has what that is in time. usage: sim_cost_test.py SIM
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MOST = 6500  # 6,466 with GCC 12, -O3, optimised across folders (meson.build)
# No policy costs more than so much of the default one's.
MOST_OVER_MERCURY = 1.10
TRACE = """layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority
0,a,300000,f32,100000,100000,0
1,b,1000000,f32,100000,200000,1
2,c,1000,f32,1000,1000,2
3,d,700000,f32,1000,1000,3
"""
# Of these files, wherever they were inlined; the second one, as a control, runs under every policy.
PARTITIONS, ALWAYS = "scheduler/partition_release", "scheduler/scheduler"


def run(sim, folder, policy, iterations):
    """Instructions and frames of a simulation."""
    trace, answer = folder / "trace.csv", folder / "answer.json"
    trace.write_text(TRACE, encoding="utf-8")
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'profile'}", sim, "--quiet",
               "--trace", trace, "--policy", policy, "--bandwidth", "10Gbps", "--workers", "2", "--servers",
               "2", "--iterations", str(iterations), "--warmup", "0", "--json", answer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return int(found.group(1)), json.loads(answer.read_text(encoding="utf-8"))["frames"]


def spent_in(file, folder):
    """Instructions of the last run that were compiled from FILE.h and FILE.cc."""
    done = subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=100", folder / "profile"], capture_output=True,
                          text=True, check=True)
    counts = re.findall(rf"^ *([\d,]+) \([^)]*\) +\S*{re.escape(file)}\.(?:h|cc):", done.stdout, re.M)
    return sum(int(count.replace(",", "")) for count in counts)


def per_frame(sim, folder, policy):
    """What starting costs is left out."""
    (few, few_frames), (many, many_frames) = (run(sim, folder, policy, n) for n in (2, 6))
    return (many - few) / (many_frames - few_frames)


def main():
    sim = sys.argv[1]
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed to count instructions: apt-get install valgrind")
    ok = True
    with tempfile.TemporaryDirectory(prefix="mercury-") as name:
        folder = pathlib.Path(name)
        costs = {policy: per_frame(sim, folder, policy) for policy in ("mercury", "wfbp", "p3:startup=0")}
        for policy, cost in costs.items():
            most = MOST if policy == "mercury" else MOST_OVER_MERCURY * costs["mercury"]
            print(f"{policy:12} {cost:7.0f} instructions a frame, at most {most:.0f}")
            ok &= cost <= most
        # A knob that is off costs nothing: not one instruction of it runs.
        for policy, on in (("mercury", False), ("p3", True)):
            run(sim, folder, policy, 2)
            count, control = spent_in(PARTITIONS, folder), spent_in(ALWAYS, folder)
            print(f"{policy:12} {count:7} instructions of {PARTITIONS}, {control} of {ALWAYS}")
            ok &= (count > 0) == on and control > 0
    if not ok:
        print("FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
