// A few production hosts on the simulated network, with an eavesdropper on every wire who may say
// anything to anyone: the ground that the fuzzers of the engine and of the attach socket stand on.
// Everything is decided by the input; nothing reads a clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "shim/host/sim/virtual_cluster.h"
#include "tests/fuzz/ear.h"
#include "tests/fuzz/fuzz_input.h"
#include "transport/port/port_decorator.h"

namespace mercury::fuzz {

inline constexpr uint64_t kSecond = 1'000'000'000;

// A SimPort with the ear at its receiving side.
class TapPort : public PortDecorator<sim::SimPort> {
 public:
  TapPort(std::unique_ptr<sim::SimPort> port, Ear& ear)
      : PortDecorator(std::move(port)), ear_(ear) {}

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    const uint32_t count = PortDecorator::rx_burst(burst, now_ns);
    for (uint32_t i = 0; i < count; ++i) ear_.hear(burst[i].source, info().local, burst[i].payload);
    return count;
  }

 private:
  Ear& ear_;
};
static_assert(Port<TapPort>);

using FuzzHost = HostOf<TapPort>;

class Cluster {
 public:
  Cluster();

  // Hosts are 10.0.0.1, 10.0.0.2, ..., each with one engine on port 7470.
  FuzzHost& add_host(const JobPolicy& policy);
  // An address without an engine, whose arrivals are heard: the attacker's own.
  Endpoint add_listener();
  FuzzHost& host(size_t index) { return cluster_[static_cast<uint32_t>(index)].host(); }
  size_t host_count() const { return cluster_.size(); }
  Endpoint address(size_t index) const {
    return {sim::virtual_address(static_cast<uint32_t>(index), false), sim::kVirtualUdpPort};
  }

  // Each pass of the world also calls this: programs collect their completions.
  std::function<void()> each_pass;
  // Until `until` holds; false if `limit_ns` of virtual time passed first. Aborts when engines work
  // for ever without time passing.
  bool run(const std::function<bool()>& until, uint64_t limit_ns);
  void run_for(uint64_t ns);
  // The host's control plane does nothing for so long; its engine goes on.
  void stall(size_t host, uint64_t ns) {
    cluster_[static_cast<uint32_t>(host)].deafen(now_ns() + ns);
  }

  // The attacker's frame.
  void inject(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes,
              uint64_t delay_ns = 0);

  sim::SimNetwork& network() { return cluster_.network(); }
  Ear& ear() { return ear_; }
  uint64_t now_ns() const { return cluster_.now_ns(); }
  // Once the attacker's last frame has arrived, nothing is left of any session, job or frame after
  // `limit_ns` at most.
  void must_become_empty(uint64_t limit_ns);

 private:
  void after_round(uint32_t round);
  // Whether it holds for every host.
  bool all(bool (*holds)(FuzzHost& host));

  Ear ear_;
  sim::VirtualCluster<sim::VirtualHost<TapPort>> cluster_;
  std::unique_ptr<TapPort> listener_;
  uint64_t last_injected_ns_ = 0;  // when the attacker's last frame arrives
};

}  // namespace mercury::fuzz

// Compiled once, as those on plain ports are.
namespace mercury {
extern template class Engine<fuzz::TapPort, HostServices>;
extern template class Lane<fuzz::TapPort>;
extern template class HostOf<fuzz::TapPort>;
extern template class sim::VirtualHost<fuzz::TapPort>;
extern template class sim::VirtualCluster<sim::VirtualHost<fuzz::TapPort>>;
}  // namespace mercury
