// Two hosts of the echo service on a simulated network.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/transport/engine/echo_host.h"
#include "transport/port/sim/sim_port.h"

namespace mercury::echo {

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kSecond = 1'000 * kMs;
inline constexpr Token kToken = 7;

inline sim::NetworkConfig config_of(uint64_t seed, uint32_t mtu_bytes = 9000) {
  sim::NetworkConfig config;
  config.seed = seed;
  config.host_link.mtu_bytes = mtu_bytes;
  return config;
}

// Two hosts, of which `a` connects to `b`.
struct Lab {
  explicit Lab(uint64_t seed, const StreamConfig& streams = {}, uint32_t mtu_bytes = 9000,
               EngineConfig config = {})
      : network(config_of(seed, mtu_bytes)) {
    for (uint8_t i = 1; i <= 2; ++i) {
      ids.push_back(network.add_host());
      hosts.emplace_back();
      start(i - 1U, config, i, streams);
    }
  }
  // A life of the host with this index, after the last one, if there was one, ended without a word.
  void start(size_t index, EngineConfig config, uint64_t seed, const StreamConfig& streams = {},
             sim::SimPortConfig port_config = {}) {
    hosts[index].reset();
    auto counters = std::make_unique<Counters>();
    port_config.counters = counters.get();
    auto port = sim::SimPort::create(network, ids[index], at(index), port_config);
    config.session_seed = seed;
    hosts[index] = std::make_unique<EchoHost<sim::SimPort>>(std::move(counters), std::move(*port),
                                                            config, streams);
  }
  static Endpoint at(size_t index) {
    return {IpAddress::v4(10, 0, 0, static_cast<uint8_t>(index + 1)), 7470};
  }
  EchoHost<sim::SimPort>& a() { return *hosts[0]; }
  EchoHost<sim::SimPort>& b() { return *hosts[1]; }

  template <class F>
  bool run(F done, uint64_t limit_ns = 60 * kSecond) {
    const uint64_t end = network.now_ns() + limit_ns;
    while (network.now_ns() < end) {
      for (bool work = true; work;) {
        work = false;
        for (auto& host : hosts) work = host->poll(network.now_ns()) > 0 || work;
      }
      watch();
      if (done()) return true;
      uint64_t next = network.next_event_ns();
      for (auto& host : hosts) next = std::min(next, host->engine.next_deadline_ns());
      network.advance_to(std::min(end, std::max(next, network.now_ns() + 1)));
    }
    return false;
  }
  void watch() {
    for (size_t i = 0; i < hosts.size(); ++i) {
      for (const auto& [token, session] : hosts[i]->service.sessions) {
        most_bytes[i] = std::max(most_bytes[i], hosts[i]->service.host->stream_bytes(session));
      }
    }
  }
  void run_for(uint64_t ns) {
    run([] { return false; }, ns);
  }
  bool connect(Token token = kToken) {
    a().connect(token, b().port->info().local);
    return run([&] { return a().service.sessions.count(token) == 1 && b().opened.size() > 0; });
  }
  // With a connected session: all of it comes back.
  void expect_echoes(uint32_t streams, uint64_t bytes) {
    a().done.clear();
    a().send(StartEcho{kToken, streams, bytes});
    ASSERT_TRUE(run([&] { return !a().done.empty(); }));
    EXPECT_EQ(a().done[0].intact, streams);
  }
  size_t bytes_held(size_t host) {
    size_t held = 0;
    for (const auto& [token, session] : hosts[host]->service.sessions) {
      held += hosts[host]->service.host->stream_bytes(session);
    }
    return held;
  }
  std::vector<Errc> closed_codes(EchoHost<sim::SimPort>& host) {
    std::vector<Errc> codes;
    for (const auto& [key, stream] : host.service.streams) {
      codes.push_back(stream.closed.value_or(Errc::kAgain));
    }
    return codes;
  }

  sim::SimNetwork network;
  std::vector<sim::HostId> ids;
  std::vector<std::unique_ptr<EchoHost<sim::SimPort>>> hosts;
  std::array<size_t, 2> most_bytes{};
};

}  // namespace mercury::echo
