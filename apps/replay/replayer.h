// One worker's replay: iterations of forward and backward passes with timed compute.
//
// Forward, in the trace's order: wait for the tensor's sum of the last iteration, then compute.
// Backward, in reverse: compute, then push_pull the tensor at its priority. An iteration ends when
// its last gradient is handed over; its sums arrive during the next one's forward pass, as in
// training. The sums of the last iteration are waited for after it, outside any figure. A run that
// is told to stop leaves the iteration in which it is, and keeps the figures of those before.
//
// Errors: kSystem with mercury_last_error()'s text and the tensor. One thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "apps/replay/options.h"
#include "apps/replay/payload_work.h"
#include "apps/replay/timeline.h"
#include "apps/trace/trace.h"
#include "shim/client/mercurystack/mercury.h"
#include "transport/base/result.h"

namespace mercury {

// Seconds. Measured iterations only (no warm-up), one entry each, except where stated.
struct ReplayFigures {
  struct TensorSeconds {           // relative to the start of the iteration that pushed it
    std::vector<double> ready_s;   // its gradient was handed to Mercury
    std::vector<double> pulled_s;  // the next forward pass came for its sum and had it
  };
  std::vector<double> iteration_s;
  std::vector<double> compute_s;  // of it, in timed layers
  std::vector<double> payload_s;  // of it, verifying and refilling that did not fit into them
  std::vector<TensorSeconds> tensors;
  uint64_t bytes_up = 0, bytes_down = 0;  // of the whole run, warm-up included
};

class Replayer {
 public:
  using Progress = std::function<void(int iteration, double iteration_s)>;
  using Stop = std::function<bool()>;

  // `trace` is scaled; all must outlive this. Allocates the tensors and declares them.
  static Result<Replayer> create(const Trace& trace, const ReplayOptions& options,
                                 mercury_context* context, mercury_job* job);
  // `stop` is asked at each layer, and several times a second while sums are waited for.
  Status run(const Progress& progress, const Stop& stop);
  // Whether `stop` ended it. What failed then, as when all workers are stopped together, is no
  // error.
  bool stopped() const { return stopped_; }

  const ReplayFigures& figures() const { return figures_; }
  const PayloadWork::Found& found() const { return work_.found(); }
  const Timeline& timeline() const { return timeline_; }

 private:
  struct Exchange {
    mercury_handle handle = 0;  // 0: none in flight
    uint64_t round = 0, begin_ns = 0, iteration_ns = 0;
  };

  Replayer(const Trace& trace, const ReplayOptions& options, mercury_job* job, PayloadWork work);
  Status exchange_all(const Progress& progress);
  Status check_stop();
  int wait(mercury_handle handle);
  Status iterate(uint64_t iteration);
  Status collect(uint32_t tensor);
  Status push(uint32_t tensor, uint64_t iteration, uint64_t iteration_ns);
  Status make_room(uint32_t pushing);
  void compute(uint32_t tensor, Timeline::Kind kind, uint64_t iteration, uint64_t duration_ns);
  Error failed(const char* what, uint32_t tensor, uint64_t iteration) const;
  bool measured(uint64_t iteration) const;

  const Trace* trace_;
  const ReplayOptions* options_;
  mercury_job* job_;
  PayloadWork work_;
  std::vector<Exchange> exchanges_;
  Timeline timeline_;
  ReplayFigures figures_;
  Stop stop_;
  bool stopped_ = false;
  uint64_t compute_ns_ = 0, payload_ns_ = 0;  // of the iteration so far
};

}  // namespace mercury
