"""Programs that a test starts beside each other, as a launcher does."""
import os
import socket
import subprocess


def free_port(kind=socket.SOCK_DGRAM):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, library, **variables):
    """In this process's environment, but for what makes it a member of a job, and with `variables`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
    return subprocess.Popen(command, env={**environment, "MERCURY_LIBRARY": library, **variables}, text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(program):
    """Does not wait for what it has started itself, which may hold its pipes."""
    if program.poll() is None:
        program.kill()
    program.wait()
    for pipe in (program.stdin, program.stdout, program.stderr):
        pipe.close()


def outcomes_of(programs, patience_s):
    """(standard output, errors, status) of each, once all have ended. None is left."""
    try:
        return [program.communicate(timeout=patience_s) + (program.returncode,) for program in programs]
    finally:
        for program in programs:
            end(program)
