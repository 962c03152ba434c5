// How often the program that links this has called operator new.
#pragma once

#include <cstdint>

namespace mercury {

uint64_t allocations() noexcept;

}  // namespace mercury
