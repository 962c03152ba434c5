// The system's random numbers: nonces and incarnations of real hosts.
#pragma once

#include <sys/random.h>

#include <cstdint>

namespace mercury {

// getrandom(2) of eight bytes never fails or falls short once the machine has booted.
inline uint64_t system_random() {
  uint64_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // namespace mercury
