// crc32q has a latency of three cycles and starts one each cycle: three streams side by side use it
// fully. Their registers are put together by a carry-less multiplication with x^(8n) mod P
// (Gopal et al., "Fast CRC computation for iSCSI polynomial using CRC32 instruction", Intel 2011).
#include <nmmintrin.h>
#include <wmmintrin.h>

#include <cstring>

#include "transport/base/types.h"
#include "transport/wire/crc32c_steps.h"

namespace mercury::wire {
namespace {

// Bytes a stream handles before the three are put together: long ones for payloads of jumbo frames,
// shorter ones for 1500-byte frames and for what is left. A header is shorter than all.
constexpr size_t kLong = 1024;
constexpr size_t kMiddle = 256;
constexpr size_t kShort = 64;

// What a copy reads, and what the next one will read or write, comes from memory, in three places
// at once, which hardware prefetchers follow badly: naming the next lines makes copies of 9000-byte
// frames half as fast again. Beyond the end of a payload stands the next one where it
// was cut from larger memory; elsewhere a prefetch does no harm.
inline void prefetch_streams(const std::byte* from, size_t ahead, size_t apart) noexcept {
  const uintptr_t first = reinterpret_cast<uintptr_t>(from) + ahead;  // may lie beyond the end
  for (size_t i = 0; i < 3; ++i) {
    _mm_prefetch(reinterpret_cast<const void*>(first + i * apart), _MM_HINT_T0);
  }
}

template <bool kCopy, size_t kStream>
inline uint64_t streams(uint64_t crc, const std::byte*& source, std::byte*& target, size_t& bytes,
                        const std::byte*& next) noexcept {
  while (bytes >= 3 * kStream) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      if (kCopy && kStream == kLong && i % kCacheLine == 0) {
        prefetch_streams(source, i + 3 * kStream, kStream);
      }
      if (kCopy && i % kCacheLine == 0) prefetch_streams(next, i, kStream);
      a = step<kCopy>(a, source + i, target + i);
      b = step<kCopy>(b, source + i + kStream, target + i + kStream);
      c = step<kCopy>(c, source + i + 2 * kStream, target + i + 2 * kStream);
    }
    crc = shift<2 * kStream>(a) ^ shift<kStream>(b) ^ c;
    source += 3 * kStream;
    if constexpr (kCopy) {
      target += 3 * kStream;
      next = reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(next) + 3 * kStream);
    }
    bytes -= 3 * kStream;
  }
  return crc;
}

template <bool kCopy>
uint32_t run(uint32_t start, std::byte* target, const std::byte* source, size_t bytes,
             const std::byte* next) noexcept {
  uint64_t crc = start;
  crc = streams<kCopy, kLong>(crc, source, target, bytes, next);
  crc = streams<kCopy, kMiddle>(crc, source, target, bytes, next);
  crc = streams<kCopy, kShort>(crc, source, target, bytes, next);
  return words_and_last_bytes<kCopy>(crc, source, target, bytes);
}

[[gnu::noinline]] uint32_t extend_long(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return run<false>(crc, nullptr, data, bytes, nullptr);
}

// A header is spared what the loops of payloads set up.
uint32_t extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return bytes >= 3 * kShort ? extend_long(crc, data, bytes)
                             : words_and_last_bytes<false>(crc, data, nullptr, bytes);
}

uint32_t six_words(uint32_t crc, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                   uint64_t f) noexcept {
  return words_in_registers(crc, a, b, c, d, e, f);
}

constexpr CrcKernel kKernel{"sse4.2", extend, run<true>, six_words};

}  // namespace

const CrcKernel* crc32c_sse42() noexcept {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") ? &kKernel : nullptr;
}

}  // namespace mercury::wire
