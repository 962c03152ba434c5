"""Starts a program and waits until it says that it is ready, as systemd's services do (sd_notify)."""
import contextlib
import os
import socket
import time


class NotReady(RuntimeError):
    def __init__(self, why, process):
        super().__init__(why)
        self.process = process


def start_ready(start, path, seconds=30, environment=None):
    """Calls `start(env=...)`, which returns the process, and returns it once it has said READY=1 to
    the socket that this makes at `path` meanwhile. Of one that ends before, or says nothing for
    `seconds`, nothing is left but its exit status; NotReady has it in `process`."""
    path = str(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(0.1)
        process = start(env={**(os.environ if environment is None else environment), "NOTIFY_SOCKET": path})
        try:
            deadline = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    if b"READY=1" in receiver.recv(4096).splitlines():
                        return process
        except BaseException:  # interrupted: the caller does not have the process yet
            process.kill()
            process.wait()
            raise
        finally:
            os.unlink(path)
    ended = process.poll() is not None
    process.kill()
    status = process.wait()
    raise NotReady(f"ended with status {status}" if ended else f"was not ready after {seconds} s", process)
