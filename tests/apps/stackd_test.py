"""mercury-stackd as an operator meets it, over io_uring on loopback: no root needed.

usage: stackd_test.py STACKD CTL OTHER...   (the last: more programs, for what they have in common)
"""
import contextlib
import fcntl
import grp
import json
import os
import pwd
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemons import UDP_PORT, Daemon, config, least_busy, some_address  # noqa: E402

STACKD, CTL, REPLAY = map(os.path.abspath, sys.argv[1:])  # tests run them from other folders
# LeakSanitizer looks for leaks from a thread: where none may be started it ends the program.
WITHOUT_THREADS = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}


def least_descriptors(daemon):
    """Each question is a connection too, which the daemon may not have closed yet."""
    counts = []
    for _ in range(20):
        daemon.ctl("status")
        counts.append(daemon.descriptors())
    return min(counts)


def wait_until(holds, seconds=20):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


class StackdTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(self.folder.cleanup)
        self.address = some_address()

    def daemon(self, extra=""):
        daemon = Daemon(STACKD, CTL, self.folder.name, config(self.folder.name, self.address, extra))
        self.addCleanup(daemon.stop, signal.SIGKILL)
        return daemon

    def test_says_what_it_is_and_stops_cleanly(self):
        daemon = self.daemon()
        status = daemon.status()
        self.assertEqual(status["engines"][0]["address"], f"{self.address}:{UDP_PORT}")
        self.assertIn("UDP payload", daemon.ctl("status").stdout)
        counters = daemon.counters()
        self.assertEqual(counters["rx_frames"], 0)
        self.assertEqual(daemon.ctl("jobs").stdout, "")
        code, _ = daemon.stop()
        self.assertEqual(code, 0)
        self.assertEqual([name for name in os.listdir(self.folder.name) if "sock" in name], ["stackd.sock.reset"])

    def test_foreign_frames_are_dropped_under_their_names(self):
        daemon = self.daemon()
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        magic = b"MU\x01\x01"
        for frame in (b"x", b"y" * 100, b"MU\x09\x01" + bytes(60), b"MU\x02\x63" + bytes(60), magic + bytes(60)):
            sender.sendto(frame, (self.address, UDP_PORT))
        deadline = time.monotonic() + 60
        wanted = {"drop_truncated": 1, "drop_magic": 1, "drop_version": 1, "drop_type": 1, "drop_header_crc": 1}
        while time.monotonic() < deadline:
            counters = daemon.counters()
            if counters["rx_frames"] == 5:
                break
        self.assertEqual({name: counters[name] for name in wanted}, wanted)

    def test_garbage_on_the_attach_socket_ends_that_connection_only(self):
        daemon = self.daemon()
        bystander = daemon.attach()
        self.addCleanup(bystander.close)
        generator = random.Random(7)
        for length in (0, 1, 4, 60, 1000, 65536):
            connection = daemon.attach()
            with contextlib.suppress(OSError):
                connection.send(generator.randbytes(length))
            with contextlib.suppress(OSError):  # a reply, then the end
                while connection.recv(65536):
                    pass
            connection.close()
        with self.assertRaises(TimeoutError):
            bystander.settimeout(0.1)
            bystander.recv(1)
        self.assertEqual(daemon.status()["programs"], 1)

    def test_connections_that_come_and_go_leave_nothing(self):
        daemon = self.daemon()
        before = least_descriptors(daemon)
        for _ in range(300):
            daemon.attach().close()
        self.assertEqual(least_descriptors(daemon), before)

    def test_stops_cleanly_where_its_socket_cannot_be_removed(self):
        daemon = self.daemon()
        os.remove(daemon.socket)
        os.makedirs(f"{daemon.socket}/full")
        code, said = daemon.stop()
        self.assertEqual(code, 0, said)

    def test_starts_over_what_a_killed_daemon_left(self):
        self.daemon().stop(signal.SIGKILL)
        self.assertIn("stackd.sock", os.listdir(self.folder.name))
        daemon = self.daemon()
        self.assertEqual(daemon.ctl("status").returncode, 0)

    def test_a_second_daemon_on_the_socket_is_refused(self):
        daemon = self.daemon()
        again = subprocess.run([STACKD, "--config", f"{self.folder.name}/stackd.toml", "--set", "port.udp_port=17480"],
                               capture_output=True, text=True, timeout=20)
        self.assertEqual(again.returncode, 1)
        self.assertIn("stackd.sock", again.stderr)
        self.assertEqual(daemon.ctl("status").returncode, 0)

    def two_engines(self, cores):
        path = config(self.folder.name, self.address, f"[engine]\ncores = {cores}\n")
        with open(path) as file:
            text = file.read().replace("[port]", "[port]\nengines = 2")
        with open(path, "w") as file:
            file.write(text)
        daemon = Daemon(STACKD, CTL, self.folder.name, path)
        self.addCleanup(daemon.stop, signal.SIGKILL)
        return daemon

    def test_two_engines_have_two_ports(self):
        engines = self.two_engines([0, 0]).status()["engines"]
        self.assertEqual([e["address"] for e in engines], [f"{self.address}:{UDP_PORT}", f"{self.address}:{UDP_PORT + 1}"])

    def test_engines_stay_on_the_cores_that_they_are_given(self):
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        cores = [cores[0], cores[-1]]
        daemon = self.two_engines(cores)
        tasks = f"/proc/{daemon.process.pid}/task"
        allowed = {}

        def pinned():
            for thread in os.listdir(tasks):
                with open(f"{tasks}/{thread}/comm") as file:
                    allowed[file.read().strip()] = os.sched_getaffinity(int(thread))
            return [allowed.get(f"mercury-eng{engine}") for engine in range(2)] == [{core} for core in cores]
        self.assertTrue(wait_until(pinned), allowed)  # threads see to it themselves

    def test_bad_configuration_is_refused_with_file_and_line(self):
        path = config(self.folder.name, self.address, "mode = \"0999\"\n")
        for flag in ([], ["--check"]):
            refused = subprocess.run([STACKD, "--config", path, *flag], capture_output=True, text=True, timeout=20)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"{path}:8: attach.mode: expected", refused.stderr)

    def without_privileges(self):
        """Options of subprocess.run; none where nobody may run what is built here."""
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            subprocess.run([STACKD, "--version"], capture_output=True, check=True, **nobody)
        except PermissionError:  # also of whoever has none to give up
            return {}
        return nobody

    def test_what_this_machine_does_not_have_is_refused_with_file_and_line(self):
        path = f"{self.folder.name}/stackd.toml"
        attach = f'[attach]\nsocket = "{self.folder.name}/stackd.sock"\n'
        uring = f'[port]\nkind = "uring"\naddress = ["{self.address}/8"]\n'
        device = '[port]\ndevice = "{}"\ninterface = "{}"\naddress = ["10.0.0.1/24"]\n'
        cases = (
            (uring + attach + 'group = "nosuchgroup"\n', "6: attach.group: expected a group of this host, got \"nosuchgroup\""),
            (uring + "[engine]\ncores = [1000]\n" + attach, "5: engine.cores: expected CPUs that this process may run on"),
            (uring + attach + f'group = "{grp.getgrgid(0).gr_name}"\n', None),
            (device.format("af_packet", "nosuch0") + attach, "3: port.interface: expected an interface of this host"),
            (device.format("af_xdp", "nosuch0") + attach, "3: port.interface: expected an interface of this host"),
            (device.format("af_packet", "lo") + attach, None),
            (device.format("tap", "nosuch0") + attach, None),  # the daemon makes it
        )
        nobody = self.without_privileges()
        os.chmod(self.folder.name, 0o755)
        for text, wrong in cases:
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, 0o644)
            for flag in (["--check"], []) if wrong else (["--check"],):
                checked = subprocess.run([STACKD, "--config", path, *flag], capture_output=True, text=True, timeout=20, **nobody)
                self.assertEqual(checked.returncode, 0 if wrong is None else 1, text + checked.stderr)
                if wrong:
                    self.assertIn(f"{path}:{wrong}", checked.stderr)

    def test_without_a_daemon_mercuryctl_says_what_to_run(self):
        refused = subprocess.run([CTL, "--socket", f"{self.folder.name}/none.sock", "status"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("start it with: mercury-stackd", refused.stderr)

    def test_mercuryctl_says_who_may_ask(self):
        daemon = self.daemon()
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        if os.geteuid() != 0:
            nobody = {}
            os.chmod(self.folder.name, 0o600)
            self.addCleanup(os.chmod, self.folder.name, 0o700)
        try:
            refused = subprocess.run([CTL, "--socket", daemon.socket, "status"], capture_output=True, text=True, **nobody)
        except PermissionError:
            self.skipTest("nobody may run what is built here")
        finally:
            os.chmod(self.folder.name, 0o700)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"{self.folder.name} is of user {pwd.getpwuid(os.geteuid()).pw_name}, group ", refused.stderr)

    def test_mercuryctl_does_not_wait_for_ever(self):
        daemon = self.daemon()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            # The last ones find the backlog full and cannot even connect.
            asking = [subprocess.Popen([CTL, "--socket", daemon.socket, "status", "--timeout", "2"], text=True,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(20)]
            for client in asking:
                self.addCleanup(client.kill)
            said = [client.communicate(timeout=60)[1] for client in asking]
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        for line, client in zip(said, asking):
            self.assertEqual(client.returncode, 1)
            self.assertIn("does not answer within 2 s", line)
        self.assertIn(f"(pid {daemon.process.pid})", said[0])
        self.assertEqual(daemon.ctl("status").returncode, 0)
        for wrong in ("0", "-1", "soon"):
            self.assertNotEqual(daemon.ctl("--timeout", wrong, "status").returncode, 0)

    def test_who_asks_nothing_is_turned_away(self):
        daemon = self.daemon()
        silent = []
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX)
            self.addCleanup(one.close)
            one.connect(daemon.socket + ".admin")
            silent.append(one)
        limit_s = time.monotonic() + 60
        while True:
            answer = daemon.ctl("status", "--json")
            if answer.returncode == 0:
                break
            self.assertLess(time.monotonic(), limit_s, answer.stderr)
        self.assertLess(json.loads(answer.stdout)["descriptors"], 100)
        for one in silent:  # all have been closed, those that waited after a while
            one.settimeout(60)
            self.assertEqual(one.recv(1), b"")

    def test_a_socket_path_that_is_too_long_is_refused(self):
        longest = self.folder.name + "/" + "s" * (101 - len(self.folder.name) - 1)
        path = config(self.folder.name, self.address)
        arguments = [STACKD, "--config", path, "--check", "--set"]
        self.assertEqual(subprocess.run([*arguments, f"attach.socket={longest}"], capture_output=True).returncode, 0)
        refused = subprocess.run([*arguments, f"attach.socket={longest}s"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("attach.socket: expected", refused.stderr)
        for socket_path in (longest, longest + "s"):
            unanswered = subprocess.run([CTL, "--socket", socket_path, "status"], capture_output=True, text=True)
            self.assertEqual(unanswered.returncode, 1)
            self.assertIn("no daemon answers", unanswered.stderr)

    def test_doctor_knows_that_the_daemon_makes_its_folder(self):
        for socket_path in (f"{self.folder.name}/a/b/stackd.sock", "stackd.sock"):
            environment = os.environ | {"MERCURY_ATTACH_SOCKET": socket_path}
            good = subprocess.run([CTL, "doctor", "--config", config(self.folder.name, self.address)],
                                  capture_output=True, text=True, cwd=self.folder.name, env=environment)
            self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        self.assertEqual([name for name in os.listdir(self.folder.name) if name == "a"], [])

    def test_doctor_answers_in_a_folder_that_is_gone(self):
        environment = os.environ | {"MERCURY_ATTACH_SOCKET": "stackd.sock"}
        bad = subprocess.run(["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", CTL, "doctor", "--config",
                              config(self.folder.name, self.address)],
                             capture_output=True, text=True, cwd=self.folder.name, env=environment)
        self.assertEqual(bad.returncode, 1, bad.stdout + bad.stderr)
        self.assertIn("the folder of stackd.sock is not writable", bad.stdout)

    def test_doctor_answers_of_names_that_are_no_text(self):
        path = f"{self.folder.name}/\udcff.toml"
        bad = subprocess.run([CTL, "doctor", "--json", "--config", path], capture_output=True, text=True)
        self.assertEqual(bad.returncode, 1, bad.stderr)
        self.assertIn(f"{self.folder.name}/\ufffd.toml", json.loads(bad.stdout)[0]["message"])

    def test_doctor_passes_a_good_configuration(self):
        path = config(self.folder.name, self.address)
        good = subprocess.run([CTL, "doctor", "--config", path], capture_output=True, text=True)
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        bad = subprocess.run([CTL, "doctor", "--config", "/nonexistent.toml"], capture_output=True, text=True)
        self.assertEqual(bad.returncode, 1)
        self.assertIn("MISSING", bad.stdout)

    def test_under_a_policy_without_threads_it_does_not_start(self):
        deadline = ("chrt", "--deadline", "--sched-runtime", "5000000", "--sched-deadline", "10000000", "--sched-period",
                    "10000000", "0")
        allowed = subprocess.run([*deadline, "true"], capture_output=True, text=True)
        if allowed.returncode != 0:  # needs root, and all processors
            self.skipTest(allowed.stderr.strip())
        path = config(self.folder.name, self.address)
        refused = subprocess.run([*deadline, STACKD, "--config", path], env=WITHOUT_THREADS, capture_output=True, text=True,
                                 timeout=60)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("mercury-stackd: a process under SCHED_DEADLINE can start no threads", refused.stderr)
        doctor = subprocess.run([*deadline, CTL, "doctor", "--config", path], env=WITHOUT_THREADS, capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(doctor.returncode, 1, doctor.stderr)
        self.assertRegex(doctor.stdout, "MISSING  scheduling .*SCHED_DEADLINE.*\n.*SCHED_RR")

    def test_where_no_thread_may_be_started_it_says_so(self):
        limited = ["prlimit", "--nproc=1"]
        if os.getuid() == 0:  # whom that limit does not bind
            limited += ["setpriv", "--ruid", "65534", "--clear-groups", "--bounding-set=-all"]
        path = config(self.folder.name, self.address)
        refused = subprocess.run([*limited, STACKD, "--config", path], env=WITHOUT_THREADS, capture_output=True, text=True,
                                 timeout=60)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("mercury-stackd: cannot start a thread (limits: ulimit -u", refused.stderr)

    def test_doctor_says_what_mends_each_fault(self):
        folder = self.folder.name
        uring = f'[port]\nkind = "uring"\naddress = ["{self.address}/8"]\n'
        attach = f'[attach]\nsocket = "{folder}/stackd.sock"\n'
        faults = (
            ("", "nothing", "--config"),
            ("[port]\nmtu = 7\n", "port.mtu", "mercury-stackd --print-config"),
            (uring + attach + 'group = "nosuchgroup"\n', "nosuchgroup", "groupadd --system nosuchgroup"),
            (uring + attach + "[engine]\ncores = [1000]\n", "got 1000", "set engine.cores = ["),
            ('[port]\nkind = "uring"\naddress = ["192.0.2.1/24"]\n' + attach, "192.0.2.1", "ip address add 192.0.2.1/24 dev"),
            ('[port]\nkind = "uring"\naddress = ["fe80::1/64"]\n' + attach, "fe80::1", "not link-local"),
            ('[port]\ndevice = "af_packet"\n' + attach, "port.interface: expected", "set it in /"),
            ('[port]\ndevice = "af_packet"\ninterface = "lo"\nvlan = 5\n' + attach, 'interface "lo.5"', "correct it in [port]"),
            ('[port]\ndevice = "eth1"\n' + attach, 'af_packet, tap, memif, ring or a PCI address', "set it in /"),
            ('[port]\ndevice = "af_packet"\ninterface = "nosuch0"\n' + attach, "nosuch0", "set port.interface"),
            (f'[port]\ndevice = "memif"\naddress = ["10.0.0.1/24"]\nmemif_socket = "{folder}/none/m.sock"\n' + attach,
             "memif socket", f"mkdir -p {folder}/none"),
        )
        for text, found, fix in faults:
            path = f"{folder}/{'fault' if text else 'nothing'}.toml"
            if text:
                with open(path, "w") as file:
                    file.write(text)
            bad = subprocess.run([CTL, "doctor", "--config", path], capture_output=True, text=True)
            self.assertEqual(bad.returncode, 1, bad.stdout + bad.stderr)
            lines = bad.stdout.splitlines()
            missing = [n for n, line in enumerate(lines) if line.startswith("MISSING")]
            for n in missing:
                self.assertIn(" fix: ", lines[n + 1], bad.stdout)
            self.assertTrue(any(found in lines[n] and fix in lines[n + 1] for n in missing), bad.stdout)

    def test_without_descriptors_it_waits_and_recovers(self):
        daemon = self.daemon()
        daemon.ctl("status")
        limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        used = {int(number) for number in os.listdir(f"/proc/{daemon.process.pid}/fd")}
        lowest_free = min(set(range(len(used) + 1)) - used)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        programs = [daemon.attach() for _ in range(3)]
        for program in programs:
            self.addCleanup(program.close)
        asking = subprocess.Popen([CTL, "--socket", daemon.socket, "--timeout", "60", "status"], stdout=subprocess.DEVNULL)
        self.addCleanup(asking.wait)
        self.addCleanup(asking.kill)

        def said():
            return [line for line in daemon.log().splitlines() if "Too many open files" in line]
        self.assertTrue(wait_until(lambda: len(said()) >= 2), daemon.log())
        self.assertLess(least_busy(daemon.process)[0], 0.5)
        self.assertEqual(len(said()), 2, said())  # one for each socket, however often they tried
        for line in said():
            self.assertIn("LimitNOFILE", line)
            self.assertIn("attach.max_programs", line)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, limits)
        self.assertEqual(asking.wait(20), 0)
        self.assertTrue(wait_until(lambda: daemon.status()["programs"] == 3), daemon.status())

    def test_programs_too_many_that_say_nothing_are_closed(self):
        daemon = self.daemon("max_programs = 1\n")
        first = daemon.attach()
        self.addCleanup(first.close)
        before = least_descriptors(daemon)
        for _ in range(50):  # more than are kept at a time
            silent = daemon.attach()
            self.addCleanup(silent.close)
        self.assertEqual(silent.recv(1), b"")
        self.assertTrue(wait_until(lambda: least_descriptors(daemon) == before))
        self.assertEqual(daemon.status()["programs"], 1)

    def test_programs_do_not_fill_the_log(self):
        daemon = self.daemon("max_programs = 1\n")
        nonsense, kept = [b"nonsense"] * 300, []
        while nonsense:
            if len(nonsense) == 150:  # from now on they are refused, whatever they say
                self.assertTrue(wait_until(lambda: daemon.status()["programs"] == 0))
                kept.append(daemon.attach())
                self.addCleanup(kept[0].close)
            connection = daemon.attach()
            with contextlib.suppress(OSError):
                connection.send(nonsense.pop())
                connection.recv(65536)
                connection.recv(1)
            connection.close()
        said = [line for line in daemon.log().splitlines() if "warning" in line]
        self.assertIn("attach message: not a CBOR map; disconnected", said[0])
        self.assertLess(len(said), 150, "\n".join(said))

    def test_descriptors_for_all_programs_are_provided_or_missed(self):
        path = config(self.folder.name, self.address, "max_programs = 64\n")

        def limited(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for arguments in ([STACKD, "--config", path, "--check"], [CTL, "doctor", "--config", path]):
            poor = subprocess.run(arguments, capture_output=True, text=True, timeout=20, preexec_fn=limited(128, 256))
            self.assertEqual(poor.returncode, 0, poor.stdout + poor.stderr)
            self.assertIn("attach.max_programs = 64 needs up to 848 descriptors, and 256 may be open",
                          poor.stdout + poor.stderr)
            rich = subprocess.run(arguments, capture_output=True, text=True, timeout=20, preexec_fn=limited(128, 848))
            self.assertEqual(rich.returncode, 0, rich.stdout + rich.stderr)
            self.assertEqual(rich.stderr, "")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        daemon = self.daemon("max_programs = 64\n")
        self.assertEqual(daemon.status()["descriptor_limit"], before[1])
        self.assertNotIn("attach.max_programs", daemon.log())

    def replay(self, daemon, addresses, rank, *options):
        """A worker at that daemon, of a job with as many workers as servers."""
        worker = subprocess.Popen(
            [REPLAY, "--mode", "daemon", "--job", "demo", "--trace", "alexnet", "--workers", f"{len(addresses)}", "--servers",
             f"{len(addresses)}", "--rank", f"{rank}", "--rendezvous", ",".join(f"{ip}:{UDP_PORT}" for ip in addresses),
             "--warmup", "1", *options],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"MERCURY_SOCKET": daemon.socket})
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        return worker

    def check_sums(self, worker):
        out, _ = worker.communicate(timeout=100)
        self.assertEqual(worker.returncode, 0, out)
        self.assertRegex(out, "verified.* 0 wrong")

    def test_where_no_memory_may_be_locked_it_says_so_once(self):
        program = f"{self.folder.name}/unlocked"
        without = "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock" if os.getuid() == 0 else ""
        with open(program, "w") as file:
            file.write(f'#!/bin/sh\nexec {without} "{STACKD}" "$@"\n')
        os.chmod(program, 0o755)
        daemon = Daemon(program, CTL, self.folder.name, config(self.folder.name, self.address))
        self.addCleanup(daemon.stop, signal.SIGKILL)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_MEMLOCK, (65536, 65536))  # its ports have what they need
        for _ in range(2):
            self.check_sums(self.replay(daemon, [self.address], 0, "--iterations", "2"))
        said = [line for line in daemon.log().splitlines() if "programs' memory may be swapped" in line]
        self.assertEqual(len(said), 1, daemon.log())
        self.assertIn("LimitMEMLOCK=infinity", said[0])

    def test_hosts_that_serve_and_work_at_once(self):
        addresses = [self.address, some_address()]
        daemons = [Daemon(STACKD, CTL, self.folder.name, config(self.folder.name, ip, name=f"host{i}"))
                   for i, ip in enumerate(addresses)]
        for daemon in daemons:
            self.addCleanup(daemon.stop, signal.SIGKILL)
        workers = [self.replay(daemon, addresses, rank, "--size-scale", "100", "--time-scale", "0.1", "--iterations", "5")
                   for rank, daemon in enumerate(daemons)]
        for worker in workers:
            self.check_sums(worker)
        for rank, daemon in enumerate(daemons):
            code, log = daemon.stop()
            self.assertEqual(code, 0)
            for role in ("worker", "server"):
                self.assertIn(f"job 'demo' opened for {role} {rank} of 2 ({addresses[rank]}:{UDP_PORT})", log)
                self.assertIn(f"job 'demo' ended for {role} {rank} of 2", log)

    def test_signals_that_ask_for_nothing_here_end_no_job(self):
        daemon = self.daemon()
        worker = self.replay(daemon, [self.address], 0, "--size-scale", "1000", "--iterations", "300")
        self.assertTrue(wait_until(lambda: "job 'demo' opened" in daemon.log()), daemon.log())
        for sent, said in ((signal.SIGHUP, "SIGHUP: configuration is read at start only; restart to apply"),
                           (signal.SIGUSR1, f"signal {signal.SIGUSR1.value} has no meaning here"),
                           (signal.SIGUSR2, f"signal {signal.SIGUSR2.value} has no meaning here")):
            for times in (1, 2):
                daemon.process.send_signal(sent)
                self.assertTrue(wait_until(lambda: daemon.log().count(said) == times), daemon.log())
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            daemon.process.send_signal(ignored)
        self.assertEqual(len(json.loads(daemon.ctl("jobs", "--json").stdout)["jobs"]), 2)  # worker and server
        self.check_sums(worker)
        code, log = daemon.stop()
        self.assertEqual(code, 0, log)
        self.assertIn("signal 15: stopping", log)

    def test_a_terminal_that_closes_ends_no_job(self):
        path = config(self.folder.name, self.address)
        ours, its = os.openpty()
        process = subprocess.Popen([STACKD, "--config", path], stdin=its, stdout=its, stderr=its, start_new_session=True,
                                   preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(its)

        def answers():
            asked = subprocess.run([CTL, "--socket", f"{self.folder.name}/stackd.sock", "status"], capture_output=True)
            return asked.returncode == 0
        self.assertTrue(wait_until(answers))
        os.close(ours)  # the kernel sends SIGHUP, and what is logged from now on goes nowhere
        self.assertTrue(wait_until(lambda: not os.path.exists(os.path.realpath(f"/proc/{process.pid}/fd/2"))))
        for _ in range(20):
            process.send_signal(signal.SIGUSR1)
            self.assertTrue(answers())
        process.terminate()
        self.assertEqual(process.wait(20), 0)

    def test_the_journal_gets_each_line_with_its_priority(self):
        os.mkdir(f"{self.folder.name}/journal")
        journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(journal.close)
        journal.bind(f"{self.folder.name}/journal/socket")
        journal.settimeout(20)
        # A /run of its own, in which systemd's folder is that one.
        own_run = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "sh", "-c",
                   f'mount -t tmpfs none /run && mkdir /run/systemd && ln -s {self.folder.name}/journal /run/systemd/ && '
                   'exec "$@"', "sh"]
        possible = subprocess.run([*own_run, "true"], capture_output=True, text=True)
        if possible.returncode != 0:
            self.skipTest(possible.stderr.strip())
        path = config(self.folder.name, self.address)

        def start(stream_of, *options):
            with open(f"{self.folder.name}/log", "w") as log:
                at = os.stat(log.name if stream_of == "stderr" else "/")
                process = subprocess.Popen([*own_run, STACKD, "--config", path, *options], stderr=log,
                                           env=os.environ | {"JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}"})
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            return process

        def entry():
            fields = dict(line.split("=", 1) for line in journal.recv(65536).decode().splitlines())
            self.assertEqual(fields["SYSLOG_IDENTIFIER"], "mercury-stackd")
            return int(fields["PRIORITY"]), fields["MESSAGE"]

        def read_log():
            with open(f"{self.folder.name}/log") as file:
                return file.read()

        def until(priority, words):
            for _ in range(50):
                found, message = entry()
                if words in message:
                    return self.assertEqual(found, priority, message)
            self.fail(f"no {words}")
        daemon = start("stderr")
        until(6, "UDP payload")
        daemon.send_signal(signal.SIGHUP)
        until(4, "SIGHUP: configuration is read at start only")
        daemon.terminate()
        until(6, "signal 15: stopping")
        self.assertEqual((daemon.wait(20), read_log()), (0, ""))
        for wrong in ("port.mtu=7", "engine.cores=1000"):  # before and after the log's level is known
            self.assertNotEqual(start("stderr", "--set", wrong).wait(20), 0)
            until(3, wrong.partition("=")[0])
            self.assertEqual(read_log(), "")
        # Inherited, where standard error is something else.
        daemon = start("another's")
        self.assertTrue(wait_until(lambda: "info: engine 0 on uring" in read_log()), read_log())
        daemon.terminate()
        self.assertEqual(daemon.wait(20), 0)
        journal.setblocking(False)
        with self.assertRaises(BlockingIOError):
            journal.recv(1)

    def test_a_variable_that_is_misspelt_is_refused(self):
        path = config(self.folder.name, self.address)
        for program in ([STACKD, "--check"], [CTL, "doctor"]):
            for name, meant in (("MERCURY_PORT_UPD_PORT", "MERCURY_PORT_UDP_PORT"),
                                ("MERCURY_ENGINE_POLING", "MERCURY_ENGINE_POLLING")):
                refused = subprocess.run([*program, "--config", path], capture_output=True, text=True,
                                         env=os.environ | {name: "1"})
                self.assertEqual(refused.returncode, 1)
                self.assertIn(f"${name} is not a variable of Mercury's; did you mean ${meant}?",
                              refused.stdout + refused.stderr)
        # Programs' own, tests', Kubernetes's for a service called mercury, and other people's.
        others = {"MERCURY_SOCKET": "x", "MERCURY_DAEMON_TIMEOUT_MS": "x", "MERCURY_RANK": "1", "MERCURY_WORKERS": "2", "MERCURY_SERVERS": "1",
                  "MERCURY_ROLE": "worker", "MERCURY_RENDEZVOUS": "x", "MERCURY_SECRET": "x", "MERCURY_JOB": "x",
                  "MERCURY_SEEDS": "3", "MERCURY_PORT": "tcp://10.0.0.1:7470", "MERCURY_SERVICE_HOST": "10.0.0.1",
                  "MERCURY_PORT_7470_TCP_PORT": "7470", "MERCURY_OPTIONS": "x"}
        good = subprocess.run([STACKD, "--config", path, "--check"], capture_output=True, text=True, env=os.environ | others)
        self.assertEqual(good.returncode, 0, good.stderr)

    def doctor(self, path, **options):
        """Its checks by name, and its status."""
        done = subprocess.run([CTL, "doctor", "--json", "--config", path], capture_output=True, text=True, **options)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return {check["name"]: check for check in json.loads(done.stdout)}, done.returncode

    def test_doctor_names_who_holds_a_port(self):
        path = config(self.folder.name, self.address)
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace("[port]", "[port]\nengines = 2"))
        self.assertIn(f"{self.address}:{UDP_PORT} to {UDP_PORT + 1} can be had", self.doctor(path)[0]["UDP port"]["message"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
            holder.bind((self.address, UDP_PORT + 1))
            checks, status = self.doctor(path)
        self.assertEqual((checks["UDP port"]["level"], status), ("MISSING", 1), checks)
        self.assertRegex(checks["UDP port"]["message"],
                         rf"UDP {self.address}:{UDP_PORT + 1} is held by .* \(pid {os.getpid()}\)")
        self.assertIn(f"kill {os.getpid()}", checks["UDP port"]["fix"])
        daemon = self.daemon()
        checks, status = self.doctor(config(self.folder.name, self.address))
        self.assertEqual((checks["UDP port"]["level"], status), ("ok", 0), checks)
        self.assertIn(f"of mercury-stackd, which runs (pid {daemon.process.pid})", checks["UDP port"]["message"])
        checks, status = self.doctor(config(self.folder.name, self.address, name="other"))
        self.assertEqual((checks["UDP port"]["level"], status), ("MISSING", 1), checks)
        self.assertIn(f"is held by mercury-stackd (pid {daemon.process.pid})", checks["UDP port"]["message"])

    def test_doctor_tells_what_must_be_mended_from_what_may(self):
        nobody = self.without_privileges()
        os.chmod(self.folder.name, 0o777)
        path = config(self.folder.name, self.address)
        checks, status = self.doctor(path, **nobody)
        self.assertEqual(status, 0, checks)
        may_not = subprocess.run(["nice", "-n", "-1", "true"], capture_output=True, text=True, **nobody)
        if may_not.stderr:  # "cannot set niceness", and its status is 0
            self.assertEqual((checks["scheduling"]["ok"], checks["scheduling"]["level"]), (True, "advice"))
            self.assertIn('engine.scheduling = "normal"', checks["scheduling"]["fix"])
        self.assertEqual(checks["io_uring"]["level"], "ok")
        # What it passes starts.
        daemon = subprocess.Popen([STACKD, "--config", path], stderr=subprocess.DEVNULL, **nobody)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        self.assertTrue(wait_until(lambda: os.path.exists(f"{self.folder.name}/stackd.sock.admin")))

    def test_an_idle_daemon_sleeps(self):
        daemon = self.daemon()
        self.assertLess(least_busy(daemon.process)[0], 0.5)
        begun, before = time.monotonic(), daemon.counters()
        time.sleep(1)
        now, passed_s = daemon.counters(), time.monotonic() - begun
        self.assertGreater(now["sleeps"], before["sleeps"])
        # In counts, which a busy machine does not raise: it looks for 20 us after each of some ten sleeps
        # of 100 ms. An engine that spins polls 100,000 times and more.
        self.assertLess(now["polls"] - before["polls"], 5000 * passed_s)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
