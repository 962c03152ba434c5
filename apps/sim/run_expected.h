// What the equations say of a simulated job, as if it were alone, where they can: they know workers
// that compute alike, links that are alike and stay as they are, and servers on hosts of their own.
#pragma once

#include "apps/sim/run_options.h"
#include "apps/sim/simulation.h"

namespace mercury::simulator {

// Bits per second of all such links; 0: they differ, or change.
struct EvenLinks {
  uint64_t worker_up = 0, worker_down = 0, server_up = 0, server_down = 0;
};
EvenLinks even_links(const SimOptions& options, const RunOptions& run);

// Seconds. 0: unknown, but for the oracle, which is the slowest worker's.
struct Expected {
  double oracle_s = 0, optimum_s = 0, model_s = 0, framing_s = 0;
  double latency_s = 0;  // first byte of a full frame at a worker to its last back, on idle links
};
// `options` with_all_links().
Expected expected(const SimOptions& options, const RunOptions& run, const SimulatedJob& job);

}  // namespace mercury::simulator
