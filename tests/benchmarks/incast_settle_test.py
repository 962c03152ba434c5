"""When a path is said to have converged again in incast_netns.py.

usage: incast_settle_test.py [unittest arguments]
"""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benchmarks",
                                "congestion"))
import incast_netns  # noqa: E402
from incast_site import QUEUE_BYTES  # noqa: E402

RTT = 0.01
RATE = 1_000_000  # bytes per second
MS = 0.001


def path(milliseconds, rate=lambda ms: RATE, waiting=lambda ms: 0, dropped=lambda ms: 0):
    """Samples of each millisecond from 100 s on."""
    samples, sent, drops = [], 0, 0
    for ms in range(milliseconds):
        samples.append([100 + ms * MS, sent, waiting(ms), drops])
        sent += rate(ms) * MS
        drops += dropped(ms)
    return samples


def settled(samples):
    return incast_netns.rtts_to_settle(samples, 100, RTT)


class SettleTest(unittest.TestCase):
    def test_a_steady_path_has_settled_at_once(self):
        self.assertEqual(settled(path(1000)), 0)

    def test_a_slow_start_counts(self):
        self.assertAlmostEqual(settled(path(1000, rate=lambda ms: RATE if ms >= 100 else 0)), 8, delta=0.5)

    def test_a_full_link_that_drops_all_the_time_never_settles(self):
        self.assertIsNone(settled(path(1000, dropped=lambda ms: ms % 100 == 50)))

    def test_a_drop_counts_until_it_has_happened(self):
        self.assertAlmostEqual(settled(path(1000, dropped=lambda ms: ms == 150)), 15, delta=0.2)

    def test_a_standing_queue_never_settles(self):
        self.assertIsNone(settled(path(1000, waiting=lambda ms: 0.9 * QUEUE_BYTES)))

    def test_less_than_ninety_percent_of_what_it_ends_with_does_not_count(self):
        self.assertAlmostEqual(settled(path(1000, rate=lambda ms: RATE if ms >= 400 else 0.85 * RATE)), 26.7,
                               delta=0.5)  # two thirds of 20 round trips may be slow

    def test_a_path_that_carries_less_all_the_time_has_settled(self):
        self.assertEqual(settled(path(1000, rate=lambda ms: 0.85 * RATE)), 0)

    def test_what_was_not_seen_to_last_has_not_settled(self):
        self.assertIsNone(settled(path(150)))


class RateTest(unittest.TestCase):
    def test_of_programs_between_their_first_and_last_sum_of_a_phase(self):
        progress = [[10 + i, 1000 * i] for i in range(10)]
        self.assertEqual(incast_netns.program_rates([{"progress": progress}], 12.5, 16.5), [1000])
        self.assertEqual(incast_netns.program_rates([{"progress": progress}], 12.5, 13.5), [0])

    def test_of_flows_that_began_meanwhile(self):
        self.assertEqual(incast_netns.tcp_rates([10, [100]], [12, [300, 50]]), [100, 25])


if __name__ == "__main__":
    unittest.main()
