// What finishes a chunk: how its accumulator becomes the result, in the type of the wire.
//
// One per tensor, made when it is declared and destroyed with it; it may be move-only, and stays
// where it is from the first push on. Sum's members are what each has. What it keeps between rounds
// (an optimiser's moments, by Accumulated::index) lies in the tensor's memory, counted and bounded
// with the sums: it begins as zeros, outlives both generations, and no round begins it anew.
#pragma once

#include <variant>

#include "aggregator/aggregator.h"
#include "aggregator/finish/average.h"
#include "aggregator/finish/sum.h"
#include "transport/base/result.h"

namespace mercury::aggregation {

using Finish = std::variant<Sum, Average>;

// What the tensor's operation asks for, or why there is none for such a tensor. The spec must be
// valid (check_tensor). Reserves nothing of state_bytes: the limits are checked in between.
Result<Finish> finish_of(const AggregationTensor& spec);

}  // namespace mercury::aggregation
