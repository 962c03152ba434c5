#include "apps/replay/scale.h"

#include <algorithm>
#include <cmath>

namespace mercury {
namespace {

uint64_t scaled_ns(uint64_t ns, double scale) {
  return static_cast<uint64_t>(std::llround(static_cast<double>(ns) * scale));
}

}  // namespace

void scale_trace(Trace& trace, const ReplayOptions& options) {
  const std::optional<Dtype> dtype = dtype_named(options.dtype);
  for (TraceTensor& tensor : trace.tensors) {
    if (options.size_scale != 1) {
      const double numel = std::floor(static_cast<double>(tensor.numel) / options.size_scale);
      tensor.numel = std::max<uint64_t>(1, static_cast<uint64_t>(numel));
    }
    tensor.forward_ns = scaled_ns(tensor.forward_ns, options.time_scale);
    tensor.backward_ns = scaled_ns(tensor.backward_ns, options.time_scale);
    tensor.update_ns = scaled_ns(tensor.update_ns, options.time_scale);
    tensor.dtype = dtype.value_or(tensor.dtype);
  }
}

}  // namespace mercury
