// What the kernels with crc32q share; included only by their units. Everything is always inlined:
// no copy of it may come from a unit with wider instructions.
#pragma once

#include <nmmintrin.h>
#include <wmmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transport/wire/crc32c_kernels.h"

namespace mercury::wire {

// A product of two reflected 32-bit polynomials comes out shifted by one bit, and reducing it by
// crc32q multiplies by x^32: both are taken off the constant.
template <size_t kBytes>
inline constexpr uint32_t kShift = crc_x_pow(8 * kBytes - 33);

// A register, as if that many zero bytes had followed.
template <size_t kBytes>
[[gnu::always_inline]] inline uint64_t shift(uint64_t crc) noexcept {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi64_si128(kShift<kBytes>), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

template <bool kCopy>
[[gnu::always_inline]] inline uint64_t step(uint64_t crc, const std::byte* source,
                                            std::byte* target) noexcept {
  uint64_t word;
  std::memcpy(&word, source, 8);
  if constexpr (kCopy) {
    word = read_once(word);
    std::memcpy(target, &word, 8);
  }
  return _mm_crc32_u64(crc, word);
}

// Less than 8 bytes, the last ones.
template <bool kCopy>
[[gnu::always_inline]] inline uint32_t last_bytes(uint64_t crc, const std::byte* source,
                                                  std::byte* target, size_t bytes) noexcept {
  auto tail = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes) {
    const auto byte = static_cast<uint8_t>(read_once(static_cast<uint64_t>(*source++)));
    if constexpr (kCopy) *target++ = static_cast<std::byte>(byte);
    tail = _mm_crc32_u8(tail, byte);
  }
  return tail;
}

// All that is left, one word after the other.
template <bool kCopy>
[[gnu::always_inline]] inline uint32_t words_and_last_bytes(uint64_t crc, const std::byte* source,
                                                            std::byte* target,
                                                            size_t bytes) noexcept {
  for (; bytes >= 8; bytes -= 8, source += 8) {
    crc = step<kCopy>(crc, source, target);
    if constexpr (kCopy) target += 8;
  }
  return last_bytes<kCopy>(crc, source, target, bytes);
}

[[gnu::always_inline]] inline uint32_t words_in_registers(uint32_t crc, uint64_t a, uint64_t b,
                                                          uint64_t c, uint64_t d, uint64_t e,
                                                          uint64_t f) noexcept {
  const uint64_t half = _mm_crc32_u64(_mm_crc32_u64(_mm_crc32_u64(crc, a), b), c);
  return static_cast<uint32_t>(_mm_crc32_u64(_mm_crc32_u64(_mm_crc32_u64(half, d), e), f));
}

}  // namespace mercury::wire
