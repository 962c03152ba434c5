// The loops that all kernel units share. Included only by those units.
//
// Each unit is compiled for its own instruction set, so no function may be shared between units by
// the linker: whatever is instantiated here takes a type of the unit's unnamed namespace as
// argument, which makes it local to the unit, and nothing of the standard library but memcpy is
// called.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/kernels/kernels.h"

namespace mercury::aggregation {

// Wide handles Wide::kLanes elements at a time, One handles the rest, one at a time. Both have
//   kLanes, kWireBytes, kSumBytes (bytes per element on the wire and in the accumulator), kFloat,
//   load_wire, load_sum, store_sum, add, lesser, greater
// and, where kFloat is set, splat, divide, canonical, store_wire.
template <class Wide, class One>
struct Loops {
  static_assert(One::kLanes == 1 && Wide::kWireBytes == One::kWireBytes &&
                Wide::kSumBytes == One::kSumBytes);
  static constexpr size_t kWire = Wide::kWireBytes;
  static constexpr size_t kSum = Wide::kSumBytes;

  static void widen(std::byte* sum, const std::byte* wire, size_t elems) noexcept {
    size_t i = 0;
    for (; i + Wide::kLanes <= elems; i += Wide::kLanes) {
      Wide::store_sum(sum + i * kSum, Wide::load_wire(wire + i * kWire));
    }
    for (; i < elems; ++i) One::store_sum(sum + i * kSum, One::load_wire(wire + i * kWire));
  }

  template <Merge kMerge>
  static void merge(std::byte* sum, const std::byte* wire, size_t elems) noexcept {
    size_t i = 0;
    for (; i + Wide::kLanes <= elems; i += Wide::kLanes) {
      Wide::store_sum(sum + i * kSum, merged<Wide, kMerge>(Wide::load_sum(sum + i * kSum),
                                                           Wide::load_wire(wire + i * kWire)));
    }
    for (; i < elems; ++i) {
      One::store_sum(sum + i * kSum, merged<One, kMerge>(One::load_sum(sum + i * kSum),
                                                         One::load_wire(wire + i * kWire)));
    }
  }

  // In place: the wire type is never wider than the accumulator, so what is stored at step i lies
  // below what step i + 1 loads.
  static void finish(std::byte* sum, size_t elems, uint32_t divisor) noexcept {
    static_assert(kWire <= kSum);
    if (divisor == 1) {
      finish_as<false>(sum, elems, 1);
    } else {
      finish_as<true>(sum, elems, divisor);
    }
  }

 private:
  template <class Lanes, Merge kMerge, class Value>
  static Value merged(Value a, Value b) noexcept {
    if constexpr (kMerge == Merge::kLesser) {
      return Lanes::lesser(a, b);
    } else if constexpr (kMerge == Merge::kGreater) {
      return Lanes::greater(a, b);
    } else {
      return Lanes::add(a, b);
    }
  }
  template <bool kDivide>
  static void finish_as(std::byte* sum, size_t elems, uint32_t divisor) noexcept {
    size_t i = 0;
    const auto wide_divisor = Wide::splat(divisor);
    for (; i + Wide::kLanes <= elems; i += Wide::kLanes) {
      auto value = Wide::load_sum(sum + i * kSum);
      if constexpr (kDivide) value = Wide::divide(value, wide_divisor);
      Wide::store_wire(sum + i * kWire, Wide::canonical(value));
    }
    const auto divisor_of_one = One::splat(divisor);
    for (; i < elems; ++i) {
      auto value = One::load_sum(sum + i * kSum);
      if constexpr (kDivide) value = One::divide(value, divisor_of_one);
      One::store_wire(sum + i * kWire, One::canonical(value));
    }
  }
};

template <class Wide, class One, Merge kMerge>
constexpr TypeKernels type_kernels() {
  using L = Loops<Wide, One>;
  TypeKernels out;
  if constexpr (Wide::kWireBytes != Wide::kSumBytes) out.widen = L::widen;
  out.add = L::template merge<kMerge>;
  if constexpr (Wide::kFloat) out.finish = L::finish;
  return out;
}

// `Unit` is a type of the unit's unnamed namespace; Unit::Wide<D> and Unit::One<D> are its lanes.
template <class Unit, Merge kMerge, int kType = 0>
constexpr void fill_kernels(KernelSet& set) {
  constexpr auto kDtype = static_cast<Dtype>(kType);
  set.types[kernel_index(kDtype, kMerge)] =
      type_kernels<typename Unit::template Wide<kDtype>, typename Unit::template One<kDtype>,
                   kMerge>();
  if constexpr (kType + 1 < kDtypeCount) fill_kernels<Unit, kMerge, kType + 1>(set);
}
template <class Unit>
constexpr KernelSet kernel_set(const char* name) {
  KernelSet set{name, {}};
  fill_kernels<Unit, Merge::kAdd>(set);
  fill_kernels<Unit, Merge::kLesser>(set);
  fill_kernels<Unit, Merge::kGreater>(set);
  return set;
}

}  // namespace mercury::aggregation
