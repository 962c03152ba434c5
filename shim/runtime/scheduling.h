// How soon the kernel gives an engine's thread a core that other threads want, too. On a worker's
// host they do: its program computes on all cores. An engine that sleeps and has to wait for the
// end of somebody's time slice, some milliseconds, with each packet halves the goodput
// (docs/performance.md); the kernel's own network stack does not wait, it runs in interrupts.
#pragma once

#include <cstdint>

#include "transport/base/result.h"

namespace mercury {

enum class Scheduling : uint8_t {
  kNormal,    // a fair share, in short slices, which Linux 6.12 and later grant without delay
  kUrgent,    // and the highest of the usual priorities (nice -20)
  kRealtime,  // before all others (SCHED_RR), who get what the engine leaves
};

// Of the calling thread. kPermission: short slices were all that was allowed.
Status set_scheduling(Scheduling scheduling) noexcept;
// What set_scheduling() would say, with the remedy; changes nothing.
Status check_scheduling(Scheduling scheduling);

}  // namespace mercury
