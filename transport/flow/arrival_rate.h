// What a link that nobody told the rate of has been seen to carry: the most that arrived in an
// interval, of the last two periods in which something did. Senders that have enough in flight fill
// the link, so that is its rate; where they send less, less was asked of it, and the most stays.
// A rate that has fallen is believed after two periods: until then a round trip at the old rate is
// granted, which is little beside the queue (credit.h) where round trips are short.
//
// Paper: BBR (Cardwell et al., ACM Queue 14(5), 2016): the windowed maximum of the delivery rate,
// here as the receiver sees it. Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class ArrivalRate {
 public:
  // Whether the rate is another one now.
  bool add(uint32_t bytes, uint64_t now_ns) noexcept {
    bytes_ += bytes;
    ++frames_;
    const uint64_t interval_ns = now_ns - began_ns_;
    if (interval_ns < kIntervalNs || frames_ < kLeastFrames) return false;
    const uint64_t rate = bytes_ * 1'000'000 / (interval_ns / 1'000);
    const bool first = began_ns_ == 0;  // what came before it is not known
    began_ns_ = now_ns;
    bytes_ = frames_ = 0;
    return !first && see(rate, now_ns);
  }

  uint64_t bytes_per_second() const noexcept { return std::max(most_, previous_most_); }

 private:
  // Engines look at their port now and then: what they find at once came in the time between.
  static constexpr uint64_t kIntervalNs = 1'000'000;
  static constexpr uint64_t kLeastFrames = 16;
  static constexpr uint64_t kPeriodNs = 250'000'000;

  bool see(uint64_t rate, uint64_t now_ns) noexcept {
    const uint64_t before = bytes_per_second();
    if (now_ns - period_began_ns_ >= kPeriodNs) {
      period_began_ns_ = now_ns;
      previous_most_ = most_;
      most_ = 0;
    }
    most_ = std::max(most_, rate);
    return bytes_per_second() != before;
  }

  uint64_t bytes_ = 0;
  uint64_t frames_ = 0;
  uint64_t began_ns_ = 0;
  uint64_t most_ = 0;
  uint64_t previous_most_ = 0;
  uint64_t period_began_ns_ = 0;
};

}  // namespace mercury
