// The packet numbers that a session has given to its frames.
//
// Invariant: each is given once, in ascending order; 64 bits do not wrap in the life of a session.
// Owner/thread: one engine.
#pragma once

#include <cstdint>

#include "transport/wire/ack.h"

namespace mercury {

class PacketNumbers {
 public:
  explicit PacketNumbers(uint64_t first) : first_(first), next_(first) {}

  uint64_t take() noexcept { return next_++; }
  uint64_t next() const noexcept { return next_; }  // not given yet
  // Whether the ranges of an acknowledgement, highest first, are all of frames that were sent.
  bool cover(const wire::Ack& ack) const noexcept {
    return ack.ranges[0].last < next_ && ack.ranges[ack.count - 1].first >= first_;
  }

 private:
  uint64_t first_;
  uint64_t next_;
};

}  // namespace mercury
