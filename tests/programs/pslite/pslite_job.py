"""ps-lite's processes, on two hosts."""
import re

PUSH_THEN_PULL, PUSH_PULL, PUSH_ONLY, PULL_ONLY = range(4)  # what its benchmark does


class Job:
    """A scheduler on "a", and servers and workers on the hosts named. By default each tensor of a server's
    neighbour passes between the hosts. All threads of BytePS's ps-lite look for messages
    without ever waiting, and in turns with those that send: a message may take some 10 ms."""
    next_port = 9100

    def __init__(self, hosts, command, mercury=True, by_role=None, servers="ab", workers="ba", **environment):
        """`mercury`: by mercury-run. `by_role`: the environment of some alone, as {"server": {...}, "worker 1": {...}}."""
        Job.next_port += 1
        self.hosts = hosts
        self.common = {"DMLC_PS_ROOT_URI": hosts.address("a"), "DMLC_PS_ROOT_PORT": Job.next_port,
                       "DMLC_NUM_SERVER": len(servers), "DMLC_NUM_WORKER": len(workers), **environment}
        self.command, self.mercury, self.by_role = command, mercury, by_role or {}
        self.scheduler = self.start("a", "scheduler")
        self.servers = [self.start(host, "server", number) for number, host in enumerate(servers)]
        self.workers = [self.start(host, "worker", number) for number, host in enumerate(workers)]

    def start(self, host, role, number=0):
        variables = {"MERCURY_PRELOAD_SOCKET": self.hosts.path(f"{host}.sock.tcp"), "MERCURY_SOCKET": self.hosts.path(f"{host}.sock"),
                     **self.common, "DMLC_ROLE": role, "DMLC_NODE_HOST": self.hosts.address(host), **self.by_role.get(role, {}),
                     **self.by_role.get(f"{role} {number}", {})}
        return self.hosts.popen(host, ["env", *(f"{name}={value}" for name, value in variables.items()), *self.command],
                                self.mercury)

    @property
    def processes(self):
        return [self.scheduler, *self.servers, *self.workers]

    def ends_well(self):
        """All of them: local.sh of ps-lite waits for them without looking how they end."""
        for process in self.processes:
            self.hosts.output(process, timeout=180)

    def said(self, process):
        with open(process.kept["stderr"].name) as file:
            return file.read()

    def rounds(self, worker):
        """How many of the benchmark's it has done."""
        return len(re.findall("Application goodput", self.said(worker)))

    def kill(self, process):
        process.kill()
        process.wait()
