"""Virtual hosts on one machine: network namespaces around a bridge in a namespace of its own.

Nothing appears in the root namespace. Links are shaped on the switch's side of each veth pair, the
direction into the switch through an IFB, because AF_XDP and packet sockets send past a host's own
qdisc. Everything that was made is removed by close(), and by the next Lab of the same prefix if this
process was killed.
"""
import contextlib
import json
import os
import re
import subprocess


class LabError(RuntimeError):
    pass


def sh(*args, ns=None, check=True):
    """Runs a command, in a namespace if one is named; returns its output."""
    command = list(args)
    if ns:
        command = ["nsenter", f"--net=/run/netns/{ns}"] + command
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stdout.strip()}")
    return done.stdout


def outputs_of(programs, patience_s):
    """What each has written to its standard output, once all have ended. LabError: one has failed, with its errors, or has
    not ended. None of them is left running."""
    try:
        said = [program.communicate(timeout=patience_s) for program in programs]
    except subprocess.TimeoutExpired as late:
        raise LabError(f"not done after {patience_s} s") from late
    finally:
        for program in programs:
            if program.poll() is None:
                program.kill()
                program.wait()
    for program, (_, errors) in zip(programs, said):
        if program.returncode != 0:
            raise LabError(f"status {program.returncode}\n{errors}")
    return [output for output, _ in said]


class Host:
    def __init__(self, lab, index, name):
        self.name = name
        self.ns = f"{lab.prefix}-{name}"
        self.interface = "eth0"
        self.ip = f"10.77.0.{index + 1}"
        self.ip6 = f"fd77::{index + 1:x}"
        self.port = f"p{index}"
        self.ifb = f"ifb{index}"

    def command(self, command):
        """The same, run on this host."""
        return ["nsenter", f"--net=/run/netns/{self.ns}", *command]

    def popen(self, command, **options):
        """Starts a program on this host."""
        return subprocess.Popen(self.command(command), **options)


class Lab:
    """Hosts `names`, each with a link of `rate_mbit` both ways (None: unshaped) to one switch.

    A link that was idle then carries up to `bucket_bytes` at once, as no cable does: by default what
    it carries in 2 ms, but at least four frames, or the timer's grain would cost rate.
    """

    def __init__(self, prefix, names, rate_mbit=None, mtu=1500, queue_bytes=1 << 20, bucket_bytes=None):
        self.prefix = prefix
        self.switch = f"{prefix}-switch"
        self.rate_mbit = rate_mbit
        self.mtu = mtu
        self.queue_bytes = queue_bytes
        if rate_mbit:
            self.bucket_bytes = bucket_bytes or max(int(rate_mbit * 1e6 / 8 * 0.002), 4 * (mtu + 14))
        self.hosts = [Host(self, i, name) for i, name in enumerate(names)]
        self.close()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name):
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _build(self):
        if os.geteuid() != 0:
            raise LabError("virtual hosts need root (network namespaces)")
        sh("ip", "netns", "add", self.switch)
        sh("ip", "link", "set", "lo", "up", ns=self.switch)
        # A bridge that snoops multicast without a querier loses neighbour solicitations.
        sh("ip", "link", "add", "br0", "mtu", str(self.mtu), "type", "bridge", "mcast_snooping", "0",
           ns=self.switch)
        sh("ip", "link", "set", "br0", "up", ns=self.switch)
        for host in self.hosts:
            self._add(host)

    def _add(self, host):
        sh("ip", "netns", "add", host.ns)
        sh("ip", "link", "add", host.port, "mtu", str(self.mtu), "type", "veth", "peer", "name",
           host.interface, "mtu", str(self.mtu), "netns", host.ns, ns=self.switch)
        sh("ip", "link", "set", host.port, "master", "br0", "up", ns=self.switch)
        sh("ip", "link", "set", "lo", "up", ns=host.ns)
        # What the kernel sends over veth otherwise has unfilled checksums and frames beyond the MTU.
        for interface, ns in ((host.interface, host.ns), (host.port, self.switch)):
            sh("ethtool", "-K", interface, "tx", "off", "tso", "off", "gso", "off", ns=ns)
        # Duplicate address detection would hold back IPv6 for seconds; nobody else is here.
        sh("sysctl", "-qw", f"net.ipv6.conf.{host.interface}.accept_dad=0", ns=host.ns)
        sh("ip", "address", "add", f"{host.ip}/24", "dev", host.interface, ns=host.ns)
        sh("ip", "-6", "address", "add", f"{host.ip6}/64", "dev", host.interface, "nodad", ns=host.ns)
        sh("ip", "link", "set", host.interface, "up", ns=host.ns)
        if self.rate_mbit:
            self._shape(host)

    def _bucket(self, rate_mbit):
        return ["tbf", "rate", f"{rate_mbit}mbit", "burst", str(self.bucket_bytes), "limit",
                str(self.queue_bytes)]

    def set_rate(self, host, rate_mbit):
        """Of its link, both ways, from now on. What waits before the link stays there."""
        for interface in (host.port, host.ifb):
            sh("tc", "qdisc", "change", "dev", interface, "root", *self._bucket(rate_mbit), ns=self.switch)

    def _shape(self, host):
        tbf = self._bucket(self.rate_mbit)
        sh("tc", "qdisc", "add", "dev", host.port, "root", *tbf, ns=self.switch)
        sh("ip", "link", "add", host.ifb, "type", "ifb", ns=self.switch)
        sh("ip", "link", "set", host.ifb, "mtu", str(self.mtu), "up", ns=self.switch)
        sh("tc", "qdisc", "add", "dev", host.port, "handle", "ffff:", "ingress", ns=self.switch)
        # "return all" in classic BPF: kernels without the matchall classifier have cls_bpf.
        sh("tc", "filter", "add", "dev", host.port, "parent", "ffff:", "protocol", "all", "bpf",
           "bytecode", "1,6 0 0 4294967295,", "action", "mirred", "egress", "redirect", "dev",
           host.ifb, ns=self.switch)
        sh("tc", "qdisc", "add", "dev", host.ifb, "root", *tbf, ns=self.switch)

    def link_bytes(self, host):
        """Bytes that the host's link has carried so far: (from the host, to the host)."""
        stats = json.loads(sh("ip", "-s", "-j", "link", "show", "dev", host.port,
                              ns=self.switch))[0]["stats64"]
        return stats["rx"]["bytes"], stats["tx"]["bytes"]

    def lost_frames(self, host):
        """That found no room before the host's link, which is shaped: (from the host, to the host)."""
        return tuple(sum(queue["drops"] for queue in json.loads(sh("tc", "-s", "-j", "qdisc", "show", "dev", interface, ns=self.switch))
                         if queue["kind"] == "tbf") for interface in (host.ifb, host.port))

    def add_rule(self, text):
        """Of nftables, for every frame that the switch forwards from now on. Returns what takes it back."""
        chain = "bridge lab forward"
        said = sh("nft", "-e", "-a", f"add table bridge lab; add chain {chain} {{ type filter hook forward priority 0; }}; add rule {chain} {text}",
                  ns=self.switch)
        handle = said.rpartition("handle ")[2].strip()
        return lambda: sh("nft", f"delete rule {chain} handle {handle}", ns=self.switch)

    @contextlib.contextmanager
    def losses(self, percent):
        """Meanwhile each link loses so many of a hundred frames either way, at random: a frame between two hosts may be lost on
        either link. nftables draws, and takes no seed: no two runs lose the same. Gives a function: how many were lost so far."""
        undo = [self.add_rule(f"{side} {host.port} numgen random mod 100 < {percent} counter drop")
                for host in self.hosts for side in ("iifname", "oifname")]
        try:
            yield lambda: sum(map(int, re.findall(r"counter packets (\d+) ", sh("nft", "list", "table", "bridge", "lab", ns=self.switch))))
        finally:
            for each in undo:
                each()

    def close(self):
        for ns in [host.ns for host in self.hosts] + [self.switch]:
            if os.path.exists(f"/run/netns/{ns}"):
                sh("ip", "netns", "delete", ns, check=False)
