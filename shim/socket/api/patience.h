// What is left of the time that a call was given to wait, for one that waits more than once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>

#include "shim/socket/api/now.h"

namespace mercury::sockets {

// Has no destructor: a thread may be cancelled while the kernel waits.
class Patience {
 public:
  // As poll() has it: negative is for ever. What needs no clock reads none.
  explicit Patience(int ms)
      : until_ns_(ms < 0    ? kForever
                  : ms == 0 ? 0
                            : now_ns() + static_cast<uint64_t>(ms) * kNsOfMs) {}
  // As ppoll() has it: null is for ever. What the kernel refuses is never waited for again.
  explicit Patience(const timespec* time)
      : until_ns_(!time                                     ? kForever
                  : time->tv_sec > kMostSeconds             ? kForever
                  : time->tv_sec < 0 || time->tv_nsec < 0   ? 0
                  : time->tv_sec == 0 && time->tv_nsec == 0 ? 0
                                                            : now_ns() + ns_of(*time)) {}

  bool is_spent() const { return until_ns_ != kForever && left_ns() == 0; }
  int left_ms() const {  // whole ones, the last rounded up
    if (until_ns_ == kForever) return -1;
    return static_cast<int>(
        std::min<uint64_t>((left_ns() + kNsOfMs - 1) / kNsOfMs, std::numeric_limits<int>::max()));
  }
  // In `out`, or null.
  const timespec* left(timespec& out) const {
    if (until_ns_ == kForever) return nullptr;
    const uint64_t ns = left_ns();
    out = {.tv_sec = static_cast<time_t>(ns / kNsOfSecond),
           .tv_nsec = static_cast<long>(ns % kNsOfSecond)};
    return &out;
  }

 private:
  static constexpr uint64_t kNsOfMs = 1'000'000, kNsOfSecond = 1'000'000'000;
  static constexpr uint64_t kForever = std::numeric_limits<uint64_t>::max();
  static constexpr time_t kMostSeconds = 1'000'000'000;  // 31 years; so nothing overflows

  static uint64_t ns_of(const timespec& time) {
    return static_cast<uint64_t>(time.tv_sec) * kNsOfSecond + static_cast<uint64_t>(time.tv_nsec);
  }
  uint64_t left_ns() const {
    if (until_ns_ == 0) return 0;
    const uint64_t now = now_ns();
    return until_ns_ > now ? until_ns_ - now : 0;
  }

  uint64_t until_ns_;
};

}  // namespace mercury::sockets
