// Monotonic time, and computing that is timed instead of burned: a replayed layer occupies its time
// and leaves the core to others, so that two cores can replay several workers.
#pragma once

#include <cstdint>

namespace mercury {

// A sleep ends up to this much late (50 us is the kernel's default timer slack), so the last part
// of a wait is spun.
inline constexpr uint64_t kSpinNs = 50'000;

uint64_t monotonic_ns();
// Sleeps until `deadline_ns` (CLOCK_MONOTONIC) less kSpinNs, then spins until it; returns at once
// if it has passed.
void wait_until_ns(uint64_t deadline_ns);

}  // namespace mercury
