// Faults of a simulated network that come and go at set times: partitions, links that flap, black
// holes, weather that worsens. Overlapping faults add up; when the last one ends, the network is as
// it was before.
//
// How to drive it: apply(now) whenever next_ns() has come; it changes nothing in between.
//
// Owner/thread: the SimNetwork's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/base/types.h"
#include "transport/port/sim/sim_network.h"

namespace mercury::sim {

enum class NetworkFaultKind : uint8_t {
  kPartition,  // `host` and `other` (or everyone else) do not hear each other
  kOneWay,     // what `host` sends does not reach `other` (or anyone)
  kFlap,       // the host's links go down and up again every period_ns: first down
  kBlackHole,  // IP packets above mtu_bytes vanish on the host's links, unknown to its port
  kWeather,    // `faults` are added to those of the host's links
};

struct NetworkFault {
  static constexpr uint32_t kEveryone = ~uint32_t{0};

  NetworkFaultKind kind = NetworkFaultKind::kPartition;
  uint64_t from_ns = 0;
  uint64_t until_ns = kNever;
  uint32_t host = 0;  // index, in the order of add_host; kEveryone is for kWeather only
  uint32_t other = kEveryone;
  uint64_t period_ns = 10'000'000;  // kFlap: half of it down, half of it up
  uint32_t mtu_bytes = 1'280;       // kBlackHole
  Faults faults;                    // kWeather
};

class FaultSchedule {
 public:
  // Remembers the links of all hosts that the network has; the network outlives the schedule.
  FaultSchedule(SimNetwork& network, uint32_t hosts);

  void add(const NetworkFault& fault) { faults_.push_back(fault); }
  // When something changes after the last apply(); kNever if nothing will.
  uint64_t next_ns() const noexcept { return next_ns_; }
  // Makes the network what it is at `now_ns`. Times do not go back.
  void apply(uint64_t now_ns);
  // Call after the last add().
  void start(uint64_t now_ns) { apply(now_ns); }

 private:
  struct HostLinks {
    LinkConfig up;
    LinkConfig down;
  };
  void apply_to_links(uint64_t now_ns, uint32_t host);
  void block(const NetworkFault& fault);

  SimNetwork& network_;
  std::vector<HostLinks> base_;
  std::vector<NetworkFault> faults_;
  uint64_t next_ns_ = kNever;
};

}  // namespace mercury::sim
