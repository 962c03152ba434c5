// What tests count in nanoseconds, as terms of jobs say it.
#pragma once

#include <cstdint>

namespace mercury {

constexpr uint32_t to_ms(uint64_t ns) { return static_cast<uint32_t>(ns / 1'000'000); }

}  // namespace mercury
