// Fits a trace to a machine or a question.
#pragma once

#include "apps/replay/options.h"
#include "apps/trace/trace.h"

namespace mercury {

// Applies --size-scale, --time-scale and --dtype. A tensor keeps at least one element.
void scale_trace(Trace& trace, const ReplayOptions& options);

}  // namespace mercury
