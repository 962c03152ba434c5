"""Virtual machines with NICs, for the drivers of real ones: QEMU without KVM, Debian's own kernel.

A guest sees this machine's files, and keeps what it changes in its memory; on top runs agent.py. Needs
qemu-system-x86, kmod and dpkg; the kernel is downloaded and unpacked, not installed. No root.
"""
import contextlib
import glob
import json
import os
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Of the guest's kernel, with all that they need. NICs' own come with it: what binds to them first.
MODULES = ("9p", "9pnet_virtio", "overlay", "virtio_pci", "virtio_console", "e1000e", "virtio_net", "vmxnet3")
BOOT_S = 300
MEMORY_MB = 1024
HUGEPAGES = 150  # of 2 MB

INIT = """#!/bin/busybox sh
busybox mount -t devtmpfs dev /dev
for module in {modules}; do busybox insmod /modules/$module || echo "cannot load $module"; done
busybox mkdir /host /memory
busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
busybox mount -t tmpfs memory /memory
busybox mkdir /memory/upper /memory/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root
for at in proc:proc sysfs:sys devtmpfs:dev tmpfs:run; do
  busybox mount -t ${{at%%:*}} none /root/${{at##*:}}
done
busybox mkdir -p /root/usr/lib/modules
busybox ln -s {kernel_modules} /root/usr/lib/modules/
exec busybox switch_root /root /usr/bin/python3 {agent}
"""


def archive(files):
    """An initramfs: cpio's "newc" format. `files` are names, modes and contents."""
    parts = []
    for number, (name, mode, data) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]
    return b"".join(parts)


def unpack(package, folder):
    """A Debian package's files, without installing it."""
    done = subprocess.run(["apt-get", "download", "-q", package], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"apt-get download {package}: {done.stderr}")
    files = glob.glob(f"{folder}/{package}_*.deb")
    subprocess.run(["dpkg-deb", "-x", files[0], folder], check=True)
    os.unlink(files[0])


class Kernel:
    """Debian's kernel and an initramfs for guests, in `folder`; downloaded the first time."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        folder = os.path.abspath(folder)
        if not glob.glob(f"{folder}/boot/vmlinuz-*"):
            print("downloading a kernel ...", flush=True)
            depends = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True,
                                     check=True).stdout
            unpack("busybox-static", folder)
            unpack(next(line.split()[1] for line in depends.splitlines() if "Depends:" in line), folder)
        self.image = glob.glob(f"{folder}/boot/vmlinuz-*")[0]
        version = os.path.basename(self.image).removeprefix("vmlinuz-")
        subprocess.run(["depmod", "-b", folder, version], check=True)
        modules = []
        for module in MODULES:
            answer = subprocess.run(["modprobe", "-d", folder, "-S", version, "--show-depends", module],
                                    capture_output=True, text=True, check=True).stdout
            modules += [path for path in (line.split()[1] for line in answer.splitlines()) if path not in modules]
        init = INIT.format(modules=" ".join(map(os.path.basename, modules)), agent=f"{HERE}/agent.py",
                           kernel_modules=f"{folder}/lib/modules/{version}")
        files = [(name, 0o40755, b"") for name in ("bin", "dev", "modules", "root")]
        for name, mode, path in [("bin/busybox", 0o100755, f"{folder}/bin/busybox"),
                                 *((f"modules/{os.path.basename(path)}", 0o100644, path) for path in modules)]:
            with open(path, "rb") as file:
                files.append((name, mode, file.read()))
        files.append(("init", 0o100755, init.encode()))
        self.initramfs = f"{folder}/initramfs"
        with open(self.initramfs, "wb") as file:
            file.write(archive(files))


class Failed(RuntimeError):
    """What a guest, or its machine, said that it could not do."""


class Line:
    """Lines of JSON over a socket of QEMU's."""

    def __init__(self, path, process, seconds):
        deadline = time.monotonic() + seconds
        self.socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.socket.connect(path)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.file = self.socket.makefile("rw", encoding="utf-8")

    def read(self, seconds):
        self.socket.settimeout(seconds)
        line = self.file.readline()
        if not line:
            raise EOFError("the guest has ended")
        return json.loads(line)

    def write(self, message):
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()


class Nic:
    """`wire` is a file name that two guests' NICs have in common: the one that boots first listens."""

    def __init__(self, model, slot, wire, listens, options=""):
        self.address = f"0000:00:{slot:02x}.0"
        self.name = f"wire{slot}"
        end = (f"stream,id={self.name},server={'on' if listens else 'off'},addr.type=unix,addr.path={wire}")
        self.arguments = ["-netdev", end, "-device", f"{model},netdev={self.name},addr={slot:#x},"
                          f"mac=52:54:00:00:{slot:02x}:{1 if listens else 2:02x}{options}"]


class Guest:
    """`iommu`: whether it has one, and vfio-pci can serve it. up() waits until it can be asked."""

    def __init__(self, kernel, folder, nics, iommu):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        arguments = [
            "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1",
            "-m", str(MEMORY_MB), "-nodefaults", "-display", "none", "-no-reboot", "-kernel", kernel.image,
            "-initrd", kernel.initramfs, "-append",
            f"console=ttyS0 quiet panic=-1 mitigations=off hugepages={HUGEPAGES} intel_iommu={'on' if iommu else 'off'}",
            "-serial", f"file:{folder}/console", "-qmp", f"unix:{folder}/qmp,server=on,wait=off",
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent",
            "-chardev", f"socket,id=agent,path={folder}/agent,server=on,wait=off"]
        if iommu:  # with addresses as wide as a process's, so that a NIC may read any of its memory
            arguments += ["-device", "intel-iommu,aw-bits=48"]
        for nic in nics:
            arguments += nic.arguments
        with open(f"{folder}/qemu.log", "w") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.line = Line(f"{folder}/agent", self.process, 30)
        self.monitor = Line(f"{folder}/qmp", self.process, 30)
        self.monitor.read(30)  # its greeting
        self.control("qmp_capabilities")

    def up(self):
        self.line.read(BOOT_S)

    def ask(self, seconds, **question):
        self.line.write({**question, "seconds": seconds})
        answer = self.line.read(seconds + 60)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def run(self, *command, seconds=60):
        """In the guest: (status, output with errors). Status None: it took longer."""
        answer = self.ask(seconds, run=command)
        return answer["status"], answer["output"]

    def write(self, path, text):
        self.ask(30, write=path, text=text)

    def read(self, path):
        return self.ask(30, read=path)["text"]

    def start(self, *command, log, ready=False, environment=None, seconds=60):
        """In the background: its pid. `ready`: when it has said so (sd_notify)."""
        return self.ask(seconds, start=command, log=log, ready=ready, environment=environment or {})["pid"]

    def wait(self, pid, seconds=60):
        """The status of what start() started; None: it still runs."""
        return self.ask(seconds, wait=pid)["status"]

    def kill(self, pid, signal):
        self.ask(30, kill=pid, signal=signal)

    def control(self, command, **arguments):
        """Of the machine itself, by QEMU's monitor."""
        self.monitor.write({"execute": command, "arguments": arguments})
        while True:
            answer = self.monitor.read(30)
            if "error" in answer:
                raise Failed(answer["error"])
            if "return" in answer:
                return

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        for line in (self.line, self.monitor):
            with contextlib.suppress(OSError):
                line.socket.close()
