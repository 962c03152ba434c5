"""torch.distributed over Mercury: processes as torchrun starts them, without anything beside.

usage: distributed_test.py PACKAGE_FOLDER LIBRARY
"""
import os
import random
import socket
import subprocess
import sys
import tempfile
import unittest

from forking import Copy, Origin
from programs import environment, free_port, outcomes_of, run_some_at_a_time

PACKAGE, LIBRARY = sys.argv[1:3]
del sys.argv[1:3]
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distributed_program.py")
PATIENCE_S = 200


origin = Origin([sys.executable, PROGRAM, PACKAGE, "copies"], {**environment(LIBRARY), "OMP_NUM_THREADS": "1"})


def start(what, size, rank, **variables):
    return Copy(origin, [PACKAGE, what], {"WORLD_SIZE": str(size), "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", **variables})


def run_all(size, what, started=None, **variables):
    """(standard output, errors, status) of each rank; of those that are `started`, if not all."""
    port = str(free_port(socket.SOCK_STREAM))
    return outcomes_of([start(what, size, rank, MASTER_PORT=port, **variables) for rank in started or range(size)], PATIENCE_S)


class Distributed(unittest.TestCase):
    def all_good(self, size, what):
        outcomes = run_all(size, what)
        # Of all: what one says is often that another has left.
        told = "\n".join(f"rank {rank} of {size}: {errors}" for rank, (_, errors, _) in enumerate(outcomes))
        self.assertEqual([(said, status) for said, _, status in outcomes], [("good\n", 0)] * size, told)

    def test_collectives_subgroups_and_ddp(self):
        for size in (2, 3):
            self.all_good(size, "collectives")

    def test_small_collectives_overtake_large_ones(self):
        """On links of which the larger ones take most of a second. Two addresses: what one host says to itself crosses none."""
        terms = {"MASTER_PORT": str(free_port(socket.SOCK_STREAM)), "MERCURY_RATE": "100Mbps"}
        own = ({}, {"MERCURY_LISTEN": f"127.{random.randrange(1, 255)}.0.2"})
        outcomes = outcomes_of([start("overtaking", 2, rank, **own[rank], **terms) for rank in range(2)], PATIENCE_S)
        for rank, (said, errors, status) in enumerate(outcomes):
            self.assertEqual((said, status), ("good\n", 0), f"rank {rank}: {errors}")

    def test_messages(self):
        for size in (2, 3):
            self.all_good(size, "messages")

    def test_functional_collectives(self):
        self.all_good(2, "functional")

    def test_fully_shard(self):
        for size in (2, 3):
            self.all_good(size, "fully_shard")

    def test_ddp_with_hooks_as_over_gloo(self):
        self.all_good(2, "ddp")

    def test_beside_a_job_that_the_same_processes_serve(self):
        """With one rendezvous for it in the environment, which no daemon is at: the job first, and the group first where it is told."""
        for first, told in (("job", {}), ("group", {"MERCURY_GROUP_SERVERS": "ranks"})):
            place = f"127.0.0.1:{free_port()}"
            for rank, (said, errors, status) in enumerate(run_all(2, "beside a job", FIRST=first, MERCURY_RENDEZVOUS=place, **told)):
                self.assertEqual((said, status), ("good\n", 0), f"rank {rank}, {first} first: {errors}")

    def test_without_destroying_the_group_programs_end_in_order(self):
        for _ in range(3):
            self.all_good(2, "just exits")


class Places(unittest.TestCase):
    """While all are told of the first rank's port others ask the kernel for one: it gives them none of these, where it leaves some."""

    def ports(self, given=None):
        told = f"_place._RANGE = {given!r}" if given else "pass"
        said = subprocess.run([sys.executable, "-c", f"from mercurystack import _place\n{told}\nfor _ in range(20): print(_place.own_place())"],
                              env={**environment(LIBRARY), "PYTHONPATH": PACKAGE}, stdout=subprocess.PIPE, text=True, check=True)
        for place in said.stdout.split():
            host, port = place.rsplit(":", 1)
            self.assertEqual(host, "127.0.0.1")
            yield int(port)

    def test_it_is_none_that_the_kernel_gives(self):
        with tempfile.TemporaryDirectory() as folder:
            given = os.path.join(folder, "range")
            for words, others in (("12000\t65535", range(10000, 12000)), ("1024 29799", range(29800, 30000))):
                with open(given, "w", encoding="ascii") as file:
                    file.write(words)
                self.assertLessEqual(set(self.ports(given)), set(others))

    def test_it_is_one_of_these_where_there_are_no_others_or_nobody_says(self):
        with tempfile.TemporaryDirectory() as folder:
            given = os.path.join(folder, "range")
            self.assertNotIn(0, set(self.ports(given)))
            with open(given, "w", encoding="ascii") as file:
                file.write("1024 65535")
            self.assertNotIn(0, set(self.ports(given)))


class Failures(unittest.TestCase):
    """Each rank is told in bounded time, of the rank or the parameter."""

    def all_told(self, what, text, but=(), size=3, **how):
        for rank, (said, errors, status) in enumerate(run_all(size, what, **how)):
            if rank not in but:
                self.assertRegex(said, text, f"rank {rank}: {errors}")
                self.assertEqual(status, 0, errors)

    def test_a_rank_that_is_killed(self):
        for what in ("lost_in_a_collective", "lost_in_a_future", "lost_in_ddp", "lost_in_a_recv", "ended_by_an_exception"):
            with self.subTest(what):
                self.all_told(what, r"told \w+: .*(worker|server|rank) 1 of 3", but=(1,))

    def test_ctrl_c(self):
        self.all_told("interrupted", r"told (KeyboardInterrupt|GroupError: .*(worker|server|rank) 1 of 3)")

    def test_a_rank_that_stalls(self):
        self.all_told("stalled", "told GroupError: .*worker 1", but=(1,))

    def test_models_that_differ(self):
        self.all_told("other_parameters", r"told RuntimeError: DDP expects same model across all ranks, but Rank \d has \d params")
        self.all_told("other_shapes", r"told RuntimeError: .*params\[0\] in this process with sizes \[\d, 3\]", size=2, but=(0,))

    def test_calls_that_differ(self):
        """Each rank is told of both, though some of these would share memory, or bytes, and be nobody's sum."""
        for what, mine, another in (
                ("other_sizes", "all_reduce of 70000 elements of float32, SUM", "all_reduce of 70001 elements of float32, SUM"),
                ("other_sizes_in_memory_of_their_own", "all_reduce of 70000 elements of float32, SUM", "all_reduce of 70001 elements of float32, SUM"),
                ("other_types", "all_reduce of 100 elements of float32, SUM", "all_reduce of 100 elements of float64, SUM"),
                ("other_small_sizes", "all_reduce of 5 elements of float32, SUM", "all_reduce of 7 elements of float32, SUM"),
                ("other_sizes_to_gather", "all_gather of 6 elements of float32", "all_gather of 5 elements of float32"),
                ("none_to_gather", "all_gather of 6 elements of float32", "all_gather of 0 elements of float32"),
                ("other_types_of_as_many_bytes", "broadcast of 6 elements of float32, root 0", "broadcast of 3 elements of int64, root 0"),
                ("other_roots", "broadcast of 4 elements of float32, root 0", "broadcast of 4 elements of float32, root 1"),
                ("other_reductions", "all_reduce of 4 elements of float32, SUM", "all_reduce of 4 elements of float32, MAX"),
                ("another_order", "barrier", "all_reduce of 1 elements of int32, SUM"),
                ("other_collectives_by_messages", "gather of 3 elements of float32, root 0", "scatter of 3 elements of float32, root 0"),
                ("a_gather_in_an_all_to_all", "all_to_all of float32", "gather of 1 elements of float32, root 0"),
                ("other_roots_to_gather_at", "gather of 3 elements of float32, root 0", "gather of 3 elements of float32, root 1"),
                ("other_sizes_to_scatter", "scatter of 6 elements of float32, root 0", "scatter of 5 elements of float32, root 0"),
                ("another_order_by_messages", "gather of 2 elements of float32, root 0", "scatter of 2 elements of float32, root 0"),
                ("a_gather_instead_of_a_sum", "all_reduce of 3 elements of float32, SUM", "gather of 3 elements of float32, root 0"),
                ("other_dtypes_in_ddp", r"\w+ of \d+ elements of float32\b.*", r"\w+ of \d+ elements of float64\b.*")):
            with self.subTest(what):
                one, other = (rf"rank [02] of 3 {mine}", rf"rank 1 of 3 {another}")
                self.all_told(what, rf"told MercuryError: .* called different collectives: ({one}, and {other}|{other}, and {one})\n")

    def test_not_numbers(self):
        self.all_told("not_numbers", r"told \[nan, 3.0, inf\]")

    def test_forked_processes(self):
        for rank, (said, errors, status) in enumerate(run_all(2, "forked")):
            self.assertEqual(status, 0, f"rank {rank}: {errors}")
            self.assertRegex(said, "told MercuryError: .*was forked from a rank")

    def test_a_rank_that_never_comes(self):
        with tempfile.TemporaryDirectory() as folder:
            by_file = run_all(3, "missing", started=(0, 1), INIT_METHOD=f"file://{folder}/store")
            with open(f"{folder}/store", "rb") as store:
                self.assertNotIn(b"torch-", store.read())  # the job's name and port: a free one may be somebody's by the time all are there
        by_port = run_all(3, "missing", started=(0, 1))[0]
        for _, errors, status in (*by_file, by_port):
            self.assertEqual(status, 1)
            # PyTorch 2's store waits as long for the ranks itself, and may be the first to end.
            stores = "|DistStoreError: .* 2/3 clients joined" if errors is by_port[1] else ""
            self.assertRegex(errors, "GroupError: .*rank 2 of 3 did not come within 8 s" + stores)

    def test_daemons_that_are_not_there(self):
        place = f"127.{random.randrange(1, 255)}.0.7:7470"  # which nobody listens at
        for rank, (_, errors, status) in enumerate(run_all(2, "daemons missing", MERCURY_RENDEZVOUS=place)):
            self.assertEqual(status, 1)
            self.assertRegex(errors, rf"GroupError: .*rank {rank} of 2 .*daemons at {place} .*missing.*: server 0 of 1 \({place}\)")
            self.assertRegex(errors, rf"worker {rank} of 2 waits for the members of job .*rendezvous: {place}")
            self.assertRegex(errors, r"GroupError: .*MERCURY_GROUP_SERVERS=ranks if the ranks are to serve")
            if rank == 0:
                self.assertRegex(errors, rf"waits for daemons at {place} .*nobody listens on this host: .*MERCURY_GROUP_SERVERS=ranks")
        for said, text in (("rank", "MERCURY_GROUP_SERVERS: expected ranks or daemons, got 'rank'"), ("daemons", "no MERCURY_RENDEZVOUS says")):
            for _, errors, status in run_all(2, "just exits", MERCURY_GROUP_SERVERS=said):
                self.assertEqual(status, 1)
                self.assertRegex(errors, f"ValueError: .*{text}")


if __name__ == "__main__":
    try:
        # Whose time is short.
        alone = ("test_a_rank_that_stalls", "test_small_collectives_overtake_large_ones")
        status = run_some_at_a_time(sys.modules[__name__], alone)
    finally:
        origin.close()
    sys.exit(status)
