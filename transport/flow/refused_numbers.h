// Which of the packets that arrived carried datagrams that were refused for now, for the
// acknowledgements that say so.
//
// A refused number that an acknowledgement names as arrived, and not as refused, would pass for
// taken, and its datagram be lost. So each is named in kReports acknowledgements, and then nothing
// is said any more of numbers up to it: if all of these are lost, the peer takes what they were
// about for lost, and sends it again.
//
// Owner/thread: one engine. Nothing allocates. Cold: a peer that is refused nothing never comes
// here.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "transport/wire/ack.h"

namespace mercury {

class RefusedNumbers {
 public:
  static constexpr uint32_t kMaxRanges = wire::kMaxRefusedRanges;

  // Nothing is said of numbers below.
  uint64_t floor() const noexcept { return floor_; }
  bool empty() const noexcept { return count_ == 0; }
  // Of a number that has not arrived before. False, and nothing changes: there is no room for it.
  bool add(uint64_t number) noexcept;
  // Fills `out`, of kMaxRanges, with what an acknowledgement names, newest first; `largest` is the
  // highest number that has arrived, of which each acknowledgement speaks.
  uint32_t report(std::span<wire::AckRange> out, uint64_t largest) noexcept;

 private:
  static constexpr uint8_t kReports = 8;  // 0.2^8: all lost once in 400,000 times at 20 % loss

  // Ascending, disjoint, not adjacent.
  std::array<wire::AckRange, kMaxRanges> ranges_;
  std::array<uint8_t, kMaxRanges> reports_{};
  uint32_t count_ = 0;
  uint64_t floor_ = 0;
};

}  // namespace mercury
