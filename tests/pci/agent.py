"""What runs in a guest, as its first process: does what guest.py asks for, line by line."""
import functools
import glob
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import ready  # noqa: E402

WORK = "/run/work"
started = {}


def run(question):
    try:
        done = subprocess.run(question["run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=question["seconds"])
        return {"status": done.returncode, "output": done.stdout}
    except subprocess.TimeoutExpired as slow:
        return {"status": None, "output": (slow.stdout or b"").decode()}


def start(question):
    with open(question["log"], "a") as log:
        begin = functools.partial(subprocess.Popen, question["start"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        environment = {**os.environ, **question["environment"]}
        if question["ready"]:
            process = ready.start_ready(begin, f"{WORK}/notify", question["seconds"], environment)
        else:
            process = begin(env=environment)
    started[process.pid] = process
    return {"pid": process.pid}


def wait(question):
    try:
        return {"status": started[question["wait"]].wait(question["seconds"])}
    except subprocess.TimeoutExpired:
        return {"status": None}


def kill(question):
    started[question["kill"]].send_signal(question["signal"])
    return {}


def read(question):
    with open(question["read"]) as file:
        return {"text": file.read()}


def write(question):
    with open(question["write"], "w") as file:
        file.write(question["text"])
    return {}


def main():
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME=WORK, TMPDIR=WORK)
    os.makedirs(WORK)
    os.chdir(WORK)
    with open(glob.glob("/dev/vport*p1")[0], "r+b", buffering=0) as line:
        line.write(b'{"up": true}\n')
        buffer = b""
        while True:
            while b"\n" not in buffer:
                buffer += line.read(65536) or b""
            text, _, buffer = buffer.partition(b"\n")
            question = json.loads(text)
            try:
                answer = next(act for name, act in ACTS.items() if name in question)(question)
            except Exception as error:  # pylint: disable=broad-except
                answer = {"error": f"{type(error).__name__}: {error}"}
            line.write(json.dumps(answer).encode() + b"\n")


ACTS = {"run": run, "start": start, "wait": wait, "kill": kill, "read": read, "write": write}
if __name__ == "__main__":
    main()
