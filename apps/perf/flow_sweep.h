// mercury-perf stream and mercury-perf messages, from their options to their exit status.
#pragma once

#include "apps/perf/costs.h"
#include "apps/perf/flow_options.h"

namespace mercury::perf {

int run_flow_sweep(const FlowOptions& options, CostMeter& meter);

}  // namespace mercury::perf
