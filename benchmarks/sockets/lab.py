"""Two virtual hosts with the daemons of a build, for the programs of this folder."""
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "programs")]
import built  # noqa: E402
import netlab  # noqa: E402
from two_hosts import SKIPPED, Built, TwoHosts  # noqa: E402


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def add_build(parser):
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path, help="Meson's build folder (default: build)")


def add_settings(parser):
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE",
                        help="of both daemons' configuration, such as engine.spin=50us; more than once")


def use_build(build, *programs):
    """Ends the program if something of it is not built."""
    Built.stackd, Built.ctl, Built.run = (str(build / path) for path in (
        "apps/stackd/mercury-stackd", "apps/ctl/mercuryctl", "apps/run/mercury-run"))
    built.need(Built.stackd, Built.ctl, Built.run, *programs)


def two_hosts(**options):
    """To be closed. MTU 9000, nothing shaped, TCP with its segmentation offload."""
    try:
        hosts = TwoHosts(**options)
    except netlab.LabError as error:
        skip(error)
    for host in hosts.lab.hosts:
        for interface, ns in (("eth0", host.ns), (host.port, hosts.lab.switch)):
            netlab.sh("ethtool", "-K", interface, "tx", "on", "tso", "on", "gso", "on", ns=ns)
    return hosts


def tcp_of(hosts, wanted=None):
    """The congestion control that the kernel's TCP has on these hosts: the one that is wanted, if any."""
    for host in hosts.lab.hosts if wanted else ():
        netlab.sh("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={wanted}", ns=host.ns)
    return netlab.sh("sysctl", "-n", "net.ipv4.tcp_congestion_control", ns=hosts.lab.hosts[0].ns).strip()


# What is measured, the programs that it takes, and the packages of Debian's that have them.
PROGRAMS = {"zeromq": {}, "iperf3": {"iperf3": "iperf3"},
            "redis": {"redis-server": "redis-server", "redis-benchmark": "redis-tools"},
            "nginx": {"nginx": "nginx", "wrk": "wrk"}, "socat": {"socat": "socat"}, "asyncio": {}}


def measurable(wanted):
    """Those for which all programs are there, and why the others are not measured."""
    missing = {}
    for what in wanted:
        packages = [package for program, package in PROGRAMS[what].items() if shutil.which(program) is None]
        if packages:
            missing[what] = f"not measured: {what}: apt-get install {' '.join(packages)}"
    return [what for what in wanted if what not in missing], list(missing.values())
