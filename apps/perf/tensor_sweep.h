// Measures the sums of a job's tensors, one trace after the other: what a worker of mercury-perf
// tensors does once its job is open.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/perf/costs.h"
#include "apps/perf/figures.h"
#include "apps/perf/tensor_options.h"
#include "apps/perf/tensor_rounds.h"
#include "apps/trace/trace.h"
#include "shim/client/mercurystack/mercury.h"

namespace mercury::perf {

struct TensorRow {
  Figures figures;
  LatencyHistogram first;  // of the most urgent tensor
  size_t tensors = 0;
  uint64_t rounds = 0;  // in a repeat
  // Begin and end of each repeat, on this host's monotonic clock.
  std::vector<std::pair<uint64_t, uint64_t>> repeats_ns;
};

class TensorSweep {
 public:
  using Progress = std::function<void(const std::string&)>;

  // All must outlive this.
  TensorSweep(const TensorOptions& options, const CostMeter& meter, mercury_context* context,
              mercury_job* job, Progress progress)
      : options_(options),
        meter_(meter),
        context_(context),
        job_(job),
        progress_(std::move(progress)) {}

  // A row for each trace. After one that could not be measured none is: the job is over then, or
  // the next is larger. Rows say why; after a wrong sum the others are measured.
  std::vector<TensorRow> run(const std::vector<Trace>& traces);

 private:
  Status measure(const Trace& trace, TensorRow& row);
  Status measure_repeats(TensorRounds& exchange, TensorRow& row);
  Result<uint64_t> warm_up(TensorRounds& exchange);
  Result<int64_t> sum_of_all(int64_t value);
  Status compare_options();
  Status start_together();
  Status declare_agreement();

  const TensorOptions& options_;
  const CostMeter& meter_;
  mercury_context* context_;
  mercury_job* job_;
  Progress progress_;
  int64_t* agreement_ = nullptr;  // a tensor by which the workers agree on a number
  uint32_t next_id_ = 0;
};

}  // namespace mercury::perf
