// The simulated network itself: times, queues, each fault, determinism. What all ports share is in
// port_suite.h.
#include "transport/port/sim/sim_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/transport/port/port_suite.h"
#include "tests/transport/port/sim_star.h"
#include "transport/port/port_decorator.h"

namespace mercury::port_suite {
namespace {

// `P` is SimPort, or what decorates it.
template <bool kV4, class P = sim::SimPort>
struct SimLab {
  P& a() { return *port_a; }
  P& b() { return *port_b; }
  void step() { network.advance_to(std::min(network.next_event_ns(), network.now_ns() + 100'000)); }
  static Endpoint address(int host) {
    return *Endpoint::parse((kV4 ? "10.0.0." : "fd00::") + std::to_string(host), 7470);
  }
  static Endpoint other_family() { return *Endpoint::parse(kV4 ? "[::1]:9" : "127.0.0.1:9"); }
  std::unique_ptr<P> open(int host, Counters& counters) {
    std::unique_ptr<sim::SimPort> made = std::move(
        *sim::SimPort::create(network, network.add_host(), address(host), {.counters = &counters}));
    if constexpr (std::is_same_v<P, sim::SimPort>) {
      return made;
    } else {
      return std::make_unique<P>(std::move(made));
    }
  }

  sim::SimNetwork network;
  Counters counters_a, counters_b;
  std::unique_ptr<P> port_a = open(1, counters_a);
  std::unique_ptr<P> port_b = open(2, counters_b);
};
using SimV4 = SimLab<true>;
using SimV6 = SimLab<false>;
INSTANTIATE_TYPED_TEST_SUITE_P(SimV4, PortSuite, SimV4);
INSTANTIATE_TYPED_TEST_SUITE_P(SimV6, PortSuite, SimV6);

// A decorator that defines one call anew. Around another, as it takes any port.
class CountingPort : public PortDecorator<PortDecorator<sim::SimPort>> {
 public:
  explicit CountingPort(std::unique_ptr<sim::SimPort> port)
      : PortDecorator(std::make_unique<PortDecorator<sim::SimPort>>(std::move(port))) {}
  void tx_flush(uint64_t now_ns) noexcept {
    ++flushes;
    PortDecorator::tx_flush(now_ns);
  }
  uint32_t flushes = 0;
};
static_assert(Port<CountingPort>);
using Decorated = SimLab<true, CountingPort>;
INSTANTIATE_TYPED_TEST_SUITE_P(Decorated, PortSuite, Decorated);

TEST(PortDecorator, ACallDefinedAnewIsCalledAndHandsOn) {
  Decorated lab;
  const PathId path = *lab.a().open_path(lab.b().info().local);
  ASSERT_TRUE(send(lab.a(), path, 1, 100));
  lab.step();
  EXPECT_EQ(lab.b().decorated().decorated().rx_waiting_frames(), 0U);
  lab.a().tx_flush(lab.network.now_ns());
  EXPECT_EQ(lab.a().flushes, 1U);
  for (int i = 0; i < 4; ++i) lab.step();
  EXPECT_EQ(lab.b().decorated().decorated().rx_waiting_frames(), 1U);
}

// A translator stands before the port: other hosts see it elsewhere, and find it there alone.
TEST(SimNetwork, ShowsAPortElsewhere) {
  sim::Star star(2);
  const Endpoint own = star.ports[1]->info().local;
  const Endpoint first = sim::endpoint(77, 7), second = sim::endpoint(78, 8);
  const auto source_at_0 = [&star] {
    EXPECT_TRUE(star.send(1, 0, 100));
    star.network.advance_to(star.network.now_ns() + 1'000'000);
    std::array<RxFrame, 1> burst;
    EXPECT_EQ(star.ports[0]->rx_burst(burst, star.network.now_ns()), 1U);
    const Endpoint source = burst[0].source;
    star.ports[0]->rx_release();
    return source;
  };
  const auto arrives = [&star](const Endpoint& target) {
    star.received.clear();
    TxFrame frame;
    EXPECT_TRUE(star.ports[0]->tx_alloc(frame));
    star.ports[0]->tx_send(frame, *star.ports[0]->open_path(target), 100);
    star.ports[0]->tx_flush(star.network.now_ns());
    star.run(1);
    return !star.received.empty();
  };
  ASSERT_TRUE(star.network.show_as(*star.ports[1], first));
  EXPECT_EQ(source_at_0(), first);
  EXPECT_TRUE(arrives(first));
  EXPECT_FALSE(arrives(own));
  ASSERT_TRUE(star.network.show_as(*star.ports[1], second));
  EXPECT_EQ(source_at_0(), second);
  EXPECT_TRUE(arrives(second));
  EXPECT_FALSE(arrives(first));
  EXPECT_EQ(star.ports[1]->info().local, own);
  ASSERT_TRUE(star.network.show_as(*star.ports[1], own));
  EXPECT_EQ(source_at_0(), own);
  EXPECT_TRUE(arrives(own));
  EXPECT_FALSE(arrives(second));
  EXPECT_EQ(star.network.show_as(*star.ports[1], star.ports[0]->info().local).error().code,
            Errc::kExists);
  EXPECT_EQ(star.network.show_as(*star.ports[1], *Endpoint::parse("[fd00::9]:9")).error().code,
            Errc::kInvalidArgument);
}

// What it was seen as goes with it.
TEST(SimNetwork, APortThatGoesLeavesNothingWhereItWasSeen) {
  sim::Star star(2);
  ASSERT_TRUE(star.network.show_as(*star.ports[1], sim::endpoint(77)));
  ASSERT_TRUE(star.network.show_as(*star.ports[0], sim::endpoint(78)));
  EXPECT_TRUE(star.send(0, 1, 100));
  star.ports[1].reset();
  star.run(0);
  EXPECT_TRUE(star.network.show_as(*star.ports[0], sim::endpoint(77)));
  EXPECT_EQ(star.network.frames_in_use(), 0U);
}

}  // namespace
}  // namespace mercury::port_suite

namespace mercury::sim {
namespace {

NetworkConfig config_with(const Faults& faults, uint64_t seed = 1) {
  NetworkConfig config;
  config.seed = seed;
  config.host_link.faults = faults;
  return config;
}

TEST(SimNetwork, ArrivalIsSerialisationAndDelayOnBothLinksExactly) {
  NetworkConfig config;
  config.host_link.bytes_per_second = 1'250'000'000;  // 0.8 ns a byte
  config.host_link.delay_ns = 700;
  Star star(2, config);
  ASSERT_TRUE(star.send(0, 1, 1434));  // + 20 + 8 + 38 = 1500 bytes = 1200 ns
  star.run(1);
  ASSERT_EQ(star.received.size(), 1u);
  EXPECT_EQ(star.received[0].at_ns, config.start_ns + 2 * (1200 + 700));
}

TEST(SimNetwork, ABackToBackStreamRunsAtTheLinkRate) {
  NetworkConfig config;
  Star star(2, config);
  star.stream(1000, 1434);
  ASSERT_EQ(star.received.size(), 1000u);
  const uint64_t first = star.received.front().at_ns;
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(star.received[i].number, i);
    EXPECT_EQ(star.received[i].at_ns, first + uint64_t{i} * 1200);
    EXPECT_TRUE(star.received[i].intact);
  }
  EXPECT_EQ(star.network.stats(star.network.uplink(star.ids[0])).wire_bytes, 1'500'000u);
}

TEST(SimNetwork, AnIdleLinksBucketGoesAtOnceAndTheRestAtItsRate) {
  NetworkConfig config;
  config.host_link.bucket_bytes = 10 * 1500;
  config.host_link.queue_bytes = 10 * 1500;  // waiting, not what has gone
  Star star(2, config);
  for (int burst = 0; burst < 2; ++burst) {
    star.received.clear();
    star.network.advance_to(star.network.now_ns() + 1'000'000);  // the bucket fills
    star.stream(100, 1434);
    ASSERT_EQ(star.received.size(), 100u);
    const uint64_t first = star.received.front().at_ns;
    for (uint32_t i = 0; i < 100; ++i) {
      EXPECT_EQ(star.received[i].at_ns, first + (i < 10 ? 0 : uint64_t{i - 9} * 1200)) << i;
    }
  }
}

TEST(SimNetwork, SmallFramesTakeTheLeastTimeOfEthernet) {
  Star star(2);
  ASSERT_TRUE(star.send(0, 1, 1));
  star.run(1);
  EXPECT_EQ(star.network.stats(star.network.uplink(star.ids[0])).wire_bytes, 84u);
}

TEST(SimNetwork, TheNicTakesABoundedNumberOfBytesAndRoomIsAnEvent) {
  Star star(2);
  uint32_t sent = 0;
  while (star.send(0, 1, 8972)) ++sent;
  EXPECT_EQ(sent, 2u);
  EXPECT_EQ(star.ports[0]->tx_queued_bytes(), 2u * 9038);
  star.network.clear_touched();
  star.network.advance_to(star.network.next_event_ns());
  ASSERT_EQ(star.network.touched().size(), 1u);
  EXPECT_EQ(star.network.touched()[0], star.ports[0].get());
  EXPECT_TRUE(star.send(0, 1, 8972));
}

TEST(SimNetwork, AFullQueueDropsTheTail) {
  NetworkConfig config;
  config.host_link.queue_bytes = 10 * 1500;
  Star star(3, config);
  // Two senders into one downlink: half of what they send must wait there.
  for (uint32_t i = 0; i < 400;) {
    const uint32_t before = i;
    i += star.send(0, 2, 1434, i);
    i += star.send(1, 2, 1434, i);
    if (i == before) star.network.advance_to(star.network.next_event_ns());
    star.receive(2);
  }
  star.run(2);
  const uint64_t dropped = star.link_drops(star.ids[2], Drop::kQueueFull);
  EXPECT_EQ(dropped, star.network.drops(Drop::kQueueFull));
  EXPECT_NEAR(static_cast<double>(dropped), 200 - 10, 3);
  EXPECT_EQ(star.received.size() + dropped, 400u);
  EXPECT_EQ(star.network.stats(star.network.downlink(star.ids[2])).max_backlog_ps, 10u * 1'200'000);
}

TEST(SimNetwork, MarksFramesThatFindALongQueue) {
  NetworkConfig config;
  config.host_link.ecn_mark_bytes = 5 * 1500;
  Star star(3, config);
  for (uint32_t i = 0; i < 100;) {
    const uint32_t before = i;
    i += star.send(0, 2, 1434, i);
    i += star.send(1, 2, 1434, i);
    if (i == before) star.network.advance_to(star.network.next_event_ns());
    star.receive(2);
  }
  star.run(2);
  ASSERT_EQ(star.received.size(), 100u);
  EXPECT_FALSE(star.received[0].ecn_ce);
  EXPECT_TRUE(star.received[99].ecn_ce);
  uint64_t marked = 0;
  for (const auto& frame : star.received) marked += frame.ecn_ce;
  EXPECT_EQ(marked, star.network.stats(star.network.downlink(star.ids[2])).ecn_marked);
}

// What is queued when the rate changes leaves at the new one, in order.
TEST(SimNetwork, ARateThatChangesTakesTheQueueAlong) {
  NetworkConfig config;
  config.host_link.ecn_mark_bytes = 5 * 1500;
  config.host_link.queue_bytes = 20 * 1500;
  for (const uint64_t rate : {125'000'000u, 1'250'000'000u}) {  // down, then up, by ten
    config.host_link.bytes_per_second = 1'375'000'000 - rate;
    Star star(9, config);
    for (uint32_t i = 0; i < 16; ++i) {
      ASSERT_TRUE(star.send(1 + i % 8, 0, 1434, i));
    }
    star.network.advance_to(star.network.now_ns() + 2'100 +
                            1'500'000'000'000 / (1'375'000'000 - rate));
    star.receive(0);
    ASSERT_LT(star.received.size(), 8U);
    const uint64_t changed_ns = star.network.now_ns();
    star.network.set_rate(star.network.downlink(star.ids[0]), rate);
    for (uint32_t i = 16; i < 18; ++i) ASSERT_TRUE(star.send(1 + i % 8, 0, 1434, i));
    star.run(0);
    ASSERT_EQ(star.received.size(), 18U);
    const uint64_t frame_ns = 1'500'000'000'000 / rate;
    const uint64_t left = 18 - 2;
    EXPECT_LE(star.received[left - 1].at_ns - changed_ns, 16 * frame_ns + 13'000);
    for (size_t i = 1; i < star.received.size(); ++i) {
      EXPECT_GE(star.received[i].at_ns, star.received[i - 1].at_ns);
      if (star.received[i - 1].at_ns > changed_ns + 13'000) {
        EXPECT_GE(star.received[i].at_ns + 2 - star.received[i - 1].at_ns, frame_ns) << i;
      }
    }
    EXPECT_EQ(star.network.drops(Drop::kQueueFull), 0U);
  }
}

constexpr uint32_t kMany = 20'000;

// Five standard deviations of a binomial.
double slack(double rate) { return 5 * std::sqrt(kMany * rate * (1 - rate)); }

TEST(SimFaults, LossHitsItsRateOnBothLinks) {
  Star star(2, config_with({.loss = 0.02}));
  star.stream(kMany, 200);
  const double rate = 1 - 0.98 * 0.98;
  EXPECT_NEAR(static_cast<double>(star.network.drops(Drop::kLoss)), kMany * rate, slack(rate));
  EXPECT_EQ(star.received.size() + star.network.drops(Drop::kLoss), kMany);
}

TEST(SimFaults, BurstsTakeRunsOfFrames) {
  Star star(2);
  star.network.set_faults(star.network.uplink(star.ids[0]),
                          {.burst_start = 0.001, .burst_frames = 10});
  star.stream(kMany, 200);
  uint32_t bursts = 0;
  uint32_t expected = 0;
  for (const auto& frame : star.received) {
    bursts += frame.number != expected;
    expected = frame.number + 1;
  }
  const uint64_t lost = star.network.drops(Drop::kBurst);
  ASSERT_GT(bursts, 5u);
  EXPECT_NEAR(bursts, 20, 5 * std::sqrt(20.0));
  EXPECT_NEAR(static_cast<double>(lost) / bursts, 10, 8);
  EXPECT_EQ(star.received.size() + lost, kMany);
}

TEST(SimFaults, DuplicationHitsItsRateAndCopiesWhole) {
  Star star(2, config_with({.duplicate = 0.01}));
  star.stream(kMany, 200);
  EXPECT_NEAR(static_cast<double>(star.received.size()), kMany * 1.01 * 1.01, 2 * slack(0.01));
  for (const auto& frame : star.received) EXPECT_TRUE(frame.intact);
  std::set<uint32_t> numbers;
  for (const auto& frame : star.received) numbers.insert(frame.number);
  EXPECT_EQ(numbers.size(), kMany);
}

TEST(SimFaults, ReorderingHoldsFramesBackButLosesNone) {
  Star star(2);
  star.network.set_faults(star.network.uplink(star.ids[0]),
                          {.reorder = 0.01, .reorder_delay_ns = 20'000});
  star.stream(kMany, 200);
  ASSERT_EQ(star.received.size(), kMany);
  uint32_t late = 0;
  uint32_t highest = 0;
  for (const auto& frame : star.received) {
    late += frame.number < highest;
    highest = std::max(highest, frame.number);
  }
  EXPECT_NEAR(late, kMany * 0.01, slack(0.01) + 5);
  EXPECT_NEAR(static_cast<double>(star.network.stats(star.network.uplink(star.ids[0])).reordered),
              kMany * 0.01, slack(0.01));
}

TEST(SimFaults, CorruptionIsDelivered) {
  Star star(2);
  star.network.set_faults(star.network.uplink(star.ids[0]), {.corrupt = 0.05});
  star.stream(kMany, 400);
  ASSERT_EQ(star.received.size(), kMany);
  const uint64_t corrupted = star.network.stats(star.network.uplink(star.ids[0])).corrupted;
  EXPECT_NEAR(static_cast<double>(corrupted), kMany * 0.05, slack(0.05));
  uint64_t seen = 0;
  for (const auto& frame : star.received) seen += !frame.intact;
  EXPECT_LE(seen, corrupted);
  EXPECT_GT(seen, corrupted * 9 / 10);  // flips may hit the number, or undo each other
}

TEST(SimFaults, FramesAboveALinksMtuVanish) {
  NetworkConfig config;
  Star star(2, config);
  LinkConfig narrow;
  narrow.mtu_bytes = 1500;
  star.network.set_config(star.network.downlink(star.ids[1]), narrow);
  EXPECT_TRUE(star.send(0, 1, 1472));
  EXPECT_TRUE(star.send(0, 1, 1473));
  star.run(1);
  ASSERT_EQ(star.received.size(), 1u);
  EXPECT_EQ(star.received[0].bytes, 1472u);
  EXPECT_EQ(star.network.drops(Drop::kMtu), 1u);
}

TEST(SimFaults, OneWayPartitionBlocksOneWay) {
  Star star(2);
  star.network.block(star.ids[0], star.ids[1]);
  EXPECT_TRUE(star.send(0, 1, 100));
  EXPECT_TRUE(star.send(1, 0, 100));
  star.run(0);
  EXPECT_EQ(star.received.size(), 1u);
  EXPECT_EQ(star.network.drops(Drop::kPartition), 1u);
  star.network.unblock(star.ids[0], star.ids[1]);
  EXPECT_TRUE(star.send(0, 1, 100));
  star.run(1);
  EXPECT_EQ(star.received.size(), 2u);
}

TEST(SimFaults, FullPartitionHeals) {
  Star star(3);
  star.network.partition(std::array{star.ids[0]}, std::array{star.ids[1], star.ids[2]});
  EXPECT_TRUE(star.send(0, 1, 100));
  EXPECT_TRUE(star.send(2, 0, 100));
  EXPECT_TRUE(star.send(2, 1, 100));
  star.run(1);
  star.receive(0);
  EXPECT_EQ(star.received.size(), 1u);
  star.network.heal();
  EXPECT_TRUE(star.send(0, 1, 100));
  star.run(1);
  EXPECT_EQ(star.received.size(), 2u);
}

TEST(SimFaults, ALinkThatGoesDownLosesWhatIsOnIt) {
  Star star(2);
  EXPECT_TRUE(star.send(0, 1, 1000));
  star.network.advance_to(star.network.next_event_ns());  // out of the NIC, on the uplink
  star.network.set_up(star.network.uplink(star.ids[0]), false);
  star.run(1);
  EXPECT_TRUE(star.received.empty());
  EXPECT_EQ(star.network.drops(Drop::kLinkDown), 1u);
  star.network.set_up(star.network.uplink(star.ids[0]), true);
  EXPECT_TRUE(star.send(0, 1, 1000));
  star.run(1);
  EXPECT_EQ(star.received.size(), 1u);
}

TEST(SimNetwork, AFullReceiveRingDrops) {
  Counters counters;
  Star star(2, {}, {.rx_ring_frames = 4, .counters = &counters});
  for (uint32_t i = 0; i < 6;) {
    if (star.send(0, 1, 100, i))
      ++i;
    else
      star.network.advance_to(star.network.next_event_ns());
  }
  while (star.network.next_event_ns() != kNever)
    star.network.advance_to(star.network.next_event_ns());
  star.receive(1);
  EXPECT_EQ(star.received.size(), 4u);
  EXPECT_EQ(star.network.drops(Drop::kRxRingFull), 2u);
  EXPECT_EQ(counters.get(Counter::kDropNoBuffer), 2u);
  EXPECT_EQ(star.network.frames_in_use(), 0u);
}

TEST(SimNetwork, AFrameSaysHowLongItHasWaitedInTheReceiveRing) {
  Star star(2);
  ASSERT_TRUE(star.send(0, 1, 100));
  const auto arrives_ns = [&] {
    while (!star.ports[1]->rx_waiting()) star.network.advance_to(star.network.next_event_ns());
    return star.network.now_ns();
  };
  const uint64_t arrived_ns = arrives_ns();
  star.network.advance_to(arrived_ns + 12'345);
  std::array<RxFrame, 4> burst;
  ASSERT_EQ(star.ports[1]->rx_burst(burst, star.network.now_ns()), 1U);
  EXPECT_EQ(burst[0].waited_ns, 12'345U);
  star.ports[1]->rx_release();
  ASSERT_TRUE(star.send(0, 1, 100));
  arrives_ns();
  ASSERT_EQ(star.ports[1]->rx_burst(burst, star.network.now_ns()), 1U);
  EXPECT_EQ(burst[0].waited_ns, 0U);
  star.ports[1]->rx_release();
}

TEST(SimNetwork, APortCanGoWithFramesInItsNicAndComeBack) {
  Star star(2);
  std::vector<std::byte> payload(500, std::byte{0x5a});
  PayloadPin pin;
  TxFrame frame;
  SimPort& port = *star.ports[0];
  const PathId path = *port.open_path(endpoint(2));
  ASSERT_TRUE(port.tx_alloc(frame));
  port.tx_send_shared(frame, 8, path, payload, pin);
  port.tx_flush(0);
  ASSERT_TRUE(port.tx_alloc(frame));
  port.tx_send_shared(frame, 8, path, payload, pin);  // not flushed
  EXPECT_TRUE(port.pin_busy(pin));
  star.ports[0].reset();
  EXPECT_FALSE(star.ports[1]->pin_busy(pin));
  star.run(1);
  EXPECT_TRUE(star.received.empty());
  EXPECT_EQ(star.network.drops(Drop::kSenderGone), 1u);
  auto again = SimPort::create(star.network, star.ids[0], endpoint(1));
  ASSERT_TRUE(again);
  star.ports[0] = std::move(*again);
  EXPECT_TRUE(star.send(0, 1, 100));
  star.run(1);
  EXPECT_EQ(star.received.size(), 1u);
}

TEST(SimNetwork, NobodyBoundIsADrop) {
  Star star(2);
  SimPort& port = *star.ports[0];
  const PathId nobody = *port.open_path(endpoint(99));
  const PathId restarting = *port.open_path(endpoint(2));
  for (PathId path : {nobody, restarting}) {
    TxFrame frame;
    ASSERT_TRUE(port.tx_alloc(frame));
    port.tx_send(frame, path, 10);
  }
  port.tx_flush(0);
  star.ports[1].reset();
  while (star.network.next_event_ns() != kNever)
    star.network.advance_to(star.network.next_event_ns());
  EXPECT_EQ(star.network.drops(Drop::kNoEndpoint), 2u);
}

TEST(SimNetwork, EndpointsOfOneHostMeetWithoutTheWire) {
  SimNetwork network;
  const HostId host = network.add_host();
  auto a = SimPort::create(network, host, endpoint(1, 1000));
  auto b = SimPort::create(network, host, endpoint(1, 1001));
  ASSERT_TRUE(a && b);
  TxFrame frame;
  ASSERT_TRUE((*a)->tx_alloc(frame));
  (*a)->tx_send(frame, *(*a)->open_path(endpoint(1, 1001)), 64);
  (*a)->tx_flush(0);
  network.advance_to(network.now_ns() + 1'000);
  std::array<RxFrame, 4> burst;
  ASSERT_EQ((*b)->rx_burst(burst, 0), 1u);
  EXPECT_EQ(burst[0].source, endpoint(1, 1000));
  (*b)->rx_release();
  EXPECT_EQ(network.stats(network.uplink(host)).frames, 0u);
}

TEST(SimNetwork, RacksShareTheirLinksToTheCore) {
  SimNetwork network;
  LinkConfig link;
  LinkConfig core = link;
  core.bytes_per_second /= 2;
  const std::array racks{network.add_rack(core, core), network.add_rack(core, core)};
  std::vector<std::unique_ptr<SimPort>> ports;
  for (uint8_t i = 0; i < 4; ++i) {
    const HostId host = network.add_host(link, link, racks[i / 2]);
    ports.push_back(std::move(*SimPort::create(network, host, endpoint(i))));
  }
  const auto send = [&](size_t from, uint8_t to) {
    TxFrame frame;
    ASSERT_TRUE(ports[from]->tx_alloc(frame));
    ports[from]->tx_send(frame, *ports[from]->open_path(endpoint(to)), 1434);
    ports[from]->tx_flush(0);
  };
  send(0, 1);  // inside the rack
  network.advance_to(network.now_ns() + 1'000'000);
  EXPECT_EQ(network.stats(network.uplink(racks[0])).frames, 0u);
  const uint64_t begin = network.now_ns();
  send(0, 3);
  uint64_t arrived = 0;
  std::array<RxFrame, 4> burst;
  while (network.next_event_ns() != kNever) {
    network.advance_to(network.next_event_ns());
    if (ports[3]->rx_burst(burst, 0) == 1) arrived = network.now_ns();
    ports[3]->rx_release();
  }
  EXPECT_EQ(arrived, begin + 2 * 1200 + 2 * 2400 + 4 * 1000);
  EXPECT_EQ(network.stats(network.uplink(racks[0])).frames, 1u);
  EXPECT_EQ(network.stats(network.downlink(racks[1])).frames, 1u);
}

TEST(SimNetwork, InjectedFramesArriveFromWhoeverTheySay) {
  Star star(2);
  const std::array<std::byte, 3> junk{};
  EXPECT_TRUE(star.network.inject(endpoint(200, 9), endpoint(2), junk, 500));
  EXPECT_FALSE(star.network.inject(endpoint(200, 9), endpoint(2), std::vector<std::byte>(70'000)));
  star.network.advance_to(star.network.now_ns() + 500);
  std::array<RxFrame, 4> burst;
  ASSERT_EQ(star.ports[1]->rx_burst(burst, 0), 1u);
  EXPECT_EQ(burst[0].source, endpoint(200, 9));
  EXPECT_EQ(burst[0].payload.size(), 3u);
  star.ports[1]->rx_release();
}

uint64_t hash_of_a_run(uint64_t seed) {
  Star star(3,
            config_with({.loss = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.05}, seed));
  for (uint32_t i = 0; i < 3000;) {
    i += star.send(0, 2, 100 + i % 700, i);
    i += star.send(1, 2, 100 + i % 300, i);
    star.network.advance_to(star.network.now_ns() + 300);
    star.receive(2);
  }
  star.run(2);
  EXPECT_EQ(star.network.frames_in_use(), 0u);
  return star.network.trace_hash();
}

TEST(SimNetwork, SameSeedSameTraceAndAnotherSeedAnother) {
  EXPECT_EQ(hash_of_a_run(42), hash_of_a_run(42));
  EXPECT_NE(hash_of_a_run(42), hash_of_a_run(43));
}

TEST(SimPort, RefusesWhatCannotBeBound) {
  SimNetwork network;
  const HostId host = network.add_host();
  auto first = SimPort::create(network, host, endpoint(1));
  ASSERT_TRUE(first);
  EXPECT_EQ(SimPort::create(network, host, endpoint(1)).error().code, Errc::kExists);
  EXPECT_EQ(SimPort::create(network, HostId(5), endpoint(2)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(SimPort::create(network, host, endpoint(2, 0)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ((*first)->open_path(*Endpoint::parse("[fd00::1]:5")).error().code,
            Errc::kInvalidArgument);
}

}  // namespace
}  // namespace mercury::sim
