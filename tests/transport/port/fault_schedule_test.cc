// Faults that come and go: each does what it says while it lasts, they add up, and nothing stays.
#include "transport/port/sim/fault_schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/port/sim/sim_port.h"

namespace mercury::sim {
namespace {

constexpr uint64_t kMs = 1'000'000;

struct Lab {
  explicit Lab(uint32_t hosts, const NetworkConfig& config = {}) : network(config) {
    for (uint32_t i = 0; i < hosts; ++i) {
      const Endpoint local{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(i + 1)), 7470};
      ports.push_back(std::move(*SimPort::create(network, network.add_host(), local)));
    }
    schedule = std::make_unique<FaultSchedule>(network, hosts);
  }

  void advance_to(uint64_t at_ns) {
    while (schedule->next_ns() <= at_ns) {
      network.advance_to(schedule->next_ns());
      schedule->apply(network.now_ns());
    }
    network.advance_to(at_ns);
  }

  // Whether a frame that leaves now arrives.
  bool passes(uint32_t from, uint32_t to, uint32_t bytes = 100) {
    TxFrame frame;
    if (!ports[from]->tx_alloc(frame)) return false;
    std::memset(frame.data, 0, bytes);
    ports[from]->tx_send(frame, *ports[from]->open_path(ports[to]->info().local), bytes);
    ports[from]->tx_flush(network.now_ns());
    advance_to(network.now_ns() + 100'000);
    std::array<RxFrame, 8> burst;
    const uint32_t count = ports[to]->rx_burst(burst, network.now_ns());
    ports[to]->rx_release();
    return count > 0;
  }

  SimNetwork network;
  std::vector<std::unique_ptr<SimPort>> ports;
  std::unique_ptr<FaultSchedule> schedule;
};

NetworkFault fault(NetworkFaultKind kind, uint64_t from_ms, uint64_t until_ms, uint32_t host) {
  NetworkFault out;
  out.kind = kind;
  out.from_ns = from_ms * kMs;
  out.until_ns = until_ms * kMs;
  out.host = host;
  return out;
}

TEST(FaultSchedule, APartitionCutsBothWaysAndHeals) {
  Lab lab(3);
  lab.schedule->add(fault(NetworkFaultKind::kPartition, 10, 20, 0));
  lab.schedule->start(lab.network.now_ns());
  EXPECT_TRUE(lab.passes(0, 1));
  lab.advance_to(10 * kMs);
  EXPECT_FALSE(lab.passes(0, 1));
  EXPECT_FALSE(lab.passes(1, 0));
  EXPECT_FALSE(lab.passes(2, 0));
  EXPECT_TRUE(lab.passes(1, 2)) << "the others hear each other";
  lab.advance_to(20 * kMs);
  EXPECT_TRUE(lab.passes(0, 1));
  EXPECT_EQ(lab.schedule->next_ns(), kNever);
}

TEST(FaultSchedule, OneWayMeansOneWayAndOneOtherMeansOne) {
  Lab lab(3);
  NetworkFault one_way = fault(NetworkFaultKind::kOneWay, 0, 20, 0);
  one_way.other = 1;
  lab.schedule->add(one_way);
  lab.schedule->start(lab.network.now_ns());
  EXPECT_FALSE(lab.passes(0, 1));
  EXPECT_TRUE(lab.passes(1, 0));
  EXPECT_TRUE(lab.passes(0, 2));
}

TEST(FaultSchedule, AFlappingLinkIsDownHalfOfTheTime) {
  Lab lab(2);
  NetworkFault flap = fault(NetworkFaultKind::kFlap, 10, 50, 0);
  flap.period_ns = 10 * kMs;
  lab.schedule->add(flap);
  lab.schedule->start(lab.network.now_ns());
  for (uint64_t ms = 10; ms < 50; ms += 5) {
    lab.advance_to(ms * kMs + kMs);
    EXPECT_EQ(lab.passes(0, 1), (ms - 10) / 5 % 2 == 1) << ms;
    EXPECT_EQ(lab.passes(1, 0), (ms - 10) / 5 % 2 == 1) << ms;
  }
  lab.advance_to(50 * kMs);
  EXPECT_TRUE(lab.passes(0, 1));
}

TEST(FaultSchedule, ABlackHoleTakesLargeFramesAndThePortDoesNotKnow) {
  Lab lab(2);
  NetworkFault hole = fault(NetworkFaultKind::kBlackHole, 0, 20, 1);
  hole.mtu_bytes = 1'000;
  lab.schedule->add(hole);
  lab.schedule->start(lab.network.now_ns());
  EXPECT_TRUE(lab.passes(0, 1, 972));  // 20 and 8 bytes of IP and UDP
  EXPECT_FALSE(lab.passes(0, 1, 973));
  EXPECT_FALSE(lab.passes(1, 0, 973));
  EXPECT_EQ(lab.network.config(lab.network.uplink(HostId(1))).mtu_bytes, 9'000U);
  lab.advance_to(20 * kMs);
  EXPECT_TRUE(lab.passes(0, 1, 973));
}

TEST(FaultSchedule, OverlappingFaultsAddUpAndLeaveNothing) {
  NetworkConfig config;
  config.host_link.faults.duplicate = 0.25;
  Lab lab(2, config);
  NetworkFault storm = fault(NetworkFaultKind::kWeather, 0, 20, 0);
  storm.faults.loss = 0.5;
  storm.faults.jitter_ns = 100;
  NetworkFault other = fault(NetworkFaultKind::kWeather, 10, 30, NetworkFault::kEveryone);
  other.faults.loss = 0.5;
  lab.schedule->add(storm);
  lab.schedule->add(other);
  lab.schedule->start(lab.network.now_ns());
  const auto faults = [&](uint32_t host) {
    return lab.network.config(lab.network.uplink(HostId(host))).faults;
  };
  EXPECT_DOUBLE_EQ(faults(0).loss, 0.5);
  EXPECT_DOUBLE_EQ(faults(1).loss, 0);
  lab.advance_to(15 * kMs);
  EXPECT_DOUBLE_EQ(faults(0).loss, 0.75);
  EXPECT_DOUBLE_EQ(faults(1).loss, 0.5);
  EXPECT_EQ(faults(0).jitter_ns, 100U);
  lab.advance_to(25 * kMs);
  EXPECT_DOUBLE_EQ(faults(0).loss, 0.5);
  lab.advance_to(30 * kMs);
  EXPECT_DOUBLE_EQ(faults(0).loss, 0);
  EXPECT_DOUBLE_EQ(faults(0).duplicate, 0.25) << "as it was before";
}

TEST(LinkFaults, JitterDelaysAndKeepsTheOrder) {
  LinkConfig config;
  config.faults.jitter_ns = 1'000;
  Link link(config);
  Random random(1);
  uint64_t last = 0;
  uint64_t moved = 0;
  for (uint64_t at = 1'000'000; at < 2'000'000; at += 1'000) {
    const uint64_t arrival = link.jittered(at, random);
    EXPECT_GE(arrival, std::max(at, last));
    EXPECT_LE(arrival, at + 1'000'000 + 1'000'000);
    moved += arrival != at;
    last = arrival;
  }
  EXPECT_GT(moved, 900U);
}

TEST(LinkFaults, ABurstOnAQuietLinkEndsByTime) {
  LinkConfig config;
  config.faults.burst_start = 1e-9;
  config.faults.burst_frames = 1e12;
  config.faults.burst_most_ns = 10;
  Link link(config);
  Random random(3);
  Faults certain = config.faults;
  certain.burst_start = 1;
  link.set_faults(certain);
  EXPECT_TRUE(link.burst_takes(0, random));
  link.set_faults(config.faults);
  EXPECT_TRUE(link.burst_takes(9'999, random)) << "still the same burst";
  EXPECT_FALSE(link.burst_takes(11'000, random));
}

TEST(LinkFaults, ABurstEndsWithItsWeather) {
  LinkConfig config;
  config.faults.burst_start = 1;
  config.faults.burst_frames = 1e12;
  Link link(config);
  Random random(3);
  EXPECT_TRUE(link.burst_takes(0, random));
  link.set_faults({});
  EXPECT_FALSE(link.burst_takes(1, random));
}

}  // namespace
}  // namespace mercury::sim
