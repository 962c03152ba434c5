// CRC-32C (Castagnoli, RFC 3720 appendix B.4: reflected, initial and final value ~0), with the
// widest instructions the CPU has, chosen once at start.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/wire/crc32c_kernels.h"

namespace mercury::wire {

extern std::atomic<const CrcKernel*> g_crc_kernel;  // in use; for what is inlined below

uint32_t crc32c(const std::byte* data, size_t bytes) noexcept;
inline uint32_t crc32c(std::span<const std::byte> data) noexcept {
  return crc32c(data.data(), data.size());
}

// Continues: crc32c_extend(crc32c(a), b) == crc32c(a then b).
uint32_t crc32c_extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept;

// crc32c of 48 bytes that were loaded from memory, or are to be stored there, as these words.
uint32_t crc32c_of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                         uint64_t f) noexcept;

// Copies and sums in one pass; the ranges do not overlap. Returns crc32c of what was copied, even
// if another thread writes `source` meanwhile (what is summed is what was stored).
uint32_t copy_crc32c(std::byte* target, const std::byte* source, size_t bytes) noexcept;

// The same, continued: as crc32c_extend(crc, source, bytes).
uint32_t copy_crc32c_extend(uint32_t crc, std::byte* target, const std::byte* source,
                            size_t bytes) noexcept;

// As copy_crc32c, while about as many bytes at `next` come into the cache: what the next copy will
// probably read or write. A hint: nothing need be mapped there.
inline uint32_t copy_crc32c_fetching(std::byte* target, const std::byte* source, size_t bytes,
                                     const std::byte* next) noexcept {
  return ~g_crc_kernel.load(std::memory_order_relaxed)
              ->copy(~uint32_t{0}, target, source, bytes, next);
}

// "avx512-vpclmul", "sse4.2" or "table"; tests force each by name (false if the CPU lacks it).
const char* crc32c_kernel() noexcept;
bool crc32c_force_kernel(const char* name) noexcept;

}  // namespace mercury::wire
