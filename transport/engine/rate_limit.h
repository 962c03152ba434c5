// A token bucket: kMost of something in a second, and at once. For what strangers can make a host
// say.
//
// Owner/thread: one engine.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

template <uint64_t kMost>
class RateLimit {
 public:
  // Whether there may be one more now.
  bool take(uint64_t now_ns) noexcept {
    constexpr uint64_t kSecondNs = 1'000'000'000;
    const uint64_t paid_ns = std::max(paid_ns_, now_ns) + kSecondNs / kMost;
    if (paid_ns > now_ns + kSecondNs) return false;
    paid_ns_ = paid_ns;
    return true;
  }

 private:
  uint64_t paid_ns_ = 0;  // each takes its part of a second; at most one ahead of now
};

}  // namespace mercury
