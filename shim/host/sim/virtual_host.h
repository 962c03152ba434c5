// A host on a simulated network: the production control plane and engines (shim/host/host.h), whose
// wire is simulated. It works when it is told to (virtual_cluster.h), is lost from one moment to
// the next, and started again.
//
// Processor time does not pass while an engine works, unless frames are given a cost (processor.h).
//
// Owner/thread: the network's. The network outlives its hosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "shim/host/host.h"
#include "shim/host/sim/processor.h"
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
  // It is a second program on this host, which has as many lanes: at its address, on its links.
  std::optional<uint32_t> beside;
  // Of each; the host sets its tag, which is `index`, its counters and its source ports.
  SimPortConfig port;
  uint32_t source_ports = 1;  // of each engine, its own among them; not `beside` another
  HostConfig host;
  // Of an engine's time, for each frame received or sent. Not under Look::kEveryHost, which would
  // have an engine look, as long as commands wait for it, that may not work yet.
  uint64_t frame_cost_ns = 0;
  uint64_t command_cost_ns = 0;  // the same, for each command of the control plane
};

// What came of a visit to a host.
struct Visit {
  uint32_t work = 0;          // how much was done: frames, commands and the like
  bool reported = false;      // engines, to a control plane that is to hear of it now
  uint64_t next_ns = kNever;  // when the next one is due, if nothing happens to the host before
};

template <Port P = SimPort>
class VirtualHost {
 public:
  // The port that an engine is to drive, made of the simulated one.
  using Decorate = std::function<std::unique_ptr<P>(std::unique_ptr<SimPort> port)>;

  // `index` decides its addresses, unless it is beside another. `random` gives nonces and
  // incarnations in all its lives; `decorate` may be empty if P is SimPort. It is down until
  // start().
  VirtualHost(SimNetwork& network, HostId id, uint32_t index, VirtualHostConfig config,
              std::function<uint64_t()> random, Decorate decorate = {})
      : network_(network),
        id_(id),
        index_(index),
        config_(std::move(config)),
        random_(std::move(random)),
        decorate_(std::move(decorate)) {}

  // Begins a life. Errors: kSystem (descriptors); those of SimPort::create.
  Status start();
  // Gone, with all that it knew, and what its NICs held.
  void crash() {
    ports_.clear();
    host_.reset();
  }

  // Its engines work: one pass of each, or as long as they have something to do. It is up.
  Visit visit(uint64_t now_ns, bool one_pass) {
    Visit visit;
    for (size_t lane = 0; lane < lanes(); ++lane) {
      visit.next_ns = std::min(visit.next_ns, run(lane, now_ns, one_pass, visit));
    }
    return visit;
  }
  // Its control plane hears what its engines reported, and what time it is. Returns when it has to
  // again, if they report nothing before. It is up.
  uint64_t attend(uint64_t now_ns) {
    if (deaf_until_ns_ > now_ns) return deaf_until_ns_;
    host_->process(now_ns);
    return host_->next_deadline_ns();
  }
  // Until then its control plane does nothing; its engines go on.
  void deafen(uint64_t until_ns) { deaf_until_ns_ = until_ns; }

  bool up() const { return host_ != nullptr; }
  HostOf<P>& host() const { return *host_; }  // up
  Lane<P>& lane(size_t lane) const { return host_->lane(lane); }
  SimPort& port(size_t lane) const { return *ports_[lane]; }  // without what decorates it
  size_t lanes() const { return config_.lanes; }
  Endpoint endpoint(size_t lane) const {
    const size_t port = kVirtualUdpPort + (config_.beside ? config_.lanes : 0) + lane;
    return {virtual_address(config_.beside.value_or(index_), config_.ipv6),
            static_cast<uint16_t>(port)};
  }
  HostId id() const { return id_; }
  bool commands_waiting() const {  // for an engine
    for (size_t lane = 0; up() && lane < lanes(); ++lane) {
      if (host_->lane(lane).engine().commands_waiting() > 0) return true;
    }
    return false;
  }
  // Over the engines of this life.
  uint64_t total(Counter counter) const {
    uint64_t sum = 0;
    for (size_t lane = 0; up() && lane < lanes(); ++lane) sum += host_->counters(lane).get(counter);
    return sum;
  }

 protected:
  // Whether an engine may do a pass now; if not, it is to be asked again at free_ns().
  bool may_work(size_t lane, uint64_t now_ns) {
    const SimPort& port = *ports_[lane];
    const uint32_t burst = frames_per_pass(kBurst, port.info().max_udp_payload);
    return processors_[lane].may_work(now_ns, port.rx_waiting_frames(), burst);
  }
  uint64_t free_ns(size_t lane) const { return processors_[lane].free_ns(); }
  // A pass, of an engine that may: whose clock shows `local_ns` at `now_ns`. Returns its work.
  uint32_t pass(size_t number, uint64_t now_ns, uint64_t local_ns) {
    Lane<P>& lane = host_->lane(number);
    if (config_.frame_cost_ns == 0 && config_.command_cost_ns == 0) return lane.poll(local_ns);
    const Counters& counters = lane.counters();
    const auto frames = [&counters] {
      return counters.get(Counter::kRxFrames) + counters.get(Counter::kTxFrames);
    };
    const uint64_t before = frames();
    const size_t commands = std::min<size_t>(lane.engine().commands_waiting(), kCommandsPerPass);
    const uint32_t work = lane.poll(local_ns);
    processors_[number].worked(now_ns, frames() - before, commands);
    return work;
  }

 private:
  ResetKey reset_key(uint32_t life) const { return reset_key_of(uint64_t{index_} << 32 | life); }
  // Returns when the engine has to run next, unless something happens.
  uint64_t run(size_t number, uint64_t now_ns, bool one_pass, Visit& visit);

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
  uint64_t deaf_until_ns_ = 0;
  uint32_t life_ = 0;            // how many it has had
  std::vector<SimPort*> ports_;  // the host's
  std::vector<Processor> processors_;
  std::unique_ptr<HostOf<P>> host_;
};

template <Port P>
Status VirtualHost<P>::start() {
  std::vector<typename HostOf<P>::Part> parts;
  for (size_t lane = 0; lane < config_.lanes; ++lane) {
    auto counters = std::make_unique<Counters>();
    SimPortConfig port = config_.port;
    port.tag = index_;
    port.source_ports = source_ports(kVirtualUdpPort, static_cast<uint32_t>(config_.lanes),
                                     static_cast<uint32_t>(lane), config_.source_ports);
    port.counters = counters.get();
    auto made = SimPort::create(network_, id_, endpoint(lane), port);
    if (!made) return made.error();
    ports_.push_back(made->get());
    parts.push_back({std::move(counters), decorated(std::move(*made))});
  }
  HostConfig host = config_.host;
  // As a daemon's, whose next life finds them.
  host.lane.engine.reset_keys = {reset_key(life_ + 1), reset_key(life_)};
  ++life_;
  processors_.assign(config_.lanes, Processor(config_.frame_cost_ns, config_.command_cost_ns));
  host_ = std::make_unique<HostOf<P>>(std::move(parts), host, random_);
  if (host_->opened()) return {};
  return Error(Errc::kSystem, "too many hosts for this process's limit of open files");
}

template <Port P>
uint64_t VirtualHost<P>::run(size_t number, uint64_t now_ns, bool one_pass, Visit& visit) {
  Lane<P>& lane = host_->lane(number);
  const SimPort& port = *ports_[number];
  bool more = true;
  while (more && may_work(number, now_ns)) {
    visit.reported = visit.reported || lane.engine().commands_waiting() > 0;
    const uint32_t work = pass(number, now_ns, now_ns);
    visit.work += work;
    // A pass that did less than any of its limits has left nothing.
    more = !one_pass && (work >= kLeastBurst || port.rx_waiting());
  }
  visit.reported = lane.engine().take_moved() != 0 || visit.reported;
  return more ? free_ns(number) : lane.engine().next_deadline_ns();
}

}  // namespace mercury::sim

// Compiled once (virtual_cluster.cc), on plain simulated ports: an engine takes longer than any of
// its users.
namespace mercury {
extern template class Engine<sim::SimPort, HostServices>;
extern template class Lane<sim::SimPort>;
extern template class HostOf<sim::SimPort>;
extern template class sim::VirtualHost<sim::SimPort>;
}  // namespace mercury
