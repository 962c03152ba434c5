// The tokens of the sockets' sessions: apart from those of jobs, which the same engines name.
#pragma once

#include <cstdint>

namespace mercury::sockets {

inline constexpr uint64_t kOwnBit = 1ULL << 63;

}  // namespace mercury::sockets
