// One worker's rounds of some tensors, as fast as they go: each tensor is pushed again as soon as
// its sum is there, so that all of them are in flight until the end comes.
//
// Thread: one. Errors: kSystem with what the library says; kClosed after a signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/perf/latency.h"
#include "apps/replay/payload_work.h"
#include "apps/trace/trace.h"
#include "shim/client/mercurystack/mercury.h"
#include "transport/base/result.h"

namespace mercury::perf {

class TensorRounds {
 public:
  // Where times are recorded; null: nowhere.
  struct Latencies {
    LatencyHistogram* all = nullptr;
    LatencyHistogram* first = nullptr;  // of tensor 0
  };

  // `trace` must outlive this. Allocates the tensors and declares them as `first_id` and so on.
  static Result<TensorRounds> create(const Trace& trace, mercury_context* context, mercury_job* job,
                                     uint32_t first_id);
  // The workers of the job must all ask for as many. With `check` each element of each sum is
  // compared, and new gradients are put in its place.
  Status run(uint64_t rounds, bool check, Latencies latencies);
  const PayloadWork::Found& found() const { return work_.found(); }

 private:
  struct Exchange {
    mercury_handle handle = 0;  // 0: not in flight
    uint64_t begin_ns = 0, left = 0;
  };

  TensorRounds(const Trace& trace, mercury_job* job, uint32_t first_id, PayloadWork work);
  Status push(uint32_t tensor);
  void on_completion(const mercury_completion& completion);
  Status wait();

  const Trace* trace_;
  mercury_job* job_;
  uint32_t first_id_;
  PayloadWork work_;
  std::vector<Exchange> exchanges_;
  std::vector<uint64_t> round_;  // of each tensor's next push, for what it must hold
  Latencies latencies_;
  Status failed_;
  bool check_ = false;
};

}  // namespace mercury::perf
