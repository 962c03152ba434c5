#include "benchmarks/aggregator/plain_add.h"

#include <bit>

#if defined(__x86_64__)
#define MERCURY_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MERCURY_CLONES
#endif

namespace mercury::bench {

MERCURY_CLONES void plain_add(float* sum, const float* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) sum[i] += wire[i];
}
MERCURY_CLONES void plain_add(double* sum, const double* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) sum[i] += wire[i];
}
MERCURY_CLONES void plain_add(uint32_t* sum, const uint32_t* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) sum[i] += wire[i];
}
MERCURY_CLONES void plain_add(uint64_t* sum, const uint64_t* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) sum[i] += wire[i];
}
MERCURY_CLONES void plain_add(float* sum, const Half* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) sum[i] += static_cast<float>(wire[i]);
}
MERCURY_CLONES void plain_add(float* sum, const uint16_t* wire, size_t elems) noexcept {
  for (size_t i = 0; i < elems; ++i) {
    sum[i] += std::bit_cast<float>(static_cast<uint32_t>(wire[i]) << 16);
  }
}

}  // namespace mercury::bench
