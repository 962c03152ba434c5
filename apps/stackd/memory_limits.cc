#include "apps/stackd/memory_limits.h"

#include <unistd.h>

namespace mercury {

MemoryLimits memory_limits(const StackdConfig& config, uint64_t physical_bytes) {
  MemoryLimits limits{config.job_memory_bytes, config.total_memory_bytes,
                      config.programs_memory_bytes};
  if (limits.job_bytes == 0) limits.job_bytes = physical_bytes / 4;
  if (limits.total_bytes == 0) limits.total_bytes = physical_bytes / 2;
  if (limits.programs_bytes == 0) limits.programs_bytes = physical_bytes / 2;
  return limits;
}

uint64_t physical_memory_bytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace mercury
