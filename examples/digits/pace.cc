#include "examples/digits/pace.h"

#include <time.h>

#include <cerrno>

namespace digits {

Pace::Pace(const mercury::Trace& trace) {
  for (const mercury::TraceTensor& tensor : trace.tensors) {
    if (tensor.layer_index < layers_.size()) continue;
    layers_.push_back({static_cast<double>(tensor.forward_ns) * 1e-9,
                       static_cast<double>(tensor.backward_ns) * 1e-9,
                       static_cast<double>(tensor.update_ns) * 1e-9});
  }
}

void Pace::hold(Record::Kind kind, size_t layer, double begin_s) const {
  if (layer >= layers_.size()) return;
  const Least& least = layers_[layer];
  const double until_s = begin_s + (kind == Record::Kind::kForward    ? least.forward_s
                                    : kind == Record::Kind::kBackward ? least.backward_s
                                                                      : least.update_s);
  timespec until{};
  until.tv_sec = static_cast<time_t>(until_s);
  until.tv_nsec = static_cast<long>((until_s - static_cast<double>(until.tv_sec)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace digits
