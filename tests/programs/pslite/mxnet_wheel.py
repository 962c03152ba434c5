"""MXNet as it is on PyPI, unpacked into a folder. Where it cannot be had, its test is skipped with a line.

MERCURY_MXNET_WHEELS names a folder with its wheel and those that it needs, as
pip download --dest FOLDER mxnet==1.9.1 'numpy<1.24' fills it; without it, pip downloads them.
"""
import os
import shutil
import subprocess
import sys

import pslite_tree

MXNET = "mxnet-1.9.1"
PACKAGES = (MXNET.replace("-", "=="), "numpy<1.24")  # a later numpy has none of the names that it imports


def folder(cache):
    """What PYTHONPATH is to name."""
    path = os.path.join(cache, MXNET)
    if os.path.isdir(path):
        return path
    where = os.environ.get("MERCURY_MXNET_WHEELS")
    if where and not os.path.isdir(where):
        sys.exit(f"MERCURY_MXNET_WHEELS: expected a folder with the wheels of {MXNET}; there is no folder {where!r}")
    partial = f"{path}.partial"  # of a pip that was interrupted
    shutil.rmtree(partial, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", partial,
                           *(("--no-index", "--find-links", where) if where else ()), *PACKAGES],
                          capture_output=True, text=True)
    if done.returncode != 0:
        pslite_tree.skip(f"no MXNet: pip cannot install {MXNET} ({(done.stderr.strip().splitlines() or ['no word'])[-1]}); "
                         "MERCURY_MXNET_WHEELS can name a folder with it")
    os.rename(partial, path)
    return path
