// A trace's tensors in a job: their memory, and what the job is told of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/trace/trace.h"
#include "shim/client/mercurystack/mercury.h"
#include "transport/base/result.h"

namespace mercury {

// One allocation for all tensors, each from a cache line of its own; it lasts as long as `context`.
// Error: kSystem.
Result<std::vector<std::span<std::byte>>> allocate_tensors(const Trace& trace,
                                                           mercury_context* context);
// Tensor n of the trace has the number `first_id` + n in the job. Error: kSystem.
Status declare_tensors(const Trace& trace, const std::vector<std::span<std::byte>>& memory,
                       mercury_job* job, uint32_t first_id);

}  // namespace mercury
