"""A source tree of ps-lite, and programs built of it. Where there is none, the tests are skipped with a line.

MERCURY_BYTEPS_SDIST names a copy of BytePS's source distribution; without it, pip downloads it.
"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
BYTEPS = "byteps-0.2.5.post15"
SKIPPED = 77  # to Meson


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def archive(cache):
    """The path of the distribution."""
    given = os.environ.get("MERCURY_BYTEPS_SDIST")
    if given:
        if not os.path.isfile(given):
            sys.exit(f"MERCURY_BYTEPS_SDIST: expected the path of {BYTEPS}.tar.gz; there is no file {given!r}")
        return given
    path = os.path.join(cache, f"{BYTEPS}.tar.gz")
    if not os.path.exists(path):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                               "--no-binary", ":all:", "--dest", cache, BYTEPS.replace("-", "==")],
                              capture_output=True, text=True)
        # pip also builds what describes the package, and may fail at that: the file is all we need.
        if not os.path.exists(path):
            skip(f"no ps-lite: pip cannot download {BYTEPS} ({(done.stderr.strip().splitlines() or ['no word'])[-1]}); "
                 "MERCURY_BYTEPS_SDIST can name a copy")
    return path


def tree(cache):
    """The folder of BytePS's ps-lite, unpacked."""
    root = os.path.join(cache, BYTEPS, "3rdparty", "ps-lite")
    if not os.path.exists(os.path.join(root, "src", "van.cc")):
        with tarfile.open(archive(cache)) as file:
            file.extractall(cache, [member for member in file if member.name.startswith(f"{BYTEPS}/3rdparty/ps-lite/")])
    return root


def with_mercury(root, out):
    """A copy of the tree that knows the van, by the lines of docs/pslite.md."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(root, out)
    changes = [("src/van.cc", r'^#include "\./resender\.h"', '#include "shim/pslite/mercury_van.h"\n\\g<0>'),
               ("src/van.cc", r'^  if \(type == "zmq"', '  if (type == "mercury") return NewMercuryVan();\n\\g<0>')]
    if os.path.exists(f"{root}/src/van_common.h"):  # BytePS's
        changes.append(("src/postoffice.cc", r'GetEnv\("DMLC_ENABLE_RDMA", "zmq"\)', 'GetEnv("DMLC_PS_VAN_TYPE", \\g<0>)'))
    for name, old, new in changes:
        with open(os.path.join(out, name)) as file:
            text, count = re.subn(old, new, file.read(), flags=re.MULTILINE)
        if count != 1:
            raise AssertionError(f"{root}/{name} has {count} of {old}: it is no ps-lite that docs/pslite.md speaks of")
        with open(os.path.join(out, name), "w") as file:
            file.write(text)
    return out


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr[-4000:]}")


def is_newer(path, *others):
    """Than these, and what lies beside them to be included."""
    others = [*others, *(header for other in others for header in glob.glob(os.path.join(os.path.dirname(other), "*.h")))]
    return os.path.exists(path) and all(os.stat(path).st_mtime > os.stat(other).st_mtime for other in others)


def build(root, out, programs, sources=(), flags=(), libraries=()):
    """`programs`: their sources; `sources`: of what is in them all, beside ps-lite. Returns the paths of
    the programs, by name without the ending."""
    if not os.path.exists("/usr/include/zmq.h"):
        skip("no zmq.h: apt-get install libzmq3-dev")
    os.makedirs(out, exist_ok=True)
    flags = ["c++", "-std=c++14", "-O2", "-w", f"-I{root}/src", f"-I{root}/include", f"-I{out}", f"-I{ROOT}", *flags]
    sources = [f"{root}/src/{name}.cc" for name in ("customer", "postoffice", "van")] + list(sources)
    libraries = ["-lzmq", "-pthread", *libraries]
    if os.path.exists(f"{root}/src/meta.proto"):  # dmlc's
        run("protoc", f"--cpp_out={out}", f"--proto_path={root}/src", f"{root}/src/meta.proto")
        sources.append(f"{out}/meta.pb.cc")
        libraries.append("-lprotobuf")
    objects, headers = [], glob.glob(f"{root}/**/*.h", recursive=True)
    for source in sources:
        objects.append(os.path.join(out, os.path.basename(source) + ".o"))
        if not is_newer(objects[-1], source, *headers):
            run(*flags, "-c", source, "-o", objects[-1])
    built = {}
    for source in programs:
        name = os.path.splitext(os.path.basename(source))[0]
        built[name] = os.path.join(out, name)
        if not is_newer(built[name], source, *objects):
            run(*flags, source, *objects, "-o", built[name], *libraries)
    return built


def build_with_van(root, cache, source, library, programs):
    """Programs of this folder, in a copy of the tree with the van of Mercury's source tree `source`."""
    here, van = os.path.dirname(os.path.abspath(__file__)), os.path.join(source, "shim", "pslite")
    # Objects of another tree look newer than this one's sources.
    out = os.path.join(cache, "van", hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16])
    flags = [f"-I{source}", f"-I{source}/shim/socket/api", f"-I{source}/shim/client"]
    libraries = [f"-L{library}", "-lmercurystack", f"-Wl,-rpath,{library}"]
    return build(with_mercury(root, os.path.join(out, "tree")), os.path.join(out, "built"), [f"{here}/{name}.cc" for name in programs],
                 sorted(glob.glob(os.path.join(van, "*.cc"))), flags, libraries)
