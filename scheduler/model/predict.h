// Predicts an iteration of any policy: which layer's bytes each direction of the links carries
// when, and how long the iteration takes. Fluid: packets are infinitely small, summing takes no
// time, links have no delay (Mercury, TPDS 2023, section V.A); what frames add is in wire_bytes.
//
// Gives equations 4 to 8 and Algorithm 1 where they apply, and beyond them: pulls of WFBP that
// share the downlink, partitions with credit and start-up, links of different speed.
// tests/scheduler/model holds the two against each other.
#pragma once

#include <vector>

#include "scheduler/model/chain.h"
#include "scheduler/policy.h"
#include "transport/base/result.h"

namespace mercury::model {

// Moments of the iteration, seconds.
struct LayerTimes {
  double ready_s = 0;   // the gradient is there (tau_bp)
  double pushed_s = 0;  // all servers have all workers' (tau_push)
  double pulled_s = 0;  // the worker has the sum (tau_pull)
};

struct Prediction {
  double iteration_s = 0;
  std::vector<LayerTimes> layers;
  // From the first pushed byte to the last the uplink sent this share of the time.
  double push_begin_s = 0;
  double push_end_s = 0;
  double uplink_busy = 0;
};

// Errors: kInvalidArgument (no layers, a rate that is not above zero, a policy that makes no
// sense), kUnsupported (knobs that only the engine has), kLimit (more than kMaxPartitions).
Result<Prediction> predict(const Chain& chain, Rates rates, const Policy& policy);

}  // namespace mercury::model
