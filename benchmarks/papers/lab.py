"""Asks mercury-sim, many questions at once, and keeps every answer on disk.

A question is mercury-sim's command line. Answers are files in a folder named after the program's
contents, so that what an interrupted run has finished is not computed again, and nothing stays when
the program changes. Questions run on Dask: on the local cores, or on a cluster (whose hosts see
this checkout, the program and the output folder under the same paths).
"""
import hashlib
import json
import logging
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "apps" / "trace" / "traces"


class LabError(Exception):
    """What stops a figure, in words for who runs it."""


def simulation(model, policy, *options, **cluster):
    """A question to the simulator."""
    workers = cluster.get("workers", 2)
    even = cluster.get("servers", workers) in (None, workers)
    return ("--quiet", *training(model, policy, **cluster), *options, *steady(policy, even, options))


def steady(policy, even, options):
    """How many iterations are the steady state, without jitter: one after the warm-up says it where there
    are as many servers as workers. Otherwise they differ by some tenths of a percent. P3, which waits for
    each partition, takes some until its workers are in step, and they come and go by a percent or two."""
    if "--iterations" in options or "--warmup" in options:
        return ()
    if policy.startswith("p3"):
        return ("--iterations", "14", "--warmup", "8")
    return ("--iterations", "2") if even else ("--iterations", "7", "--warmup", "1")


def equations(model, policy, *options, **cluster):
    """A question to the model."""
    return ("model", *training(model, policy, **cluster), *options)


def training(model, policy, gbps=10, workers=2, servers=None, mtu=None):
    """As many servers as workers where nothing is said, as in the paper."""
    return ("--trace", str(model), "--policy", policy, "--bandwidth", rate(gbps), "--workers",
            str(workers), "--servers", str(servers or workers),
            *(("--mtu", str(mtu)) if mtu else ()))


def rate(gbps):
    return f"{round(gbps * 1000)}Mbps"


def partitions(name, partition_bytes, credit_bytes, *knobs):
    return f"{name}:" + ",".join((f"partition={round(partition_bytes)}B",
                                  f"credit={round(credit_bytes)}B", *knobs))


class Lab:
    def __init__(self, program, out, quick=False, scheduler=None, cores=None, trace=None,
                 cluster=None):
        # The user's own model, and what `training()` takes, for the figures that take them.
        self.trace, self.cluster = trace, cluster or {}
        self.program = pathlib.Path(program).resolve()
        if not self.program.is_file():
            raise LabError(f"no {self.program}: tools/build apps/sim/mercury-sim makes it")
        self.out = pathlib.Path(out).resolve()
        self.quick = quick
        self._scheduler, self.cores = scheduler, cores or os.cpu_count()
        self._client = self._cluster = None
        digest = hashlib.sha256(self.program.read_bytes()).hexdigest()
        self.answers = self.out / "answers" / digest[:16]
        self.answers.mkdir(parents=True, exist_ok=True)
        self.computed = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._client is not None:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def ask(self, question):
        return self.ask_all({0: question})[0]

    def ask_all(self, questions):
        """Answers under the questions' keys. Questions that are equal are asked once."""
        missing = {self._path(question): question for question in questions.values()}
        missing = {path: question for path, question in missing.items() if not path.exists()}
        if missing:
            self._compute(missing)
        return {key: json.loads(self._path(question).read_text(encoding="utf-8"))
                for key, question in questions.items()}

    def timeline(self, question):
        """The file of spans that this simulation writes, in Chrome's trace format."""
        path = self._path(question).with_suffix(".timeline.json")
        if not path.exists():
            unfinished = path.with_suffix(".part")
            self._check(question, subprocess.run(
                [self.program, *question, "--timeline", unfinished, "--json", "-"],
                capture_output=True, text=True, check=False))
            unfinished.rename(path)
        return path

    def _path(self, question):
        digest = hashlib.sha256("\0".join(question).encode())
        for word in question:  # a trace file with other contents is another question
            name = word.split("@")[0]
            path = pathlib.Path(name) if name.endswith(".csv") else SHIPPED / f"{name}.csv"
            if path.is_file():
                digest.update(path.read_bytes())
        return self.answers / f"{digest.hexdigest()[:24]}.json"

    def _check(self, question, done):
        """The answer, or a LabError. An interrupted simulation's is none."""
        if done.returncode != 0:
            raise LabError(f"{self.program.name} {' '.join(question)}: status {done.returncode}: "
                           f"{done.stderr.strip()[-500:]}")
        answer = json.loads(done.stdout)
        if answer.get("interrupted"):
            raise KeyboardInterrupt
        return answer

    def _compute(self, missing):
        client, as_completed = self._start()
        futures = {}
        for path, question in missing.items():
            futures[client.submit(subprocess.run, [str(self.program), *question, "--json", "-"],
                                  capture_output=True, text=True, check=False, pure=False)] = path
        try:
            for number, future in enumerate(as_completed(futures)):
                path = futures[future]
                answer = self._check(missing[path], future.result())
                answer["question"] = list(missing[path])
                unfinished = path.with_suffix(".part")
                unfinished.write_text(json.dumps(answer), encoding="utf-8")
                unfinished.rename(path)
                self.computed += 1
                if sys.stderr.isatty():
                    print(f"\r  {number + 1}/{len(futures)} ", end="", file=sys.stderr)
        finally:
            client.cancel(list(futures))
            if sys.stderr.isatty():
                print("\r" + 20 * " " + "\r", end="", file=sys.stderr)

    def _start(self):
        try:
            import dask
            from distributed import Client, LocalCluster, as_completed
        except ImportError:
            raise LabError("sweeps run on Dask: apt-get install python3-distributed") from None
        if self._client is None:
            try:
                if self._scheduler is None:
                    # One process with a thread for each core: a task waits for a mercury-sim. A
                    # host that slept finds its only worker overdue, and must not drop it.
                    dask.config.set({"distributed.scheduler.worker-ttl": None})
                    self._cluster = LocalCluster(
                        n_workers=1, threads_per_worker=self.cores, processes=False,
                        dashboard_address="127.0.0.1:0", silence_logs=logging.ERROR)
                self._client = Client(self._cluster or self._scheduler, timeout=10)
            except (OSError, ValueError) as error:
                raise LabError(f"Dask's scheduler at {self._scheduler or 'this host'}: "
                               f"{error}") from None
        return self._client, as_completed


def status_of(main):
    """A program's: what its main says; 1, with the reason, where a simulation fails or somebody interrupts it."""
    try:
        return main()
    except (LabError, OSError) as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; what was computed is kept", file=sys.stderr)
    return 1
