// The aggregator's list of finishes with one more, which averages are asked for. The program of
// finish_test.cc is compiled with this instead of aggregator/finish/finish.h and .cc, and with all
// else of the aggregator as it is: a finish with state needs no more than its line there.
#pragma once

#include <utility>
#include <variant>

#include "aggregator/aggregator.h"
#include "aggregator/finish/average.h"
#include "aggregator/finish/sum.h"
#include "tests/aggregator/momentum/momentum.h"
#include "transport/base/result.h"

namespace mercury::aggregation {

using Finish = std::variant<Sum, Average, Momentum>;

inline Result<Finish> finish_of(const AggregationTensor& spec) {
  if (spec.op == ReduceOp::kSum) return Finish(Sum());
  Result<Momentum> momentum = Momentum::create(spec);
  if (!momentum) return momentum.error();
  return Finish(std::move(*momentum));
}

}  // namespace mercury::aggregation
