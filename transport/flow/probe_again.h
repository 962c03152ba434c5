// When a path is probed again that was found to carry less than both ports can do: probes may have
// been lost by chance, and routes change. At first a while after that was found, then twice as long
// each time that it carries no more.
//
// Paper: RFC 8899 section 5.1.1, which waits 600 s: about the longest while.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace mercury {

class ProbeAgain {
 public:
  // Of the first while.
  static constexpr uint64_t kLongest = 64;

  explicit ProbeAgain(uint64_t first_ns) noexcept : first_ns_(first_ns) {}

  // The path is measured from the beginning.
  void begin() noexcept {
    due_ns_ = std::numeric_limits<uint64_t>::max();
    wait_ns_ = found_ = 0;
  }
  // It carries `bytes`, of `largest`.
  void on_found(uint16_t bytes, uint16_t largest, uint64_t now_ns) noexcept {
    const bool more = bytes > found_;
    wait_ns_ = more ? first_ns_ : std::min(2 * wait_ns_, kLongest * first_ns_);
    found_ = bytes;
    due_ns_ = bytes < largest ? now_ns + wait_ns_ : std::numeric_limits<uint64_t>::max();
  }
  void on_asked() noexcept { due_ns_ = std::numeric_limits<uint64_t>::max(); }
  bool due(uint64_t now_ns) const noexcept { return now_ns >= due_ns_; }

 private:
  uint64_t first_ns_;
  uint64_t due_ns_ = std::numeric_limits<uint64_t>::max();
  uint64_t wait_ns_ = 0;
  uint16_t found_ = 0;
};

}  // namespace mercury
