// Finish: the sum of the contributions.
#pragma once

#include <cstdint>

#include "aggregator/finish/accumulated.h"
#include "aggregator/slot_memory.h"

namespace mercury::aggregation {

struct Sum {
  // Whether a job's only worker needs it too; if not, its contribution is the result, to the bit.
  static constexpr bool kNeededAlone = false;
  // What it keeps of such a tensor between rounds, and where that is (SlotMemory::state).
  static uint64_t state_bytes(const AggregationTensor&) noexcept { return 0; }
  static void place(const SlotMemory&) noexcept {}

  // A chunk's rounds come in order, each once, when it is complete.
  static void finish(const Accumulated& chunk) noexcept { round_quotient(chunk, 1); }
};

}  // namespace mercury::aggregation
