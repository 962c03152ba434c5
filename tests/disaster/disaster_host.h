// A virtual host on a clock of its own that drifts and leaps, whose control plane is slow to hear
// its engines. It can stand still, be killed and be started again.
//
// Owner/thread: the world. Times are the network's unless named local.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shim/host/sim/virtual_host.h"
#include "tests/disaster/scenario.h"
#include "transport/base/random.h"

namespace mercury::disaster {

// Local time as a function of the network's.
class Clock {
 public:
  Clock(uint64_t shows_ns, int64_t drift_ppm) : local_ns_(shows_ns), drift_ppm_(drift_ppm) {}
  uint64_t local_ns(uint64_t network_ns) const {
    const uint64_t passed_ns = network_ns - since_ns_;
    return local_ns_ + passed_ns + drift_of(passed_ns);
  }
  // The first network time at which the clock shows `local_ns` or more.
  uint64_t network_ns(uint64_t local_ns) const;
  void leap(uint64_t by_ns, uint64_t now_ns) {
    local_ns_ = this->local_ns(now_ns) + by_ns;
    since_ns_ = now_ns;
  }

 private:
  // A scenario's 10 minutes times 5 % fit by far.
  uint64_t drift_of(uint64_t passed_ns) const {
    if (drift_ppm_ == 0) return 0;
    return static_cast<uint64_t>(static_cast<int64_t>(passed_ns) * drift_ppm_ / 1'000'000);
  }
  uint64_t local_ns_;
  uint64_t since_ns_ = 0;
  int64_t drift_ppm_;
};

class DisasterHost {
 public:
  DisasterHost(const Scenario& scenario, uint32_t index, sim::SimNetwork& network);

  void start(uint64_t now_ns);
  void kill();
  void pause(bool still) { still_ = still; }
  void leap(uint64_t by_ns, uint64_t now_ns) {
    clock_.leap(by_ns, now_ns);
    stir();
  }

  bool up() const { return host_.up(); }
  bool runs() const { return up() && !still_; }
  uint32_t life() const { return life_; }  // how often it was started
  HostOf<sim::SimPort>& host() { return host_.host(); }
  JobManager& jobs() { return host().jobs(); }
  uint64_t local_ns(uint64_t now_ns) const { return clock_.local_ns(now_ns); }
  Endpoint endpoint(size_t lane) const { return host_.endpoint(lane); }
  size_t lanes() const { return host_.lanes(); }

  // Something was submitted or commanded: the engines look at once.
  void wake() { awake_ = true; }
  // A port of it has received something, or its NIC has room again.
  void stir() { due_ns_ = 0; }
  bool wants_to_run() const { return awake_ && runs(); }
  // Runs what is due; true if anything was done.
  bool poll(uint64_t now_ns) {
    worked_ = (awake_ || due_ns_ <= now_ns) && runs() && run_due(now_ns);
    return worked_;
  }
  bool worked() const { return worked_; }  // in the last poll()
  // When poll() has something to do without being woken or stirred; kNever while it cannot run.
  uint64_t next_ns(uint64_t now_ns) const { return !runs() ? kNever : awake_ ? now_ns : due_ns_; }

  uint64_t total(Counter counter) const { return host_.total(counter); }  // of this life
  // What is still held for jobs, peers and programs; empty when nothing is.
  std::string held();

 private:
  bool run_due(uint64_t now_ns);
  bool lane_due(size_t lane, uint64_t local_ns);
  uint64_t next_due_ns(uint64_t now_ns);

  const HostPlan plan_;
  Clock clock_;
  Random random_;
  sim::VirtualHost<> host_;
  uint32_t life_ = 0;
  bool still_ = false;
  bool awake_ = false;
  bool worked_ = false;
  uint64_t due_ns_ = 0;  // as far as is known since the last poll that found nothing to do
  uint64_t control_due_ns_ = kNever;  // engines have reported; network time
};

}  // namespace mercury::disaster
