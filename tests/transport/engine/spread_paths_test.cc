// Datagrams from several source ports, on paths of equal cost that routers choose by ports.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/engine/spread_lab.h"
#include "transport/flow/port_turns.h"

namespace mercury::post {
namespace {

constexpr uint64_t kLinkRate = 1'250'000'000;

// Two racks, joined by so many paths, which carry together what a host's link does. `a` is in one,
// `b` in the other.
struct Paths : Spread {
  Paths(uint32_t paths, uint16_t ports, uint64_t seed, uint64_t slower_ns = 0)
      : Spread(of(seed)), count(paths) {
    sim::LinkConfig link;
    link.bytes_per_second = kLinkRate / paths;
    link.delay_ns = 5'000;
    link.queue_bytes = 512 * 1024;
    link.ecn_mark_bytes = 64 * 1024;
    const sim::LinkConfig host = network_config(seed).host_link;
    for (size_t i = 0; i < 2; ++i) racks.push_back(network.add_rack(link, link, paths));
    for (size_t i = 0; i < 2; ++i) {
      add(network.add_host(host, host, racks[i]), EngineConfig(),
          from(i == 0 ? range(ports) : PortRange{}));
    }
    for (uint32_t path = 1; path < paths && slower_ns > 0; path += 2) {
      sim::LinkConfig longer = link;
      longer.delay_ns += slower_ns;
      network.set_config(network.uplink(racks[0], path), longer);
    }
    EXPECT_TRUE(connect(kFeatures));
    run_for(20 * kMs);
  }
  // Beside `a` a second sender, to `b` too.
  PostHost& add_sender(uint16_t ports) {
    const sim::LinkConfig link = network.config(network.uplink(sim::HostId(0)));
    add(network.add_host(link, link, racks[0]), EngineConfig(), from(range(ports)));
    PostHost& sender = *hosts.back();
    sender.features = kFeatures;
    sender.connect(PostHost::at(2));
    EXPECT_TRUE(run([&] { return sender.open; }));
    run_for(20 * kMs);
    return sender;
  }
  // How many of so many source ports of a host each path has.
  std::vector<uint32_t> ports_on(uint16_t ports, uint8_t host = 1) const {
    std::vector<uint32_t> on(count);
    for (uint16_t i = 0; i < ports; ++i) {
      Endpoint source = PostHost::at(host);
      if (i > 0) source.port = static_cast<uint16_t>(7600 + i - 1);
      ++on[network.path_hash(source, PostHost::at(2)) % count];
    }
    return on;
  }
  // Of so many, the part that the fullest path has.
  double fullest(uint16_t ports) const {
    return static_cast<double>(std::ranges::max(ports_on(ports))) / ports;
  }
  uint64_t left_out() { return a().counters.get(Counter::kSourcePortsLeftOut); }
  // Bytes in a second, of datagrams as long as there are some.
  double goodput() {
    post(40'000, 8'000);
    run_for(50 * kMs);  // the window has found what the paths carry
    const uint64_t before = b().counters.get(Counter::kRxBytes);
    lost_before = a().service.lost;
    run_for(100 * kMs);
    return static_cast<double>(b().counters.get(Counter::kRxBytes) - before) / 0.1;
  }
  uint32_t lost() { return a().service.lost - lost_before; }
  // `others` behind that of the port at which `a` hears.
  uint32_t path_beside(uint32_t others) const {
    return static_cast<uint32_t>(network.path_hash(PostHost::at(1), PostHost::at(2)) + others) %
           count;
  }
  // Now that paths are mended: of so many ports all have their turns again, after `first` datagrams
  // that those that were left out are tried with.
  void expect_back(uint16_t ports, uint32_t first) {
    const uint64_t before = left_out();
    run_for(PortTurns::kFirstPauseNs);
    post(first);
    ASSERT_TRUE(all_acked());
    left.clear();
    post(3'000);
    ASSERT_TRUE(all_acked());
    EXPECT_EQ(datagrams_by_port().size(), ports);
    EXPECT_EQ(left_out(), before);
  }

  const uint32_t count;
  uint32_t lost_before = 0;
  std::vector<sim::RackId> racks;

 private:
  static PortRange range(uint16_t ports) {
    return ports > 1 ? PortRange{7600, static_cast<uint16_t>(ports - 1)} : PortRange{};
  }
  static sim::NetworkConfig network_config(uint64_t seed) {
    sim::NetworkConfig config = Lab::config({}, seed);
    config.host_link.bytes_per_second = kLinkRate;
    config.host_link.mtu_bytes = 9000;
    return config;
  }
  static sim::NetworkConfig of(uint64_t seed) { return network_config(seed); }
};

// What ports share a path is chance: the fullest path bounds a session whose ports take turns.
TEST(SpreadTest, OnePortHasOnePathAndManyHaveNearlyAllThatTheirTurnsAllow) {
  constexpr uint32_t kPaths = 2;
  constexpr double kPathRate = static_cast<double>(kLinkRate) / kPaths;
  double sum = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    const double one = Paths(kPaths, 1, seed).goodput() / kPathRate;
    EXPECT_LT(one, 1.0);
    EXPECT_GT(one, 0.9);
    for (const uint16_t ports : {uint16_t{4}, uint16_t{16}}) {
      Paths lab(kPaths, ports, seed);
      const double reached = lab.goodput() / kPathRate;
      EXPECT_GT(reached, 0.75 / lab.fullest(ports)) << ports;
      EXPECT_EQ(lab.left_out(), 0U);
      if (ports == 16) sum += reached;
    }
  }
  EXPECT_GT(sum / 4, 1.4) << "of two paths";
}

// A whole path's frames come later than those of the other, again and again.
TEST(SpreadTest, PathsOfDifferentDelayAreNotTakenForLoss) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (const uint64_t slower_ns : {20'000U, 100'000U, 500'000U}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", slower by " + std::to_string(slower_ns));
      Paths lab(2, 8, seed, slower_ns);
      const double reached = lab.goodput() / static_cast<double>(kLinkRate);
      EXPECT_GT(reached, 0.9 * 0.5 / lab.fullest(8));
      EXPECT_LT(lab.lost(), 10U) << "of thousands";
      EXPECT_LT(lab.lost_before, 100U) << "while it learnt how far";
      EXPECT_EQ(lab.left_out(), 0U);
    }
  }
}

// Two senders, each with half of its ports or so on a path of half the other's rate: they share
// what that path lets through, and what waits before it is not taken for lost.
TEST(SpreadTest, TwoSendersShareUnequalPaths) {
  constexpr uint16_t kMany = 16;
  constexpr uint64_t kSlow = kLinkRate / 4;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(2, kMany, seed);
    lab.network.set_rate(lab.network.uplink(lab.racks[0], 1), kSlow);
    const std::array<PostHost*, 2> senders{&lab.a(), &lab.add_sender(kMany)};
    lab.network.set_tap(nullptr, nullptr);
    for (PostHost* sender : senders) {
      for (uint32_t i = 0; i < 40'000; ++i) sender->service.waiting.push_back({kToken, i, 8'000});
    }
    lab.run_for(50 * kMs);
    std::array<double, 2> acked{}, lost{};
    for (size_t i = 0; i < 2; ++i) {
      acked[i] = static_cast<double>(senders[i]->service.acked.size());
      lost[i] = senders[i]->service.lost;
    }
    lab.run_for(100 * kMs);
    for (size_t i = 0; i < 2; ++i) {
      acked[i] = static_cast<double>(senders[i]->service.acked.size()) - acked[i];
      lost[i] = senders[i]->service.lost - lost[i];
      EXPECT_LT(lost[i], 0.001 * acked[i]) << "as the other path is faster";
      EXPECT_EQ(senders[i]->counters.get(Counter::kSourcePortsLeftOut), 0U);
    }
    EXPECT_EQ(lab.network.drops(sim::Drop::kQueueFull), 0U) << "none was lost";
    // What each would have if both had the same, and the slower path all it can carry.
    const uint32_t on_slow = lab.ports_on(kMany, 1)[1] + lab.ports_on(kMany, 3)[1];
    const double fair = 0.1 * kSlow / 8'000 * kMany / on_slow;
    EXPECT_GT(acked[0] + acked[1], 0.9 * 2 * fair);
    EXPECT_GT(std::ranges::min(acked), 0.6 * fair);
    EXPECT_LT(std::ranges::max(acked), 1.5 * fair);
  }
}

// One of the paths takes all that comes, and nothing arrives: the ports on it are left out, and
// have their turns again once it is mended.
TEST(SpreadTest, ABrokenPathCostsWhatItWouldHaveCarried) {
  constexpr uint32_t kPaths = 4;
  constexpr uint16_t kMany = 16;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(kPaths, kMany, seed);
    const uint32_t broken = lab.path_beside(1);
    std::vector<uint32_t> on = lab.ports_on(kMany);
    const uint32_t dead = std::exchange(on[broken], 0);
    ASSERT_GT(dead, 0U);
    lab.network.set_up(lab.network.uplink(lab.racks[0], broken), false);
    const double reached = lab.goodput() / (static_cast<double>(kLinkRate) / kPaths);
    EXPECT_GT(reached, 0.75 * (kMany - dead) / std::ranges::max(on));
    EXPECT_EQ(lab.left_out(), dead);
    EXPECT_EQ(lab.lost(), 0U) << "once it was known";

    ASSERT_TRUE(lab.all_acked());
    lab.network.set_up(lab.network.uplink(lab.racks[0], broken), true);
    lab.expect_back(kMany, 1'000);
    EXPECT_EQ(lab.left_out(), dead);
  }
}

// One of the paths loses three in ten: the ports on it are left out, and come back when it is
// mended.
TEST(SpreadTest, APathThatLosesMuchIsLeftOut) {
  constexpr uint32_t kPaths = 4;
  constexpr uint16_t kMany = 16;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(kPaths, kMany, seed);
    const uint32_t bad = lab.path_beside(1);
    std::vector<uint32_t> on = lab.ports_on(kMany);
    const uint32_t ports = std::exchange(on[bad], 0);
    ASSERT_GT(ports, 0U);
    sim::Faults faults;
    faults.loss = 0.3;
    lab.network.set_faults(lab.network.uplink(lab.racks[0], bad), faults);
    lab.post(40'000, 8'000);
    lab.run_for(100 * kMs);  // until one after the other is judged
    const double reached = lab.goodput() / (static_cast<double>(kLinkRate) / kPaths);
    EXPECT_EQ(lab.left_out(), ports);
    EXPECT_GT(reached, 0.75 * (kMany - ports) / std::ranges::max(on));
    EXPECT_LT(lab.lost(), 20U) << "once it was known";

    ASSERT_TRUE(lab.all_acked());
    lab.network.set_faults(lab.network.uplink(lab.racks[0], bad), {});
    lab.expect_back(kMany, 3'000);
    EXPECT_EQ(lab.left_out(), ports);
  }
}

// The same while another path, or the same one, holds up some of its frames so long that they pass
// for lost until they arrive.
TEST(SpreadTest, APathThatLosesMuchIsLeftOutThoughLossesElsewhereTurnOutToBeNone) {
  constexpr uint32_t kPaths = 4;
  constexpr uint16_t kMany = 16;
  sim::Faults late;
  late.reorder = 0.02;
  late.reorder_delay_ns = 6 * kMs;
  for (const bool same : {false, true}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE((same ? "the same path, seed " : "another path, seed ") + std::to_string(seed));
      Paths lab(kPaths, kMany, seed);
      const uint32_t bad = lab.path_beside(1), slow = lab.path_beside(2);
      const uint32_t ports = lab.ports_on(kMany)[bad];
      ASSERT_GT(std::min(ports, lab.ports_on(kMany)[slow]), 0U);
      sim::Faults faults = same ? late : sim::Faults();
      faults.loss = 0.3;
      lab.network.set_faults(lab.network.uplink(lab.racks[0], bad), faults);
      if (!same) lab.network.set_faults(lab.network.uplink(lab.racks[0], slow), late);
      lab.post(40'000, 8'000);
      lab.run_for(200 * kMs);  // until one after the other is judged
      EXPECT_GE(lab.a().counters.get(Counter::kSpuriousLosses), same ? 5U : 20U);
      EXPECT_EQ(lab.left_out(), ports);
      EXPECT_FALSE(lab.a().service.waiting.empty()) << "it still has something to send";
      lab.left.clear();
      lab.run_for(20 * kMs);
      EXPECT_EQ(lab.datagrams_by_port().size(), kMany - ports);
    }
  }
}

// Chance, and a queue that is full for all, are nothing that one port has.
TEST(SpreadTest, LossesThatAllPortsHaveLeaveNoneOut) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    sim::Faults weather;
    weather.loss = 0.2;
    weather.reorder = 0.2;
    Spread lab({7600, 15}, {}, seed, weather);
    ASSERT_TRUE(lab.connect(kFeatures));
    lab.run_for(kSecond);
    lab.post(4'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_GT(lab.a().service.lost, 1'000U);
    EXPECT_EQ(lab.a().counters.get(Counter::kSourcePortsLeftOut), 0U);
  }
}

}  // namespace
}  // namespace mercury::post
