// A host on a simulated network: the production control plane and engines (shim/host/host.h), whose
// wire is simulated. It is lost from one moment to the next, and started again.
//
// Owner/thread: the network's. The network outlives its hosts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "shim/host/host.h"
#include "transport/port/sim/sim_network.h"
#include "transport/port/sim/sim_port.h"

namespace mercury::sim {

inline constexpr uint16_t kVirtualUdpPort = 7470;  // of a host's first engine; others have the next

// 10.0.0.1, 10.0.0.2, ..., or fd00::1, fd00::2, ...
inline IpAddress virtual_address(uint32_t index, bool ipv6) {
  if (!ipv6) {
    return IpAddress::v4(10, 0, static_cast<uint8_t>(index / 250),
                         static_cast<uint8_t>(index % 250 + 1));
  }
  char text[40];
  std::snprintf(text, sizeof text, "fd00::%x", index + 1);
  return *IpAddress::parse(text);
}

struct VirtualHostConfig {
  size_t lanes = 1;  // engines, each with a port of its own
  bool ipv6 = false;
  SimPortConfig port;  // of each; the host sets its tag, which is `index`, and its counters
  HostConfig host;
};

template <Port P = SimPort>
class VirtualHost {
 public:
  // The port that an engine is to drive, made of the simulated one.
  using Decorate = std::function<std::unique_ptr<P>(std::unique_ptr<SimPort> port)>;

  // `index` decides its addresses. `random` gives nonces and incarnations in all its lives;
  // `decorate` may be empty if P is SimPort. It is down until start().
  VirtualHost(SimNetwork& network, HostId id, uint32_t index, VirtualHostConfig config,
              std::function<uint64_t()> random, Decorate decorate = {})
      : network_(network),
        id_(id),
        index_(index),
        config_(std::move(config)),
        random_(std::move(random)),
        decorate_(std::move(decorate)) {}

  // Begins a life. Errors: kSystem (descriptors); those of SimPort::create.
  Status start() {
    std::vector<typename HostOf<P>::Part> parts;
    for (size_t lane = 0; lane < config_.lanes; ++lane) {
      auto counters = std::make_unique<Counters>();
      SimPortConfig port = config_.port;
      port.tag = index_;
      port.counters = counters.get();
      auto made = SimPort::create(network_, id_, endpoint(lane), port);
      if (!made) return made.error();
      ports_.push_back(made->get());
      parts.push_back({std::move(counters), decorated(std::move(*made))});
    }
    host_ = std::make_unique<HostOf<P>>(std::move(parts), config_.host, random_);
    if (host_->opened()) return {};
    return Error(Errc::kSystem, "too many hosts for this process's limit of open files");
  }
  // Gone, with all that it knew, and what its NICs held.
  void crash() {
    ports_.clear();
    host_.reset();
  }

  bool up() const { return host_ != nullptr; }
  HostOf<P>& host() const { return *host_; }  // up
  Lane<P>& lane(size_t lane) const { return host_->lane(lane); }
  SimPort& port(size_t lane) const { return *ports_[lane]; }  // without what decorates it
  size_t lanes() const { return config_.lanes; }
  Endpoint endpoint(size_t lane) const {
    return {virtual_address(index_, config_.ipv6), static_cast<uint16_t>(kVirtualUdpPort + lane)};
  }
  HostId id() const { return id_; }
  // Over the engines of this life.
  uint64_t total(Counter counter) const {
    uint64_t sum = 0;
    for (size_t lane = 0; up() && lane < lanes(); ++lane) sum += host_->counters(lane).get(counter);
    return sum;
  }

 private:
  std::unique_ptr<P> decorated(std::unique_ptr<SimPort> port) {
    if constexpr (std::is_same_v<P, SimPort>) {
      return decorate_ ? decorate_(std::move(port)) : std::move(port);
    } else {
      return decorate_(std::move(port));
    }
  }

  SimNetwork& network_;
  const HostId id_;
  const uint32_t index_;
  const VirtualHostConfig config_;
  const std::function<uint64_t()> random_;
  const Decorate decorate_;
  std::vector<SimPort*> ports_;  // the host's
  std::unique_ptr<HostOf<P>> host_;
};

}  // namespace mercury::sim
