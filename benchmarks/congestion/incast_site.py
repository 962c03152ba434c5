"""The virtual hosts of incast_netns.py: senders, one more sender of TCP, one server behind a queue
that marks; Mercury's daemons and programs on them, and what is read of links and counters."""
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from netlab import LabError, sh  # noqa: E402
from ready import NotReady, start_ready  # noqa: E402

MBIT = 500
FRAME_BYTES = 1514
QUEUE_BYTES = 128 * 1024
MARK_SHARE = 0.98
MARK_FRAMES = 43  # half of the queue
SAMPLE_SECONDS = 0.002
ECHO_SECONDS = 0.01
START_SECONDS, MOST_SECONDS = 60, 600
BEGUN_BYTES = 256 * 1024
WORKING_SET = 256 * 1024  # tensors of half of it: sums come often enough to see phases


class Site:
    def __init__(self, lab, build, folder, options):
        self.lab, self.server, self.options = lab, lab["server"], options
        self.senders = [host for host in lab.hosts if host.name.startswith("w")]
        self.build, self.folder = pathlib.Path(build), folder
        self.rules = folder / "rules.nft"
        self.running, self.daemons = [], []
        sh("nft", "add", "table", "bridge", "incast", ns=lab.switch)
        for counter in ("lost", "marked"):
            sh("nft", "add", "counter", "bridge", "incast", counter, ns=lab.switch)
        sh("nft", "add", "chain", "bridge", "incast", "forward",
           "{ type filter hook forward priority 0 ; }", ns=lab.switch)

    def set_link(self, mbit, loss_percent=0):
        """The server's link; all that it carries either way is lost with this chance. Returns when
        this began: marks change a few milliseconds before the rate."""
        port = self.server.port
        bucket = max(int(mbit * 1e6 / 8 * 0.002), 4 * FRAME_BYTES)
        chain = "bridge incast forward"
        rules = [f"flush chain {chain}"]
        if loss_percent:
            rules.append(f"add rule {chain} ether type ip numgen random mod 100 < {loss_percent} "
                         "counter name lost drop")
        # A queue of its own, which fills when the link's bucket is empty as the link's queue does, with
        # whatever the link carries: TCP's frames, too, which are not marked. By frames: a limit of
        # bytes lets a whole second of them pass first.
        rules.append(f"add rule {chain} oifname {port} ip length > {FRAME_BYTES // 2} "
                     f"limit rate over {int(mbit * 1e6 / 8 / FRAME_BYTES * MARK_SHARE)}/second "
                     f"burst {bucket // FRAME_BYTES + MARK_FRAMES} packets "
                     "ip ecn != not-ect counter name marked ip ecn set ce")
        self.rules.write_text("\n".join(rules) + "\n", encoding="utf-8")
        # In time, beside more programs than cores.
        began = sh("chrt", "--fifo", "1", "sh", "-ec",
                   f"nft -f {self.rules}; date +%s.%N; tc qdisc replace dev {port} root tbf rate "
                   f"{mbit}mbit burst {bucket} limit {QUEUE_BYTES}", ns=self.lab.switch)
        return float(began) - time.time() + time.monotonic()

    def lost_and_marked(self):
        """Frames so far, by the rules of set_link()."""
        answer = sh("nft", "-j", "list", "counters", "table", "bridge", "incast", ns=self.lab.switch)
        counts = {row["counter"]["name"]: row["counter"]["packets"]
                  for row in json.loads(answer)["nftables"] if "counter" in row}
        return counts["lost"], counts["marked"]

    def start(self, ns, command, **options):
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True} | options
        process = subprocess.Popen(["nsenter", f"--net=/run/netns/{ns}"] +
                                   [str(part) for part in command], **options)
        self.running.append(process)
        return process

    def end_all(self):
        for process in self.running:
            process.kill()
            process.communicate()
        self.running.clear()

    def close(self):
        self.end_all()
        for process in self.daemons:
            process.terminate()
        for process in self.daemons:
            process.wait(30)

    def wait_for(self, hosts):
        """Until each of them sends."""
        until = time.monotonic() + START_SECONDS
        before = {host: self.lab.link_bytes(host)[0] for host in hosts}
        while any(self.lab.link_bytes(host)[0] < before[host] + BEGUN_BYTES for host in hosts):
            if time.monotonic() > until:
                raise LabError("a sender does not send")
            time.sleep(0.05)

    def start_tcp(self, hosts, algorithm):
        server = self.start(self.server.ns, [sys.executable, HERE / "tcp_flows.py", "server"])
        server.stdout.readline()
        for host in hosts:
            self.start(host.ns, [sys.executable, HERE / "tcp_flows.py", "client", self.server.ip,
                                 algorithm])
        self.wait_for(hosts)
        return server

    def start_mercury(self):
        """One job of one worker on each sender's host."""
        client = self.build / "benchmarks" / "goodput" / "goodput_client"
        programs = [self.start(host.ns, [client, "--server", f"{self.server.ip}:7470", "--job",
                                         f"incast-{host.name}", "--seconds", MOST_SECONDS,
                                         "--working-set", WORKING_SET, "--progress"],
                               env={**os.environ, "MERCURY_SOCKET": f"{self.folder / host.name}.sock"})
                    for host in self.senders]
        self.wait_for(self.senders)
        return programs

    @staticmethod
    def reports(programs):
        """Ends Mercury's programs; what they say."""
        for program in programs:
            program.stdin.close()
            program.stdin = None
        texts = [program.communicate(timeout=120)[0] for program in programs]
        if any(program.returncode != 0 for program in programs):
            raise LabError("a program of Mercury's failed")
        return [json.loads(text) for text in texts]

    def start_daemons(self):
        for host in [self.server] + self.senders:
            path = self.folder / host.name
            path.with_suffix(".toml").write_text(
                f'[port]\nkind = "uring"\naddress = ["{host.ip}/24"]\nmtu = 1500\nrate = "{MBIT}Mbit"\n'
                f'[session]\ncongestion = "{self.options.congestion}"\n'
                f'min_probe_timeout = "{self.options.min_probe_timeout}"\n'
                f'[jobs]\nopen = true\n[attach]\nsocket = "{path}.sock"\n', encoding="utf-8")
            stackd = str(self.build / "apps" / "stackd" / "mercury-stackd")
            with open(path.with_suffix(".log"), "w+", encoding="utf-8") as log:
                try:
                    self.daemons.append(start_ready(
                        functools.partial(host.popen, [stackd, "--config", f"{path}.toml"], stderr=log),
                        path.with_suffix(".ready"), 60))
                except NotReady as why:
                    log.seek(0)
                    raise LabError(f"{host.name}: mercury-stackd {why}\n{log.read().strip()}") from None

    def counters(self):
        """Sums over all daemons."""
        total = {}
        for host in [self.server] + self.senders:
            answer = subprocess.run(
                [str(self.build / "apps" / "ctl" / "mercuryctl"), "--socket",
                 f"{self.folder / host.name}.sock", "stats", "--json"], check=True,
                capture_output=True, text=True)
            for engine in json.loads(answer.stdout)["engines"]:
                for name, value in engine["counters"].items():
                    total[name] = total.get(name, 0) + value
        return total

    def queue_drops(self):
        """Of every queue of every link."""
        return sum(int(count) for count in re.findall(
            r"dropped (\d+)", sh("tc", "-s", "qdisc", "show", ns=self.lab.switch)))


class Watch:
    """What the server's queue did since this was made, and what round trips through it took."""

    def __init__(self, site):
        self.samples, self.round_trips = [], []
        echo = [sys.executable, HERE / "path_echo.py"]
        site.start(site.server.ns, [*echo, "server"]).stdout.readline()
        self.link = site.start(site.lab.switch, [sys.executable, HERE / "link_watch.py",
                                                 site.server.port, SAMPLE_SECONDS])
        self.link.stdout.readline()
        self.echo = site.start(site.lab["tcp"].ns, [*echo, "client", site.server.ip, ECHO_SECONDS])

    def end(self):
        self.samples = json.loads(self.link.communicate(timeout=60)[0])
        self.round_trips = json.loads(self.echo.communicate(timeout=60)[0])

    def of(self, began, ended):
        return [sample for sample in self.samples if began <= sample[0] <= ended]

    def loaded_rtt(self, began, ended):
        """In the second half, when the path has settled if it does. None: nothing came back."""
        took = [rtt for at, rtt in self.round_trips if (began + ended) / 2 <= at <= ended]
        return statistics.median(took) if took else None
