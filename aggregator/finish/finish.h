// What finishes a chunk: how its accumulator becomes the result, in the type of the wire.
//
// One per tensor, made when it is declared and destroyed with it. A finish with a state of its own
// (an optimiser's moments) keeps it by Accumulated::index in memory that it owns: that outlives
// both generations of sums, and no round begins it anew. Not asked for the only worker's
// contribution, which is its sum to the bit (All::alone).
#pragma once

#include <variant>

#include "aggregator/finish/average.h"
#include "aggregator/finish/sum.h"
#include "scheduler/terms/element.h"

namespace mercury::aggregation {

using Finish = std::variant<Sum, Average>;

// `op` is one (is_reduce_op) that applies to the tensor's elements.
Finish finish_of(ReduceOp op) noexcept;

}  // namespace mercury::aggregation
