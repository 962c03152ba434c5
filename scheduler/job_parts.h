// Who may take how much of a pool that all jobs of an engine use: each job has some nodes of its
// own, which nobody else takes, be the job here or not; of the others, which all share, it may take
// more only while it has fewer of them than are free. So a job that is alone has about half of
// those, and however many jobs take as much as they may, one that comes later finds its own.
//
// Owner/thread: one engine.
// Paper: Kamoun and Kleinrock, "Analysis of Shared Finite Storage in a Computer Network Node
// Environment under General Traffic Conditions", Transactions on Communications 1980 (sharing with
// a minimum allocation); for what is shared Choudhury and Hahne, "Dynamic Queue Length Thresholds
// for Shared-Memory Packet Switches", Transactions on Networking 1998, with alpha = 1.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class JobParts {
 public:
  // A fifth of all nodes are jobs' own: a job that is alone gets two fifths and its own, about what
  // it had if a half of all were its.
  JobParts(uint32_t all, uint32_t jobs) : own_(all / (5 * jobs)), kept_(own_ * jobs) {}

  uint32_t own() const noexcept { return own_; }
  // `held` by a job becomes `now`.
  void change(uint32_t& held, uint32_t now) noexcept {
    kept_ += std::min(own_, held);
    kept_ -= std::min(own_, now);
    held = now;
  }
  // Whether a job that has `held` may take so many more when so many are free, and leave `reserve`
  // of what is shared.
  bool may_take(uint32_t held, uint32_t more, uint32_t available, uint32_t reserve) const noexcept {
    if (uint64_t{held} + more <= own_) return true;
    const uint64_t beyond = held - std::min(own_, held);
    return beyond + more + reserve + kept_ <= available;
  }
  // As many as must be free that it is certain that a job may take one.
  static uint32_t plenty(uint32_t all, uint32_t jobs, uint32_t reserve) noexcept {
    return static_cast<uint32_t>((uint64_t{all} + JobParts(all, jobs).kept_ + reserve) / 2) + 1;
  }

 private:
  uint32_t own_;
  uint32_t kept_;  // of their own that jobs have not taken
};

}  // namespace mercury
