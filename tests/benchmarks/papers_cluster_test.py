#!/usr/bin/python3
"""A figure computed by a Dask cluster is the one computed here. usage: papers_cluster_test.py SIM

The cluster is Debian's dask-scheduler and dask-worker, a process each on loopback.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SIM = os.path.abspath(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 240
POINTS = 2  # that the figure header asks for


def compute(out, program, *options):
    done = subprocess.run([sys.executable, ROOT / "benchmarks/papers/mercury.py", "--sim", program,
                           "--out", out, "--no-plot", *options, "header"],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"mercury.py {' '.join(options)}: {done.stdout}{done.stderr}")
    return json.loads((out / "header.json").read_text(encoding="utf-8"))["rows"]


def address_of(file, scheduler):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and scheduler.poll() is None:
        try:
            return json.loads(file.read_text(encoding="utf-8"))["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)
    sys.exit("no dask-scheduler came up")


def main():
    if not shutil.which("dask-scheduler") or not shutil.which("dask-worker"):
        print("skipped: no Dask here (apt-get install python3-distributed)")
        return 77
    with tempfile.TemporaryDirectory(prefix="mercury-") as name:
        folder = pathlib.Path(name)
        # Says who started the simulator.
        started, program = folder / "started", folder / "mercury-sim"
        program.write_text(f'#!/bin/sh\necho $PPID >> {started}\nexec {SIM} "$@"\n',
                           encoding="utf-8")
        program.chmod(0o755)
        file, processes = folder / "scheduler.json", []
        try:
            processes.append(subprocess.Popen(
                ["dask-scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                 "--scheduler-file", file], stderr=subprocess.DEVNULL, cwd=folder))
            address = address_of(file, processes[0])
            processes.append(subprocess.Popen(
                ["dask-worker", address, "--host", "127.0.0.1", "--no-nanny", "--no-dashboard",
                 "--nthreads", "1", "--memory-limit", "0", "--local-directory", folder],
                stderr=subprocess.DEVNULL, cwd=folder))
            remote = compute(folder / "remote", program, "--scheduler", address)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()
        local = compute(folder / "local", program)
        parents = [int(word) for word in started.read_text(encoding="utf-8").split()]
    worker = processes[1].pid
    print(f"simulator started by {parents}, the cluster's worker is {worker}, this is {os.getpid()}")
    assert parents[:POINTS] == [worker] * POINTS, parents
    assert len(parents) == 2 * POINTS and worker not in parents[POINTS:], parents
    assert remote == local, (remote, local)
    return 0


if __name__ == "__main__":
    sys.exit(main())
