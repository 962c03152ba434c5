// Folds 64 bytes with each pair of carry-less multiplications, three or four such registers side by
// side to cover their latency. Where nothing is copied crc32q, which is another unit of the core,
// takes the last third of each long piece meanwhile; it always ends a fold and takes the tail.
// Paper: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009, with the four lanes of VPCLMULQDQ in place of its four registers.
#include <immintrin.h>

#include <cstring>

#include "transport/wire/crc32c_steps.h"

namespace mercury::wire {
namespace {

constexpr size_t kBlock = 64;                 // one register
constexpr size_t kStride = 4 * kBlock;        // four of them
constexpr size_t kShortestFold = 2 * kBlock;  // below, crc32q alone is as fast
// Rounds in which both units work: for payloads of 9000-byte, 3,500-byte and 1500-byte frames.
constexpr size_t kLongRounds = 30;
constexpr size_t kMiddleRounds = 10;
constexpr size_t kShortRounds = 4;

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

inline __m512i first_word(uint64_t word) noexcept {
  return _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, to_signed(word));
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
                            size_t& bytes, const std::byte* next) noexcept {
  const auto take = [&]() noexcept {
    const __m512i block = load<kCopy>(source, target);
    source += kBlock;
    if constexpr (kCopy) {
      target += kBlock;
      next = fetch_line(next);
    }
    bytes -= kBlock;
    return block;
  };
  const __m512i factor = factors<8 * kBlock>();
  __m512i sum = _mm512_xor_si512(take(), first_word(crc));
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

// Both units at once: two thirds of a piece are folded while crc32q takes the last third in three
// streams. Each keeps its unit busy for as long as the other: on Zen 4 and 5 a carry-less
// multiplication of 64 bytes takes two cycles, and crc32q one. Not for copies, where stores to four
// places at a time cost more than this gains.
constexpr size_t kFoldedPerRound = 3 * kBlock;
constexpr size_t kStreamPerRound = 32;
constexpr size_t kRoundBytes = kFoldedPerRound + 3 * kStreamPerRound;

template <size_t kRounds>
inline uint64_t fold_beside_streams(uint64_t crc, const std::byte*& source,
                                    size_t& bytes) noexcept {
  constexpr size_t kStream = kRounds * kStreamPerRound;
  const __m512i stride = factors<8 * kFoldedPerRound>();
  while (bytes >= kRounds * kRoundBytes) {
    const std::byte* words = source + kRounds * kFoldedPerRound;
    __m512i x{}, y{}, z{};
    uint64_t a = 0, b = 0, c = 0;
    for (size_t round = 0; round < kRounds; ++round) {
      __m512i block = _mm512_loadu_si512(source);
      if (round == 0) block = _mm512_xor_si512(block, first_word(crc));
      x = fold(x, stride, block);
      y = fold(y, stride, _mm512_loadu_si512(source + kBlock));
      z = fold(z, stride, _mm512_loadu_si512(source + 2 * kBlock));
      for (size_t i = 0; i < kStreamPerRound; i += 8) {
        a = step<false>(a, words + i, nullptr);
        b = step<false>(b, words + kStream + i, nullptr);
        c = step<false>(c, words + 2 * kStream + i, nullptr);
      }
      source += kFoldedPerRound;
      words += kStreamPerRound;
    }
    const __m512i next = factors<8 * kBlock>();
    const uint64_t folded = reduce(fold(fold(x, next, y), next, z));
    crc = shift<3 * kStream>(folded) ^ shift<2 * kStream>(a) ^ shift<kStream>(b) ^ c;
    source += 3 * kStream;
    bytes -= kRounds * kRoundBytes;
  }
  return crc;
}

template <bool kCopy>
uint32_t run(uint32_t start, std::byte* target, const std::byte* source, size_t bytes,
             const std::byte* next) noexcept {
  uint64_t crc = start;
  if constexpr (!kCopy) {
    crc = fold_beside_streams<kLongRounds>(crc, source, bytes);
    crc = fold_beside_streams<kMiddleRounds>(crc, source, bytes);
    crc = fold_beside_streams<kShortRounds>(crc, source, bytes);
  }
  if (bytes >= kShortestFold)
    crc = fold_blocks<kCopy>(static_cast<uint32_t>(crc), target, source, bytes, next);
  return words_and_last_bytes<kCopy>(crc, source, target, bytes);
}

[[gnu::noinline]] uint32_t extend_long(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return run<false>(crc, nullptr, data, bytes, nullptr);
}

// A header is spared what the loops of payloads set up.
uint32_t extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return bytes >= kShortestFold ? extend_long(crc, data, bytes)
                                : words_and_last_bytes<false>(crc, data, nullptr, bytes);
}

uint32_t six_words(uint32_t crc, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                   uint64_t f) noexcept {
  return words_in_registers(crc, a, b, c, d, e, f);
}

constexpr CrcKernel kKernel{"avx512-vpclmul", extend, run<true>, six_words};

}  // namespace

const CrcKernel* crc32c_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
                 __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2")
             ? &kKernel
             : nullptr;
}

}  // namespace mercury::wire
