// mercury-perf tensors, from its options to its exit status.
#pragma once

#include "apps/perf/costs.h"
#include "apps/perf/tensor_options.h"

namespace mercury::perf {

int run_tensors(const TensorOptions& options, CostMeter& meter);

}  // namespace mercury::perf
