// `mercury-sim`: an iteration simulated with the production engine, scheduler, aggregator, worker
// and control plane in virtual time.
#pragma once

#include "apps/sim/run_options.h"

namespace mercury::simulator {

// Errors: what is wrong with a trace or a file, a job that failed, sums that are wrong.
Status run_simulation(const SimOptions& options, const RunOptions& run);

}  // namespace mercury::simulator
