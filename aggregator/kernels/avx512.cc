// Kernels for AVX-512 F.
#include <immintrin.h>

#include "aggregator/kernels/loops.h"
#include "aggregator/kernels/scalar_lanes.h"
#include "aggregator/kernels/units.h"

namespace mercury::aggregation {
namespace {

__m256i load_half(const std::byte* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store_half(std::byte* to, __m256i value) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

struct F32 {
  static constexpr size_t kLanes = 16;
  static constexpr size_t kWireBytes = 4;
  static constexpr size_t kSumBytes = 4;
  static constexpr bool kFloat = true;
  static __m512 load_sum(const std::byte* from) noexcept { return _mm512_loadu_ps(from); }
  static __m512 load_wire(const std::byte* from) noexcept { return load_sum(from); }
  static void store_sum(std::byte* to, __m512 v) noexcept { _mm512_storeu_ps(to, v); }
  static void store_wire(std::byte* to, __m512 v) noexcept { store_sum(to, v); }
  static __m512 add(__m512 a, __m512 b) noexcept { return _mm512_add_ps(a, b); }
  static __m512 splat(uint32_t n) noexcept { return _mm512_set1_ps(static_cast<float>(n)); }
  static __m512 divide(__m512 a, __m512 b) noexcept { return _mm512_div_ps(a, b); }
  static __m512 canonical(__m512 v) noexcept {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
  }
  // Of both orders, as in avx2.cc. (AVX-512 F has no bitwise operations on floats.)
  static __m512 lesser(__m512 a, __m512 b) noexcept {
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_min_ps(a, b)),
                                               _mm512_castps_si512(_mm512_min_ps(b, a))));
  }
  static __m512 greater(__m512 a, __m512 b) noexcept {
    const __m512i both = _mm512_and_si512(_mm512_castps_si512(_mm512_max_ps(a, b)),
                                          _mm512_castps_si512(_mm512_max_ps(b, a)));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(both, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q),
                                                     _mm512_set1_epi32(0x7fc00000)));
  }
};

struct F16 : F32 {
  static constexpr size_t kWireBytes = 2;
  static __m512 load_wire(const std::byte* from) noexcept {
    return _mm512_cvtph_ps(load_half(from));
  }
  static void store_wire(std::byte* to, __m512 v) noexcept {
    store_half(to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

struct Bf16 : F32 {
  static constexpr size_t kWireBytes = 2;
  static __m512 load_wire(const std::byte* from) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from)), 16));
  }
  static void store_wire(std::byte* to, __m512 v) noexcept {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    store_half(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
};

struct F64 {
  static constexpr size_t kLanes = 8;
  static constexpr size_t kWireBytes = 8;
  static constexpr size_t kSumBytes = 8;
  static constexpr bool kFloat = true;
  static __m512d load_sum(const std::byte* from) noexcept { return _mm512_loadu_pd(from); }
  static __m512d load_wire(const std::byte* from) noexcept { return load_sum(from); }
  static void store_sum(std::byte* to, __m512d v) noexcept { _mm512_storeu_pd(to, v); }
  static void store_wire(std::byte* to, __m512d v) noexcept { store_sum(to, v); }
  static __m512d add(__m512d a, __m512d b) noexcept { return _mm512_add_pd(a, b); }
  static __m512d splat(uint32_t n) noexcept { return _mm512_set1_pd(n); }
  static __m512d divide(__m512d a, __m512d b) noexcept { return _mm512_div_pd(a, b); }
  static __m512d canonical(__m512d v) noexcept {
    const __m512d nan = _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8000000000000));
    return _mm512_mask_mov_pd(v, _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q), nan);
  }
  static __m512d lesser(__m512d a, __m512d b) noexcept {
    return _mm512_castsi512_pd(_mm512_or_si512(_mm512_castpd_si512(_mm512_min_pd(a, b)),
                                               _mm512_castpd_si512(_mm512_min_pd(b, a))));
  }
  static __m512d greater(__m512d a, __m512d b) noexcept {
    const __m512i both = _mm512_and_si512(_mm512_castpd_si512(_mm512_max_pd(a, b)),
                                          _mm512_castpd_si512(_mm512_max_pd(b, a)));
    return _mm512_castsi512_pd(_mm512_mask_mov_epi64(both, _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q),
                                                     _mm512_set1_epi64(0x7ff8000000000000)));
  }
};

template <Dtype kType>
struct Integer {
  static constexpr size_t kBytes = size_of(kType);
  static constexpr size_t kLanes = 64 / kBytes;
  static constexpr size_t kWireBytes = kBytes;
  static constexpr size_t kSumBytes = kBytes;
  static constexpr bool kFloat = false;
  static __m512i load_sum(const std::byte* from) noexcept { return _mm512_loadu_si512(from); }
  static __m512i load_wire(const std::byte* from) noexcept { return load_sum(from); }
  static void store_sum(std::byte* to, __m512i v) noexcept { _mm512_storeu_si512(to, v); }
  static __m512i add(__m512i a, __m512i b) noexcept {
    return kBytes == 4 ? _mm512_add_epi32(a, b) : _mm512_add_epi64(a, b);
  }
  static __m512i lesser(__m512i a, __m512i b) noexcept {
    return kBytes == 4 ? _mm512_min_epi32(a, b) : _mm512_min_epi64(a, b);
  }
  static __m512i greater(__m512i a, __m512i b) noexcept {
    return kBytes == 4 ? _mm512_max_epi32(a, b) : _mm512_max_epi64(a, b);
  }
};

// AVX-512 F has no arithmetic on bytes, but implies AVX2, which has.
template <Dtype kType>
struct Byte {
  static constexpr size_t kLanes = 32;
  static constexpr size_t kWireBytes = 1;
  static constexpr size_t kSumBytes = 1;
  static constexpr bool kFloat = false;
  static __m256i load_sum(const std::byte* from) noexcept { return load_half(from); }
  static __m256i load_wire(const std::byte* from) noexcept { return load_half(from); }
  static void store_sum(std::byte* to, __m256i v) noexcept { store_half(to, v); }
  static __m256i add(__m256i a, __m256i b) noexcept { return _mm256_add_epi8(a, b); }
  static __m256i lesser(__m256i a, __m256i b) noexcept {
    return kType == Dtype::kI8 ? _mm256_min_epi8(a, b) : _mm256_min_epu8(a, b);
  }
  static __m256i greater(__m256i a, __m256i b) noexcept {
    return kType == Dtype::kI8 ? _mm256_max_epi8(a, b) : _mm256_max_epu8(a, b);
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
struct LanesOf<Dtype::kI8> : Byte<Dtype::kI8> {};
template <>
struct LanesOf<Dtype::kU8> : Byte<Dtype::kU8> {};

struct Avx512 {
  template <Dtype kType>
  using One = ScalarLaneOf<Avx512, kType>;
  template <Dtype kType>
  using Wide = LanesOf<kType>;
};

}  // namespace

constexpr KernelSet kAvx512Set = kernel_set<Avx512>("avx512");

}  // namespace mercury::aggregation
