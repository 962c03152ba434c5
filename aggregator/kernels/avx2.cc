// Kernels for AVX2 and F16C.
#include <immintrin.h>

#include "aggregator/kernels/loops.h"
#include "aggregator/kernels/scalar_lanes.h"
#include "aggregator/kernels/units.h"

namespace mercury::aggregation {
namespace {

__m256i load(const std::byte* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store(std::byte* to, __m256i value) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
__m128i load_half(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
void store_half(std::byte* to, __m128i value) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

struct F32 {
  static constexpr size_t kLanes = 8;
  static constexpr size_t kWireBytes = 4;
  static constexpr size_t kSumBytes = 4;
  static constexpr bool kFloat = true;
  static __m256 load_sum(const std::byte* from) noexcept { return _mm256_castsi256_ps(load(from)); }
  static __m256 load_wire(const std::byte* from) noexcept { return load_sum(from); }
  static void store_sum(std::byte* to, __m256 v) noexcept { store(to, _mm256_castps_si256(v)); }
  static void store_wire(std::byte* to, __m256 v) noexcept { store_sum(to, v); }
  static __m256 add(__m256 a, __m256 b) noexcept { return _mm256_add_ps(a, b); }
  static __m256 splat(uint32_t n) noexcept { return _mm256_set1_ps(static_cast<float>(n)); }
  static __m256 divide(__m256 a, __m256 b) noexcept { return _mm256_div_ps(a, b); }
  static __m256 canonical(__m256 v) noexcept {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  // The instruction gives its second operand where both are zeros or one is a NaN: of both orders
  // together come the sign of either zero, and a NaN.
  static __m256 lesser(__m256 a, __m256 b) noexcept {
    return _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
  }
  static __m256 greater(__m256 a, __m256 b) noexcept {
    const __m256 both = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
    return _mm256_or_ps(both, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
  }
};

struct F16 : F32 {
  static constexpr size_t kWireBytes = 2;
  static __m256 load_wire(const std::byte* from) noexcept {
    return _mm256_cvtph_ps(load_half(from));
  }
  static void store_wire(std::byte* to, __m256 v) noexcept {
    store_half(to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

struct Bf16 : F32 {
  static constexpr size_t kWireBytes = 2;
  static __m256 load_wire(const std::byte* from) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from)), 16));
  }
  static void store_wire(std::byte* to, __m256 v) noexcept {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    // packus works within 128-bit halves; each value fits 16 bits, so nothing saturates.
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);
    store_half(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)));
  }
};

struct F64 {
  static constexpr size_t kLanes = 4;
  static constexpr size_t kWireBytes = 8;
  static constexpr size_t kSumBytes = 8;
  static constexpr bool kFloat = true;
  static __m256d load_sum(const std::byte* from) noexcept {
    return _mm256_castsi256_pd(load(from));
  }
  static __m256d load_wire(const std::byte* from) noexcept { return load_sum(from); }
  static void store_sum(std::byte* to, __m256d v) noexcept { store(to, _mm256_castpd_si256(v)); }
  static void store_wire(std::byte* to, __m256d v) noexcept { store_sum(to, v); }
  static __m256d add(__m256d a, __m256d b) noexcept { return _mm256_add_pd(a, b); }
  static __m256d splat(uint32_t n) noexcept { return _mm256_set1_pd(n); }
  static __m256d divide(__m256d a, __m256d b) noexcept { return _mm256_div_pd(a, b); }
  static __m256d canonical(__m256d v) noexcept {
    const __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7ff8000000000000));
    return _mm256_blendv_pd(v, nan, _mm256_cmp_pd(v, v, _CMP_UNORD_Q));
  }
  static __m256d lesser(__m256d a, __m256d b) noexcept {
    return _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a));
  }
  static __m256d greater(__m256d a, __m256d b) noexcept {
    const __m256d both = _mm256_and_pd(_mm256_max_pd(a, b), _mm256_max_pd(b, a));
    return _mm256_or_pd(both, _mm256_cmp_pd(a, b, _CMP_UNORD_Q));
  }
};

template <Dtype kType>
struct Integer {
  static constexpr size_t kBytes = size_of(kType);
  static constexpr size_t kLanes = 32 / kBytes;
  static constexpr size_t kWireBytes = kBytes;
  static constexpr size_t kSumBytes = kBytes;
  static constexpr bool kFloat = false;
  static __m256i load_sum(const std::byte* from) noexcept { return load(from); }
  static __m256i load_wire(const std::byte* from) noexcept { return load(from); }
  static void store_sum(std::byte* to, __m256i v) noexcept { store(to, v); }
  static __m256i add(__m256i a, __m256i b) noexcept {
    if constexpr (kBytes == 1) return _mm256_add_epi8(a, b);
    return kBytes == 4 ? _mm256_add_epi32(a, b) : _mm256_add_epi64(a, b);
  }
  static __m256i lesser(__m256i a, __m256i b) noexcept {
    if constexpr (kType == Dtype::kI8) return _mm256_min_epi8(a, b);
    if constexpr (kType == Dtype::kU8) return _mm256_min_epu8(a, b);
    if constexpr (kType == Dtype::kI32) return _mm256_min_epi32(a, b);
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b));
  }
  static __m256i greater(__m256i a, __m256i b) noexcept {
    if constexpr (kType == Dtype::kI8) return _mm256_max_epi8(a, b);
    if constexpr (kType == Dtype::kU8) return _mm256_max_epu8(a, b);
    if constexpr (kType == Dtype::kI32) return _mm256_max_epi32(a, b);
    return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b));
  }
};

template <Dtype kType>
struct LanesOf;
template <>
struct LanesOf<Dtype::kF32> : F32 {};
template <>
struct LanesOf<Dtype::kF64> : F64 {};
template <>
struct LanesOf<Dtype::kF16> : F16 {};
template <>
struct LanesOf<Dtype::kBf16> : Bf16 {};
template <>
struct LanesOf<Dtype::kI32> : Integer<Dtype::kI32> {};
template <>
struct LanesOf<Dtype::kI64> : Integer<Dtype::kI64> {};
template <>
struct LanesOf<Dtype::kI8> : Integer<Dtype::kI8> {};
template <>
struct LanesOf<Dtype::kU8> : Integer<Dtype::kU8> {};

struct Avx2 {
  template <Dtype kType>
  using One = ScalarLaneOf<Avx2, kType>;
  template <Dtype kType>
  using Wide = LanesOf<kType>;
};

}  // namespace

constexpr KernelSet kAvx2Set = kernel_set<Avx2>("avx2");

}  // namespace mercury::aggregation
