// How much memory jobs may make a host reserve for their sums. Whoever reaches the port of a daemon
// that serves open jobs may declare tensors, so there is a limit where the configuration names
// none.
#pragma once

#include <cstdint>

#include "apps/stackd/config.h"

namespace mercury {

struct MemoryLimits {
  uint64_t job_bytes = 0;    // of one job
  uint64_t total_bytes = 0;  // of all
};
// jobs.memory and jobs.total_memory, or a quarter and a half of `physical_bytes`: two jobs of the
// largest size, and what programs and packets need, find room beside each other.
MemoryLimits memory_limits(const StackdConfig& config, uint64_t physical_bytes);
uint64_t physical_memory_bytes();

}  // namespace mercury
