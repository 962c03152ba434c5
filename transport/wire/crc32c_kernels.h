// Kernels of crc32c.h. They continue a raw register: initial and final inversion are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mercury::wire {

struct CrcKernel {
  const char* name;
  uint32_t (*extend)(uint32_t crc, const std::byte* data, size_t bytes) noexcept;
  uint32_t (*copy)(uint32_t crc, std::byte* target, const std::byte* source, size_t bytes) noexcept;
};

// Null where the CPU lacks the instructions (SSE4.2 and PCLMULQDQ).
const CrcKernel* crc32c_sse42() noexcept;

}  // namespace mercury::wire
