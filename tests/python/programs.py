"""Programs that a test starts beside each other, as a launcher does."""
import concurrent.futures
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import unittest

# Of what tests start, too, where a shell has started these in its background, and so without it.
signal.signal(signal.SIGINT, signal.default_int_handler)

AT_A_TIME = 4


def free_port(kind=socket.SOCK_DGRAM):
    """For a program that is started later; usually none of those that the kernel gives to who asks for any."""
    while True:
        port = random.SystemRandom().randrange(10000, 30000)
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port


def run_some_at_a_time(module, alone=()):
    """Runs tests that wait most of the time, those of the names in `alone` after the others; returns the program's status. Fixtures of classes
    and modules are not run. Arguments are names of tests."""
    def each(suite):
        for one in suite:
            yield from each(one) if isinstance(one, unittest.TestSuite) else (one,)

    def wrong_with(test):
        result = unittest.TestResult()
        test.run(result)
        wrong = result.errors + result.failures + [(one, "succeeds") for one in result.unexpectedSuccesses]  # a test's parts each have one
        skipped = "".join(f", skipped: {why}" for _, why in result.skipped)
        said = [f"{test.id()} {'FAILED' if wrong else 'ok'}{skipped}", *(f"{part}\n{why}" for part, why in wrong)]
        sys.stdout.write("\n".join(said) + "\n")
        sys.stdout.flush()
        return bool(wrong)

    loader, names = unittest.TestLoader(), sys.argv[1:]
    if any(name.startswith("-") for name in names):
        print(f"{sys.argv[0]}: expected names of tests, got {' '.join(names)}", file=sys.stderr)
        return 2
    tests = list(each(loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)))
    name_of = lambda test: test.id().rpartition(".")[2]
    if not names and not set(alone) <= set(map(name_of, tests)):
        raise ValueError(f"no such tests: {alone}")
    is_alone = lambda test: name_of(test) in alone
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as runners:
        failed = sum(runners.map(wrong_with, (test for test in tests if not is_alone(test))))
    failed += sum(map(wrong_with, filter(is_alone, tests)))
    print(f"{len(tests)} tests, {failed} failed")
    return 1 if failed or not tests else 0


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
