// Slow, obvious arithmetic that the kernels are compared with: halves are decoded by their
// definition and rounded by looking for the nearest one.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "scheduler/terms/element.h"

namespace mercury::reference {

struct HalfFormat {
  int exponent_bits;
  int mantissa_bits;
};
inline constexpr HalfFormat kF16Format{5, 10};
inline constexpr HalfFormat kBf16Format{8, 7};

inline double decode_half(uint16_t bits, HalfFormat format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

// The same, of all halves found once: a disaster checks millions.
inline double half_value(uint16_t bits, HalfFormat format) {
  static const auto kTables = [] {
    std::array<std::vector<double>, 2> tables;
    for (size_t table = 0; table < tables.size(); ++table) {
      for (uint32_t half = 0; half <= 0xffff; ++half) {
        tables[table].push_back(
            decode_half(static_cast<uint16_t>(half), table == 0 ? kF16Format : kBf16Format));
      }
    }
    return tables;
  }();
  return kTables[format.mantissa_bits == kF16Format.mantissa_bits ? 0 : 1][bits];
}

// The nearest half; of two equally near the one whose last bit is 0. Beyond the largest one,
// infinity counts as the number that would follow it (IEEE 754, 4.3.1).
inline uint16_t nearest_half(float value, HalfFormat format) {
  const uint32_t all_ones = (1U << format.exponent_bits) - 1;
  const uint32_t infinity = all_ones << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1U << (format.mantissa_bits - 1));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto value_at = [&](uint32_t bits) {
    if (bits < infinity) return half_value(static_cast<uint16_t>(bits), format);
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    return std::ldexp(1.0, static_cast<int>(all_ones) - bias);
  };
  uint32_t below = 0;
  uint32_t above = infinity;
  while (above - below > 1) {
    const uint32_t middle = (below + above) / 2;
    (value_at(middle) <= magnitude ? below : above) = middle;
  }
  const double to_below = magnitude - value_at(below);
  const double to_above = value_at(above) - magnitude;
  const bool up = to_above < to_below || (to_above == to_below && (below & 1) != 0);
  return static_cast<uint16_t>(sign | (up ? above : below));
}

// How each element type is stored, summed and finished.
template <Dtype kType>
struct Arithmetic;

template <class Number>
struct FloatArithmetic {
  using Wire = Number;
  using Sum = Number;
  static Sum widen(Wire value) { return value; }
  static Sum add(Sum a, Sum b) { return a + b; }
  static bool less(Sum a, Sum b) { return a < b || (a == b && std::signbit(a)); }
  static bool is_nan(Sum a) { return std::isnan(a); }
  static Wire finish(Sum sum, uint32_t divisor) {
    const Sum value = divisor == 1 ? sum : sum / static_cast<Sum>(divisor);
    return std::isnan(value) ? std::numeric_limits<Number>::quiet_NaN() : value;
  }
};
template <>
struct Arithmetic<Dtype::kF32> : FloatArithmetic<float> {};
template <>
struct Arithmetic<Dtype::kF64> : FloatArithmetic<double> {};

template <const HalfFormat& kFormat>
struct HalfArithmetic {
  using Wire = uint16_t;
  using Sum = float;
  static Sum widen(Wire value) { return static_cast<float>(half_value(value, kFormat)); }
  static Sum add(Sum a, Sum b) { return a + b; }
  static bool less(Sum a, Sum b) { return a < b || (a == b && std::signbit(a)); }
  static bool is_nan(Sum a) { return std::isnan(a); }
  static Wire finish(Sum sum, uint32_t divisor) {
    return nearest_half(divisor == 1 ? sum : sum / static_cast<float>(divisor), kFormat);
  }
};
template <>
struct Arithmetic<Dtype::kF16> : HalfArithmetic<kF16Format> {};
template <>
struct Arithmetic<Dtype::kBf16> : HalfArithmetic<kBf16Format> {};

template <class Number, class Compared>
struct IntegerArithmetic {
  using Wire = Number;
  using Sum = Number;
  static Sum widen(Wire value) { return value; }
  static Sum add(Sum a, Sum b) { return static_cast<Sum>(a + b); }
  static bool less(Sum a, Sum b) { return static_cast<Compared>(a) < static_cast<Compared>(b); }
  static bool is_nan(Sum) { return false; }
  static Wire finish(Sum sum, uint32_t) { return sum; }
};
template <>
struct Arithmetic<Dtype::kI32> : IntegerArithmetic<uint32_t, int32_t> {};
template <>
struct Arithmetic<Dtype::kI64> : IntegerArithmetic<uint64_t, int64_t> {};
template <>
struct Arithmetic<Dtype::kI8> : IntegerArithmetic<uint8_t, int8_t> {};
template <>
struct Arithmetic<Dtype::kU8> : IntegerArithmetic<uint8_t, uint8_t> {};

// What two contributions become.
template <Dtype kType>
auto merged(ReduceOp op, typename Arithmetic<kType>::Sum a, typename Arithmetic<kType>::Sum b) {
  using A = Arithmetic<kType>;
  if (op != ReduceOp::kMin && op != ReduceOp::kMax) return A::add(a, b);
  if (A::is_nan(a)) return a;
  if (A::is_nan(b)) return b;
  return A::less(a, b) == (op == ReduceOp::kMin) ? a : b;
}

// The sum of `payloads`, added in that order; or the least or the greatest of them.
template <Dtype kType>
std::vector<std::byte> sum_of(const std::vector<std::vector<std::byte>>& payloads, uint32_t divisor,
                              ReduceOp op) {
  using A = Arithmetic<kType>;
  using Wire = typename A::Wire;
  std::vector<std::byte> out(payloads.front().size());
  for (size_t at = 0; at < out.size(); at += sizeof(Wire)) {
    typename A::Sum sum{};
    for (size_t k = 0; k < payloads.size(); ++k) {
      Wire wire;
      std::memcpy(&wire, payloads[k].data() + at, sizeof wire);
      sum = k == 0 ? A::widen(wire) : merged<kType>(op, sum, A::widen(wire));
    }
    const Wire result = A::finish(sum, divisor);
    std::memcpy(out.data() + at, &result, sizeof result);
  }
  return out;
}

// Calls f.operator()<type>() for the type.
template <class F>
auto with_type(Dtype type, F f) {
  switch (type) {
    case Dtype::kF64:
      return f.template operator()<Dtype::kF64>();
    case Dtype::kF16:
      return f.template operator()<Dtype::kF16>();
    case Dtype::kBf16:
      return f.template operator()<Dtype::kBf16>();
    case Dtype::kI32:
      return f.template operator()<Dtype::kI32>();
    case Dtype::kI64:
      return f.template operator()<Dtype::kI64>();
    case Dtype::kI8:
      return f.template operator()<Dtype::kI8>();
    case Dtype::kU8:
      return f.template operator()<Dtype::kU8>();
    case Dtype::kF32:
      break;
  }
  return f.template operator()<Dtype::kF32>();
}

inline std::vector<std::byte> sum_of(Dtype type,
                                     const std::vector<std::vector<std::byte>>& payloads,
                                     uint32_t divisor, ReduceOp op = ReduceOp::kSum) {
  return with_type(type, [&]<Dtype kType>() { return sum_of<kType>(payloads, divisor, op); });
}

}  // namespace mercury::reference
