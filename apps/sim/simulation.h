// One simulation from its options to its figures; without input and output, but for --pcap.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/sim/run_options.h"
#include "apps/sim/training.h"
#include "apps/sim/workload.h"
#include "apps/trace/trace.h"

namespace mercury::simulator {

struct SimulatedJob {
  std::string model;
  Policy policy;
  Trace trace;
  std::vector<std::unique_ptr<TrainingWorker>> workers;

  // Means over all workers and the iterations that count.
  double iteration_s(uint32_t warmup) const;
  // By how much the longest of them is longer than the shortest, of the mean: no steady state yet,
  // or something varies.
  double spread(uint32_t warmup) const;
  double ready_s(size_t tensor, uint32_t warmup) const;
  double pulled_s(size_t tensor, uint32_t warmup) const;
  size_t iterations() const;  // that every worker has finished
  bool finished() const;      // as many as were asked for
};

struct Traffic {  // of a link, of the iterations that count
  uint64_t frames = 0, wire_bytes = 0;
  uint64_t longest_wait_ps = 0;  // from entry to the last bit, of the whole run
};

struct LinkSample {  // of a worker's links, since the run began
  uint64_t time_ns = 0;
  uint32_t worker = 0;
  uint64_t bytes_up = 0, bytes_down = 0;
};

struct SimulationResult {
  std::vector<SimulatedJob> jobs;
  std::vector<Traffic> up, down;    // by host: workers, then servers of hosts of their own
  std::vector<LinkSample> samples;  // with a timeline: every millisecond, workers in their order
  uint64_t begin_ns = 0;            // when the training began
  uint64_t frames = 0;              // delivered, all of them
  uint64_t retransmits = 0, drops = 0, mismatches = 0;
  uint64_t trace_hash = 0;  // of every delivery and drop
  bool interrupted = false;
};

struct SimulationHooks {
  // From time to time: iterations finished by all workers of all jobs, of how many.
  std::function<void(uint64_t done, uint64_t total)> progress;
  std::function<bool()> interrupted;
};

// `options` with_all_links() and, with `run`, checked.
Result<SimulationResult> simulate(const SimOptions& options, const RunOptions& run,
                                  const SimulationHooks& hooks = {});

}  // namespace mercury::simulator
