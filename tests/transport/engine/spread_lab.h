// A host that sends datagrams from several source ports, and one that takes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tests/transport/engine/post_lab.h"
#include "transport/wire/source_ports.h"

namespace mercury::post {

inline constexpr uint32_t kFeatures = wire::kFeatureSourcePorts | wire::kFeatureResets;
inline constexpr uint32_t kSealed = kFeatures | wire::kFeatureSeals | wire::kFeatureMoves;
inline constexpr uint32_t kEncrypted =
    kSealed | wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption;
inline constexpr PortRange kPorts{7600, 3};  // beside the one at which `a` hears

inline sim::SimPortConfig from(const PortRange& ports) {
  sim::SimPortConfig config;
  config.source_ports = ports;
  return config;
}

struct Seen {
  uint16_t source_port = 0;
  wire::FrameType type{};
  bool spread = false;  // says its flag
};

// `a` sends to `b`. What leaves `a`'s NIC is noted.
struct Spread : Lab {
  explicit Spread(const PortRange& of_a = kPorts, const PortRange& of_b = {}, uint64_t seed = 1,
                  const sim::Faults& faults = {})
      : Spread(config(faults, seed)) {
    add(network.add_host(), with_keys(1), from(of_a));
    add(network.add_host(), with_keys(1), from(of_b));
  }
  explicit Spread(const sim::NetworkConfig& config) : Lab(config) { network.set_tap(see, this); }
  static EngineConfig with_keys(unsigned char life) {
    EngineConfig config;
    config.reset_keys.own = ResetKey{life};
    if (life > 1) config.reset_keys.last = ResetKey{static_cast<unsigned char>(life - 1)};
    return config;
  }
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> frame) {
    Spread& lab = *static_cast<Spread*>(context);
    const auto type = static_cast<wire::FrameType>(frame[3]);
    if (type == wire::FrameType::kReset) lab.reset_at.push_back(target);
    if (target != PostHost::at(2)) return;
    const bool spread = (frame[5] & std::byte{wire::kFlagSpread}) != std::byte{0};
    lab.left.push_back({source.port, type, wire::is_datagram(type) && spread});
    if (wire::is_datagram(type)) lab.datagrams.emplace_back(frame.begin(), frame.end());
  }
  void post(uint32_t count, uint32_t bytes = 1000) {
    for (uint32_t i = 0; i < count; ++i) a().service.waiting.push_back({kToken, next++, bytes});
  }
  // Sent now, with the flag or without it; null: none was.
  const std::vector<std::byte>* datagram_that_is(bool spread) {
    post(40);
    run_for(kMs / 2);
    const auto found = std::ranges::find_if(datagrams, [spread](const auto& frame) {
      return ((frame[5] & std::byte{wire::kFlagSpread}) != std::byte{0}) == spread;
    });
    return found == datagrams.end() ? nullptr : &*found;
  }
  bool all_acked() {
    return run([this] { return a().service.acked.size() == next; });
  }
  std::map<uint16_t, uint32_t> datagrams_by_port() const {
    std::map<uint16_t, uint32_t> counts;
    for (const Seen& one : left) counts[one.source_port] += wire::is_datagram(one.type) ? 1 : 0;
    std::erase_if(counts, [](const auto& count) { return count.second == 0; });
    return counts;
  }
  uint64_t dropped(Counter counter) { return b().counters.get(counter); }

  uint32_t next = 0;
  std::vector<Seen> left;
  std::vector<Endpoint> reset_at;  // where RESETs went
  std::vector<std::vector<std::byte>> datagrams;
};

}  // namespace mercury::post
