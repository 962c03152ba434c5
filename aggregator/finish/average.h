// Finish: the mean of the contributions, divided once, before it is rounded.
#pragma once

#include <cstdint>

#include "aggregator/finish/accumulated.h"
#include "aggregator/slot_memory.h"

namespace mercury::aggregation {

struct Average {
  static constexpr bool kNeededAlone = false;
  static uint64_t state_bytes(const AggregationTensor&) noexcept { return 0; }
  static void place(const SlotMemory&) noexcept {}
  static void finish(const Accumulated& chunk) noexcept {
    round_quotient(chunk, chunk.contributions);
  }
};

}  // namespace mercury::aggregation
