// How long an engine without work looks for some before it sleeps.
//
// Where programs' sockets carried bytes lately more are about to come, but an answer takes longer
// than a chunk, and a sleep costs its wake-up on both sides. So it looks on for a while there, as
// long as that finds something: on a processor that it shares with the programs it would only keep
// them from answering.
//
// Owner/thread: one engine's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class Spin {
 public:
  static constexpr uint64_t kSocketsLatelyNs = 1'000'000;
  static constexpr uint64_t kSocketTimes = 5;  // as long as without sockets
  static constexpr uint32_t kMostDoublings = 6;

  explicit Spin(uint64_t base_ns) : base_ns_(base_ns) {}

  // Whether to look again, after so long without work. `sockets_ns` ago bytes were carried.
  bool looks_on(uint64_t idle_ns, uint64_t sockets_ns) noexcept {
    if (idle_ns < base_ns_) return true;
    if (rests_ > 0 || sockets_ns >= kSocketsLatelyNs) return false;
    if (idle_ns >= kSocketTimes * base_ns_) return false;
    longer_ = true;
    return true;
  }
  void found() noexcept {
    if (longer_) tries_in_vain_ = 0;
    longer_ = false;
  }
  // It sleeps.
  void gave_up() noexcept {
    if (longer_) {
      tries_in_vain_ = std::min(tries_in_vain_ + 1, kMostDoublings);
      rests_ = (1U << tries_in_vain_) - 1;
    } else if (rests_ > 0) {
      --rests_;
    }
    longer_ = false;
  }

 private:
  uint64_t base_ns_;
  uint32_t tries_in_vain_ = 0;  // one after another
  uint32_t rests_ = 0;          // so many sleeps come before the next
  bool longer_ = false;         // it has looked on since there was work
};

}  // namespace mercury
