"""Programs that a test starts beside each other, as a launcher does."""
import os
import signal
import socket
import subprocess

# Of what tests start, too, where a shell has started these in its background, and so without it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port(kind=socket.SOCK_DGRAM):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(library):
    """This process's, but for what makes it a member of a job."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}, "MERCURY_LIBRARY": library}


def start(command, library, **variables):
    return subprocess.Popen(command, env={**environment(library), **variables}, text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def line_of(program):
    """The next line of its output, or what is left of it, and nothing behind: outcomes_of() finds no more of what readline() has read ahead."""
    line = b""
    while not line.endswith(b"\n"):
        found = os.read(program.stdout.fileno(), 1)
        if not found:
            break
        line += found
    return line.decode()


def end(program):
    """Does not wait for what it has started itself, which may hold its pipes."""
    if program.poll() is None:
        program.kill()
    program.wait()
    for pipe in (program.stdin, program.stdout, program.stderr):
        if pipe is not None:
            pipe.close()


def outcomes_of(programs, patience_s):
    """(standard output, errors, status) of each, once all have ended. None is left."""
    try:
        return [program.communicate(timeout=patience_s) + (program.returncode,) for program in programs]
    finally:
        for program in programs:
            end(program)
