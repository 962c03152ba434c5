// The C library's functions for this program's side of sockets, those counted that wait.
#pragma once

#include <cstdint>

namespace mercury {

// Calls of the kernel that may wait, of all threads so far.
uint64_t kernel_waits();

}  // namespace mercury
