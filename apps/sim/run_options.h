// What a simulation is told beside what every command is (options.h).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/sim/link_schedule.h"
#include "apps/sim/options.h"
#include "transport/engine/engine.h"
#include "transport/flow/session.h"

namespace mercury::simulator {

struct Slowdown {  // RANK=FACTOR
  uint32_t rank = 0;
  double factor = 1;
};

struct OtherJob {  // TRACE[@POLICY]
  std::string trace;
  Policy policy;
  bool has_policy = false;
};

struct RunOptions {
  uint32_t iterations = 3, warmup = 1;
  uint32_t colocated = 0;  // of the servers, on the hosts of the workers of the same numbers
  uint64_t seed = 1;
  uint64_t delay_ns = 1000;
  uint64_t queue_bytes = 0;  // 0: room for all windows
  uint64_t window_bytes = SessionConfig().window_bytes;
  uint64_t ecn_bytes = 0;
  uint64_t bucket_bytes = 0;
  uint64_t incast_queue_bytes = EngineConfig().incast_queue_bytes;
  uint64_t frame_cost_ns = 0;
  std::string turns = "fair";
  double jitter = 0;
  std::vector<Slowdown> slow;
  std::vector<LinkRule> links;
  std::vector<OtherJob> others;
  bool payload = false, quiet = false;
  std::string pcap, timeline, csv;
};

// Of a worker's or server's link in one direction, and of how much longer a worker computes: what
// the options say of it last.
LinkSchedule schedule_of(const SimOptions& options, const RunOptions& run, bool worker,
                         uint32_t number, bool uplink);
double slowdown_of(const RunOptions& run, uint32_t rank);

// Adds the options of a simulation to the program itself; `run` must outlive it.
void describe_run(CLI::App& app, SimOptions& options, RunOptions& run);
// What the command line as a whole must not say. Errors: kInvalidArgument; of files to write,
// kSystem.
Status check_run(const SimOptions& options, const RunOptions& run);

}  // namespace mercury::simulator
