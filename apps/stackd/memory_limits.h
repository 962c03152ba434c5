// How much memory jobs may make a host reserve for their sums, and programs share with it. Whoever
// reaches the port of a daemon that serves open jobs may declare tensors, and whoever may attach
// can share memory that he never touches; so there is a limit where the configuration names none.
#pragma once

#include <cstdint>

#include "apps/stackd/config.h"

namespace mercury {

struct MemoryLimits {
  uint64_t job_bytes = 0;    // of one job
  uint64_t total_bytes = 0;  // of all
  uint64_t programs_bytes = 0;
};
// jobs.memory, jobs.total_memory and attach.total_memory, or a quarter and two halves of
// `physical_bytes`: two jobs of the largest size, and what packets need, find room beside each
// other, as most hosts serve or have programs.
MemoryLimits memory_limits(const StackdConfig& config, uint64_t physical_bytes);
uint64_t physical_memory_bytes();

}  // namespace mercury
