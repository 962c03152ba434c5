"""Programs that begin as copies of one that has loaded its modules: loading PyTorch takes longer than most of what tests have them do."""
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading

MOST_BYTES = 65536  # of a request


def serve(channel):
    """Begins a copy for each request that comes, in which it returns: with the request's arguments and variables, and its own output. No
    thread may run here, and nothing of Mercury."""
    while True:
        data, files, _, _ = socket.recv_fds(channel, MOST_BYTES, 2)
        if not data:
            sys.exit(0)
        request = json.loads(data)
        if "ended" in request:
            channel.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])).encode())
            continue
        copy = os.fork()
        if copy == 0:
            break
        for file in files:
            os.close(file)
        channel.send(json.dumps(copy).encode())
    channel.close()
    for file, standard in zip(files, (1, 2)):
        os.dup2(file, standard)
        os.close(file)
    os.environ.update(request["variables"])
    sys.argv[1:] = request["arguments"]


class Origin:
    """Runs `command`, which calls serve() with the channel whose file's number stands behind it. Of any thread."""

    def __init__(self, command, environment):
        self.one_at_a_time = threading.Lock()
        self.channel, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.program = subprocess.Popen([*command, str(others.fileno())], env=environment, pass_fds=[others.fileno()], stdin=subprocess.DEVNULL)
        others.close()

    def ask(self, request, files=()):
        with self.one_at_a_time:
            socket.send_fds(self.channel, [json.dumps(request).encode()], files)
            answer = self.channel.recv(MOST_BYTES)
        if not answer:
            raise RuntimeError(f"{self.program.args}: ended with status {self.program.wait()}")
        return json.loads(answer)

    def close(self):
        self.channel.close()
        self.program.wait()


class Copy:
    """As subprocess.Popen, as far as programs.outcomes_of asks."""

    stdin = None

    def __init__(self, origin, arguments, variables):
        self.origin, self.returncode = origin, None
        self.stdout, self.stderr = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.pid = origin.ask({"arguments": arguments, "variables": variables}, [self.stdout.fileno(), self.stderr.fileno()])
        self.end = os.pidfd_open(self.pid)

    def communicate(self, timeout):
        self.wait(timeout)
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return self.stdout.read(), self.stderr.read()

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.origin.program.args, timeout)
            self.returncode = self.origin.ask({"ended": self.pid})
            os.close(self.end)
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        os.kill(self.pid, 9)  # it is there until wait() has asked
