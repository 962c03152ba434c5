"""An urgent message of an unchanged ZeroMQ program beside bulk on the same link, with the kernel's for comparison.

usage: zeromq_urgency_test.py STACKD CTL MERCURY_RUN [unittest arguments]
"""
import json

from two_hosts import BOTH, main
from zeromq_test import ZeroMqTest


class Urgency(ZeroMqTest):
    """A link of 400 Mbit/s, which eight sockets fill."""
    HOSTS = {"rate_mbit": 400}
    URGENT = 0xe0  # class selector 7

    def overtaken(self, mercury, tos):
        """By how much bulk is an urgent message of 4 MB overtaken on its way, of about 100 MB?"""
        endpoint = self.hosts.endpoint("b", self.port())
        reader = self.bind("b", "bulk_reader", endpoint, mercury)
        writer = self.zeromq("a", "bulk_writer", "connect", endpoint, mercury, tos=tos)
        result, _ = map(self.hosts.output, (reader, writer))
        return json.loads(result)

    def test_an_urgent_message_overtakes_bulk(self):
        results = {}
        for mercury in BOTH:
            with self.carries(100_000_000) if mercury else self.carries(0, at_most=0):
                # The best of each: what else this machine does only makes it later that the message is written.
                runs = [[self.overtaken(mercury, tos) for tos in (0, self.URGENT)] for _ in range(3)]
                results[mercury] = [min(of_one, key=lambda run: run["messages"]) for of_one in zip(*runs)]
        print()
        for mercury, (plain, urgent) in results.items():
            for name, one in (("ordinary", plain), ("urgent", urgent)):
                print(f"{'Mercury' if mercury else 'kernel':8} {name:9} {one['messages']:3} of {one['of']} MB of bulk before it, "
                      f"{one['ms']:5.0f} ms")
        plain, urgent = results[True]
        self.assertGreater(plain["messages"], 8)  # or there was no queue
        self.assertLess(3 * urgent["messages"], plain["messages"])
        self.assertLess(urgent["messages"], min(one["messages"] for one in results[False]))


if __name__ == "__main__":
    main(modules=(("zmq", "python3-zmq"),))
