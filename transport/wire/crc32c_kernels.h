// Kernels of crc32c.h, and what they share. They continue a raw register: initial and final
// inversion are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/base/types.h"

namespace mercury::wire {

struct CrcKernel {
  const char* name;
  uint32_t (*extend)(uint32_t crc, const std::byte* data, size_t bytes) noexcept;
  // Fetches about as many bytes at `next`, a line for each line that it copies; none for short
  // copies. All at once they would fill the core's list of missing lines, and the copy's own would
  // wait behind them.
  uint32_t (*copy)(uint32_t crc, std::byte* target, const std::byte* source, size_t bytes,
                   const std::byte* next) noexcept;
  // Six words of memory, in registers.
  uint32_t (*six_words)(uint32_t crc, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                        uint64_t f) noexcept;
};

// Instead of the kernel in use: for programs in which nobody looks at what the sums are of.
// `kernel` stays.
void crc32c_use_kernel(const CrcKernel& kernel) noexcept;

// Null where the CPU or the operating system lacks the instructions: SSE4.2 and PCLMULQDQ;
// AVX-512F and VPCLMULQDQ.
const CrcKernel* crc32c_sse42() noexcept;
const CrcKernel* crc32c_avx512() noexcept;

inline constexpr uint32_t kCrcPolynomial = 0x82f63b78;  // Castagnoli, reflected: bit 31 is x^0

// x^n mod P, reflected; slow, for constants. (Not consteval: clang 14 takes no template argument
// there.)
constexpr uint32_t crc_x_pow(uint64_t n) {
  uint32_t value = 1U << 31;
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) != 0 ? kCrcPolynomial : 0);
  return value;
}

// The memory that is copied may change meanwhile. A value that passed here came from one load: the
// compiler must store and sum that, and cannot read the memory a second time.
// Always inlined: no copy of it may come from a unit with wider instructions.
[[gnu::always_inline]] inline uint64_t read_once(uint64_t word) noexcept {
  asm("" : "+r"(word));
  return word;
}

// The line at `next`, which may lie outside any object; what follows it.
[[gnu::always_inline]] inline const std::byte* fetch_line(const std::byte* next) noexcept {
  __builtin_prefetch(next);
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(next) + kCacheLine);
}

}  // namespace mercury::wire
