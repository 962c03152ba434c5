// A virtual host on a clock of its own that drifts and leaps, whose control plane is slow to hear
// its engines. It can stand still, crash and be started again.
//
// Owner/thread: the world's cluster. Times are the network's unless named local.
#pragma once

#include <cstdint>
#include <functional>
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

class DisasterHost : public sim::VirtualHost<> {
 public:
  DisasterHost(sim::SimNetwork& network, sim::HostId id, uint32_t index, const Scenario& scenario);

  Status start();
  // While it stands still, it does nothing when it is visited. Its programs do, if it is but the
  // daemon.
  void pause(bool still, bool daemon_alone);
  // What a program asks of its daemon: at once, or as soon as that goes on. Not of its next life.
  void ask(std::function<void()> call);
  void leap(uint64_t by_ns, uint64_t now_ns) { clock_.leap(by_ns, now_ns); }

  bool runs() const { return up() && !still_; }
  bool programs_run() const { return up() && (!still_ || daemon_alone_); }
  uint32_t life() const { return life_; }  // how often it was started
  JobManager& jobs() { return host().jobs(); }
  uint64_t local_ns(uint64_t now_ns) const { return clock_.local_ns(now_ns); }

  // Something was submitted or commanded: when it is visited, all of its engines look.
  void stir() { stirred_ = true; }
  // A pass of each engine that has something to do, and the control plane if its time has come.
  sim::Visit visit(uint64_t now_ns, bool one_pass);
  // Its control plane hears nothing before it is visited.
  uint64_t attend(uint64_t) { return kNever; }
  bool worked() const { return worked_; }  // when it was last visited

  // Whether an engine of its had no room for one more session, now or after `since_ns`.
  bool was_full(uint64_t since_ns);
  // What is still held for jobs, peers and programs; empty when nothing is.
  std::string held();

 private:
  bool lane_due(size_t lane, uint64_t local_ns);
  uint64_t next_due_ns(uint64_t now_ns);
  void note_full(size_t lane, uint64_t now_ns);

  const HostPlan plan_;
  const uint32_t full_at_;     // sessions of an engine
  uint64_t full_ns_ = kNever;  // when one last had so many, in all lives
  const bool sealed_;
  const bool encrypted_;
  Clock clock_;
  Random random_;
  uint32_t life_ = 0;
  bool still_ = false;
  bool daemon_alone_ = false;
  std::vector<std::function<void()>> asked_;  // while it stood still
  bool stirred_ = false;
  bool worked_ = false;
  uint64_t control_due_ns_ = kNever;  // engines have reported
};

}  // namespace mercury::disaster
