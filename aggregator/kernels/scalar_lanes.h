// One element at a time: the scalar unit, and the last few elements in the others. `Unit` makes
// each unit's copy its own (kernels/loops.h says why).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "scheduler/terms/element.h"

namespace mercury::aggregation {

template <class Unit, class Number>
struct NativeLane {  // wire type == accumulator type
  static constexpr size_t kLanes = 1;
  static constexpr size_t kWireBytes = sizeof(Number);
  static constexpr size_t kSumBytes = sizeof(Number);
  static Number load_wire(const std::byte* from) noexcept {
    Number value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static Number load_sum(const std::byte* from) noexcept { return load_wire(from); }
  static void store_sum(std::byte* to, Number value) noexcept {
    std::memcpy(to, &value, sizeof value);
  }
  static Number add(Number a, Number b) noexcept { return static_cast<Number>(a + b); }
};

template <class Unit, class Number>
struct FloatLane : NativeLane<Unit, Number> {
  static constexpr bool kFloat = true;
  static Number splat(uint32_t divisor) noexcept { return static_cast<Number>(divisor); }
  static Number divide(Number a, Number b) noexcept { return a / b; }
  static Number canonical(Number value) noexcept {
    return value == value ? value : static_cast<Number>(__builtin_nanf(""));
  }
  static bool is_less(Number a, Number b) noexcept {
    return a < b || (a == b && __builtin_signbit(a) != 0);
  }
  static Number lesser(Number a, Number b) noexcept {
    if (a != a || b != b) return static_cast<Number>(__builtin_nanf(""));
    return is_less(a, b) ? a : b;
  }
  static Number greater(Number a, Number b) noexcept {
    if (a != a || b != b) return static_cast<Number>(__builtin_nanf(""));
    return is_less(a, b) ? b : a;
  }
  static void store_wire(std::byte* to, Number value) noexcept { FloatLane::store_sum(to, value); }
};

// Unsigned, so that sums wrap instead of being undefined; compared as what they are.
template <class Unit, class Number, class Compared>
struct IntegerLane : NativeLane<Unit, Number> {
  static constexpr bool kFloat = false;
  static Number lesser(Number a, Number b) noexcept {
    return static_cast<Compared>(a) < static_cast<Compared>(b) ? a : b;
  }
  static Number greater(Number a, Number b) noexcept {
    return static_cast<Compared>(a) < static_cast<Compared>(b) ? b : a;
  }
};

template <class Unit>
struct HalfLane : FloatLane<Unit, float> {
  static constexpr size_t kWireBytes = 2;
  static uint16_t load_bits(const std::byte* from) noexcept {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
  }
  static void store_bits(std::byte* to, uint32_t bits) noexcept {
    const uint16_t half = static_cast<uint16_t>(bits);
    std::memcpy(to, &half, sizeof half);
  }
  static float float_of(uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }
  static uint32_t bits_of(float value) noexcept { return __builtin_bit_cast(uint32_t, value); }
};

template <class Unit>
struct F16Lane : HalfLane<Unit> {
  using Base = HalfLane<Unit>;
  // Exact. A signalling NaN becomes quiet, as F16C does it.
  static float load_wire(const std::byte* from) noexcept {
    const uint32_t half = Base::load_bits(from);
    const uint32_t sign = (half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t mantissa = half & 0x3ff;
    if (exponent == 0) {  // zero or denormal: mantissa * 2^-24
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return Base::float_of(Base::bits_of(magnitude) | sign);
    }
    if (exponent == 0x1f) {
      const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
      return Base::float_of(sign | 0x7f800000 | quiet | (mantissa << 13));
    }
    return Base::float_of(sign | ((exponent + (127 - 15)) << 23) | (mantissa << 13));
  }
  // `value` is canonical. Rounds to nearest even; 65520 and above becomes infinity.
  static void store_wire(std::byte* to, float value) noexcept {
    const uint32_t bits = Base::bits_of(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return Base::store_bits(to, 0x7e00);
    if (magnitude >= 0x477ff000) return Base::store_bits(to, sign | 0x7c00);
    if (magnitude < 0x38800000) {
      // Below 2^-14 the half is denormal, in steps of 2^-24: that is the step of floats in [0.5,
      // 1), so adding 0.5 rounds to it.
      const float shifted = Base::float_of(magnitude) + 0.5f;
      return Base::store_bits(to, sign | (Base::bits_of(shifted) - 0x3f000000));
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    const uint32_t rounded = magnitude - ((127u - 15u) << 23) + 0xfff + odd;
    Base::store_bits(to, sign | (rounded >> 13));
  }
};

template <class Unit>
struct Bf16Lane : HalfLane<Unit> {
  using Base = HalfLane<Unit>;
  static float load_wire(const std::byte* from) noexcept {
    return Base::float_of(static_cast<uint32_t>(Base::load_bits(from)) << 16);
  }
  // `value` is canonical, so rounding cannot carry a NaN into infinity or zero.
  static void store_wire(std::byte* to, float value) noexcept {
    const uint32_t bits = Base::bits_of(value);
    Base::store_bits(to, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

template <class Unit, Dtype kType>
struct ScalarLaneOf;
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kF32> : FloatLane<Unit, float> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kF64> : FloatLane<Unit, double> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kF16> : F16Lane<Unit> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kBf16> : Bf16Lane<Unit> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kI32> : IntegerLane<Unit, uint32_t, int32_t> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kI64> : IntegerLane<Unit, uint64_t, int64_t> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kI8> : IntegerLane<Unit, uint8_t, int8_t> {};
template <class Unit>
struct ScalarLaneOf<Unit, Dtype::kU8> : IntegerLane<Unit, uint8_t, uint8_t> {};

}  // namespace mercury::aggregation
