// Several paths of equal cost on the simulated network, and frames from several ports.
#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "tests/transport/port/sim_star.h"

namespace mercury::sim {
namespace {

// One flow takes one of a rack's paths, whatever it is; many take all of them.
TEST(SimPaths, ARacksPathIsChosenByAddressesAndPorts) {
  constexpr uint32_t kPaths = 4;
  NetworkConfig config;
  config.seed = 5;
  SimNetwork network(config);
  const RackId here = network.add_rack({}, {}, kPaths), there = network.add_rack({}, {}, kPaths);
  SimPortConfig with_sources;
  with_sources.source_ports = {7600, 15};
  auto a = std::move(
      *SimPort::create(network, network.add_host({}, {}, here), endpoint(1), with_sources));
  auto b = std::move(*SimPort::create(network, network.add_host({}, {}, there), endpoint(2)));
  std::vector<PathId> paths{*a->open_path(endpoint(2))};
  for (uint16_t i = 0; i < 15; ++i) paths.push_back(*a->open_path_from(paths[0], i));
  EXPECT_FALSE(a->open_path_from(paths[0], 15));
  std::array<uint64_t, kPaths> expected{};
  std::vector<uint16_t> heard_from;
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto port = static_cast<uint16_t>(i == 0 ? 7470 : 7599 + i);
    for (uint32_t n = 0; n < 3; ++n) {
      ++expected[network.path_hash(endpoint(1, port), endpoint(2)) % kPaths];
      TxFrame frame;
      ASSERT_TRUE(a->tx_alloc(frame));
      a->tx_send(frame, paths[i], 100);
      a->tx_flush(network.now_ns());
      while (network.next_event_ns() != kNever) network.advance_to(network.next_event_ns());
      std::array<RxFrame, 4> burst;
      ASSERT_EQ(b->rx_burst(burst, network.now_ns()), 1U);
      EXPECT_EQ(burst[0].source, endpoint(1, port));
      b->rx_release();
    }
  }
  for (uint32_t path = 0; path < kPaths; ++path) {
    EXPECT_GT(expected[path], 0U);
    EXPECT_EQ(network.stats(network.uplink(here, path)).frames, expected[path]);
    EXPECT_EQ(network.stats(network.downlink(there, path)).frames, expected[path]);
  }
}

// What is sent there arrives nowhere, and a translator takes them along.
TEST(SimPaths, NobodyHearsAtSourcePorts) {
  SimPortConfig with_sources;
  with_sources.source_ports = {7600, 2};
  Star star(2, {}, with_sources);
  star.network.inject(endpoint(2), endpoint(1, 7601), std::array<std::byte, 4>{});
  star.run(0);
  EXPECT_TRUE(star.received.empty());
  EXPECT_EQ(star.network.drops(Drop::kNoEndpoint), 1U);
  const PathId path = *star.ports[0]->open_path_from(*star.ports[0]->open_path(endpoint(2)), 1);
  for (const Endpoint& seen : {endpoint(9, 9000), endpoint(1)}) {
    ASSERT_TRUE(star.network.show_as(*star.ports[0], seen));
    TxFrame frame;
    ASSERT_TRUE(star.ports[0]->tx_alloc(frame));
    star.ports[0]->tx_send(frame, path, 4);
    star.ports[0]->tx_flush(star.network.now_ns());
    while (star.network.next_event_ns() != kNever) {
      star.network.advance_to(star.network.next_event_ns());
    }
    std::array<RxFrame, 4> burst;
    ASSERT_EQ(star.ports[1]->rx_burst(burst, star.network.now_ns()), 1U);
    EXPECT_EQ(burst[0].source, (Endpoint{seen.ip, 7601}));
    star.ports[1]->rx_release();
  }
}

}  // namespace
}  // namespace mercury::sim
