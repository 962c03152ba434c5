// Folds 64 bytes with each pair of carry-less multiplications, four such registers side by side to
// cover their latency; the last 16 bytes and the tail go through crc32q.
// Paper: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009, with the four lanes of VPCLMULQDQ in place of its four registers.
#include <immintrin.h>

#include <cstring>

#include "transport/wire/crc32c_kernels.h"

namespace mercury::wire {
namespace {

constexpr size_t kBlock = 64;                 // one register
constexpr size_t kStride = 4 * kBlock;        // four of them
constexpr size_t kShortestFold = 2 * kBlock;  // below, crc32q alone is as fast

// Multiplies the first and the second 8 bytes of a lane so that both move on by `kBits`. The
// product of reflected factors (64 and 32 bits, the latter in a 64-bit half) stands one bit too
// high and 32 powers too far: the shift and the two offsets take that back.
template <uint64_t kBits>
inline constexpr uint64_t kFirst = uint64_t{crc_x_pow(kBits + 32)} << 1;
template <uint64_t kBits>
inline constexpr uint64_t kSecond = uint64_t{crc_x_pow(kBits - 32)} << 1;

constexpr long long to_signed(uint64_t value) { return static_cast<long long>(value); }

template <uint64_t kBits>
inline __m512i factors() noexcept {
  return _mm512_set4_epi64(to_signed(kSecond<kBits>), to_signed(kFirst<kBits>),
                           to_signed(kSecond<kBits>), to_signed(kFirst<kBits>));
}

inline __m512i fold(__m512i sum, __m512i factor, __m512i next) noexcept {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factor, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factor, 0x11), next, 0x96);
}

template <bool kCopy>
inline __m512i load(const std::byte* source, std::byte* target) noexcept {
  __m512i block = _mm512_loadu_si512(source);
  if constexpr (kCopy) {
    asm("" : "+v"(block));  // as read_once()
    _mm512_storeu_si512(target, block);
  }
  return block;
}

// The register after the 64 bytes of `sum`, from zero.
inline uint32_t reduce(__m512i sum) noexcept {
  const __m512i factor = _mm512_set_epi64(0, 0, to_signed(kSecond<128>), to_signed(kFirst<128>),
                                          to_signed(kSecond<256>), to_signed(kFirst<256>),
                                          to_signed(kSecond<384>), to_signed(kFirst<384>));
  alignas(kBlock) uint64_t lanes[8];
  alignas(kBlock) uint64_t last[8];
  _mm512_store_si512(lanes, fold(sum, factor, _mm512_setzero_si512()));
  _mm512_store_si512(last, sum);
  const uint64_t first_half = lanes[0] ^ lanes[2] ^ lanes[4] ^ last[6];
  const uint64_t second_half = lanes[1] ^ lanes[3] ^ lanes[5] ^ last[7];
  return static_cast<uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, first_half), second_half));
}

// At least kShortestFold bytes; moves both pointers on and leaves less than kBlock.
template <bool kCopy>
inline uint32_t fold_blocks(uint32_t crc, std::byte*& target, const std::byte*& source,
                            size_t& bytes) noexcept {
  const auto take = [&]() noexcept {
    const __m512i block = load<kCopy>(source, target);
    source += kBlock;
    if constexpr (kCopy) target += kBlock;
    bytes -= kBlock;
    return block;
  };
  const __m512i factor = factors<8 * kBlock>();
  __m512i sum = _mm512_xor_si512(take(), _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, crc));
  if (bytes >= kStride - kBlock) {
    __m512i b = take(), c = take(), d = take();
    const __m512i stride = factors<8 * kStride>();
    while (bytes >= kStride) {
      sum = fold(sum, stride, take());
      b = fold(b, stride, take());
      c = fold(c, stride, take());
      d = fold(d, stride, take());
    }
    sum = fold(fold(fold(sum, factor, b), factor, c), factor, d);
  }
  while (bytes >= kBlock) sum = fold(sum, factor, take());
  return reduce(sum);
}

template <bool kCopy>
uint32_t run(uint32_t start, std::byte* target, const std::byte* source, size_t bytes) noexcept {
  uint64_t crc = start;
  if (bytes >= kShortestFold) crc = fold_blocks<kCopy>(start, target, source, bytes);
  for (; bytes >= 8; bytes -= 8, source += 8) {
    uint64_t word;
    std::memcpy(&word, source, 8);
    if constexpr (kCopy) {
      word = read_once(word);
      std::memcpy(target, &word, 8);
      target += 8;
    }
    crc = _mm_crc32_u64(crc, word);
  }
  auto tail = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes) {
    const auto byte = static_cast<uint8_t>(read_once(static_cast<uint64_t>(*source++)));
    if constexpr (kCopy) *target++ = static_cast<std::byte>(byte);
    tail = _mm_crc32_u8(tail, byte);
  }
  return tail;
}

uint32_t extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return run<false>(crc, nullptr, data, bytes);
}

constexpr CrcKernel kKernel{"avx512-vpclmul", extend, run<true>};

}  // namespace

const CrcKernel* crc32c_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
                 __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2")
             ? &kKernel
             : nullptr;
}

}  // namespace mercury::wire
