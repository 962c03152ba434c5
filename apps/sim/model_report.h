// What `mercury-sim model` found, as a table and as JSON (docs/simulator.md names the keys).
#pragma once

#include <optional>
#include <vector>

#include "apps/sim/options.h"
#include "apps/sim/workload.h"
#include "apps/trace/trace.h"
#include "scheduler/model/predict.h"
#include "scheduler/model/search.h"

namespace mercury::simulator {

struct Reach {
  double speed = 0;   // oracle over iteration time
  double factor = 0;  // of the bandwidths, at which it is reached
};

struct ModelFindings {
  Policy policy;  // what was predicted: the one given, or the best of the grid
  model::Prediction prediction{};
  double unframed_s = 0;  // the iteration if frames were elements alone
  double oracle_s = 0;
  double optimum_s = 0;                        // Theorem 1, likewise without what frames add
  std::vector<model::Candidate> candidates{};  // of --tune
  std::optional<Reach> reach{};
};

struct ModelReport {
  const SimOptions& options;  // with_all_links()
  const Trace& trace;
  Framing framing;
  const ModelFindings& findings;
};

// To where the options say. Error: kSystem.
Status report_model(const ModelReport& report);

}  // namespace mercury::simulator
