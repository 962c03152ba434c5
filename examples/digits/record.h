// What a worker saw of its own training: when each layer computed, waited and exchanged. Written as
// a timeline (Chrome's trace format, for ui.perfetto.dev), as a model trace (apps/trace/trace.h,
// for mercury-sim) and as the times of its iterations.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "examples/digits/model.h"

namespace digits {

double now_s();  // CLOCK_MONOTONIC

class Record {
 public:
  enum class Kind { kForward, kBackward, kUpdate, kWait, kExchange };

  // Seconds of now_s().
  void span(Kind kind, size_t layer, size_t iteration, double begin_s, double end_s);
  // An iteration under `policy` begins; `steady` where the one before it was under the same policy
  // and so is the next, so that how long it takes says something of that policy.
  void begin_iteration(const std::string& policy, bool steady);
  // The last iteration is over.
  void end();

  struct Iteration {
    std::string policy;
    bool steady = false;
    double begin_s = 0, seconds = 0, computing_s = 0;
  };
  const std::vector<Iteration>& iterations() const { return iterations_; }

  // Nothing where `path` is empty. False: the file cannot be written.
  bool write_timeline(const std::string& path, const Model& model) const;
  // Medians over the iterations.
  bool write_trace(const std::string& path, const Model& model) const;

 private:
  struct Span {
    Kind kind{};
    size_t layer = 0, iteration = 0;
    double begin_s = 0, end_s = 0;
  };
  double median_s(Kind kind, size_t layer) const;

  std::vector<Span> spans_;
  std::vector<Iteration> iterations_;
};

// Of what is not empty.
double median(std::vector<double> values);

}  // namespace digits
