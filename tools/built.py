"""For scripts that run what the build makes."""
import os
import sys


def need(*programs):
    """Ends the script with what to run, if one of them is not there."""
    for program in programs:
        if not os.path.isfile(program):
            sys.exit(f"no {program}: tools/build makes it")
