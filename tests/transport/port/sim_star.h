// Hosts on a star of the simulated network, with what was received, for tests of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/port/sim/sim_port.h"

namespace mercury::sim {

inline Endpoint endpoint(uint8_t host, uint16_t port = 7470) {
  return Endpoint{IpAddress::v4(10, 0, 0, host), port};
}

// Hosts on a star; host i has one port at 10.0.0.(i+1).
struct Star {
  explicit Star(int hosts, const NetworkConfig& config = {}, const SimPortConfig& port_config = {})
      : network(config) {
    for (int i = 0; i < hosts; ++i) {
      ids.push_back(network.add_host());
      auto port =
          SimPort::create(network, ids.back(), endpoint(static_cast<uint8_t>(i + 1)), port_config);
      EXPECT_TRUE(port);
      ports.push_back(std::move(*port));
    }
  }

  // Sends a frame of `bytes` numbered `number` (in its first four bytes); false: no room.
  bool send(size_t from, size_t to, uint32_t bytes, uint32_t number = 0) {
    SimPort& port = *ports[from];
    TxFrame frame;
    if (!port.tx_alloc(frame)) return false;
    std::memset(frame.data, 0x5a, bytes);
    if (bytes >= 4) std::memcpy(frame.data, &number, 4);
    port.tx_send(frame, *port.open_path(ports[to]->info().local), bytes);
    port.tx_flush(network.now_ns());
    return true;
  }

  struct Received {
    uint64_t at_ns;
    uint32_t number;
    uint32_t bytes;
    bool ecn_ce;
    bool intact;
  };

  void receive(size_t at) {
    std::array<RxFrame, 32> burst;
    SimPort& port = *ports[at];
    while (uint32_t count = port.rx_burst(burst, network.now_ns())) {
      for (uint32_t i = 0; i < count; ++i) {
        Received one{network.now_ns(), 0, static_cast<uint32_t>(burst[i].payload.size()),
                     burst[i].ecn_ce, true};
        if (one.bytes >= 4) std::memcpy(&one.number, burst[i].payload.data(), 4);
        for (std::byte b : burst[i].payload.subspan(std::min(4u, one.bytes))) {
          one.intact &= b == std::byte{0x5a};
        }
        received.push_back(one);
      }
      port.rx_release();
    }
  }

  // Lets everything happen, receiving at `at`.
  void run(size_t at) {
    while (network.next_event_ns() != kNever) {
      network.advance_to(network.next_event_ns());
      receive(at);
    }
  }

  // Sends `count` frames from 0 to 1 as fast as the NIC takes them.
  void stream(uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count;) {
      while (i < count && send(0, 1, bytes, i)) ++i;
      network.advance_to(network.next_event_ns());
      receive(1);
    }
    run(1);
  }

  uint64_t link_drops(HostId host, Drop reason) {
    return network.stats(network.uplink(host)).drops[static_cast<size_t>(reason)] +
           network.stats(network.downlink(host)).drops[static_cast<size_t>(reason)];
  }

  SimNetwork network;
  std::vector<HostId> ids;
  std::vector<std::unique_ptr<SimPort>> ports;
  std::vector<Received> received;
};

}  // namespace mercury::sim
