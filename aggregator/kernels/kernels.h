// The arithmetic of the aggregator: one set of functions per instruction set, equal to the bit.
//
// Shape: an accumulator holds `elems` numbers of the accumulator type (f32 for f16 and bf16, else
// the wire type) and is aligned to 64 bytes; wire elements are little-endian, of any alignment.
// Invariants: (1) every set gives the same bits for the same input, once finish has run; (2)
// integers wrap; (3) add is one IEEE addition per element, nothing is fused or reordered; of the
// lesser and the greater -0 is less than +0, and any NaN makes a NaN, so that no order of
// contributions changes a bit; (4) finish replaces every NaN by the one quiet NaN with a positive
// sign and no payload. Without (4) the payload of a sum of two NaNs would depend on the order of
// the operands, which compilers are free to swap. Owner/thread: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler/terms/element.h"

namespace mercury::aggregation {

struct TypeKernels {
  // accumulator = wire elements, converted. Null where the two types are the same.
  void (*widen)(std::byte* accumulator, const std::byte* wire, size_t elems) noexcept = nullptr;
  // accumulator += wire elements; or the lesser or the greater of both.
  void (*add)(std::byte* accumulator, const std::byte* wire, size_t elems) noexcept = nullptr;
  // Divides by `divisor` (floating point only; 1 = a plain sum), makes NaNs canonical, and leaves
  // the elements in the wire type, rounded to nearest even, at the start of the accumulator. Null
  // where there is nothing to do (integers).
  void (*finish)(std::byte* accumulator, size_t elems, uint32_t divisor) noexcept = nullptr;
};

// How one more contribution is merged into the accumulator.
enum class Merge : uint8_t { kAdd = 0, kLesser = 1, kGreater = 2 };
inline constexpr int kMergeCount = 3;
constexpr Merge merge_of(ReduceOp op) {
  return op == ReduceOp::kMin   ? Merge::kLesser
         : op == ReduceOp::kMax ? Merge::kGreater
                                : Merge::kAdd;
}
constexpr uint8_t kernel_index(Dtype type, Merge merge) {
  return static_cast<uint8_t>(static_cast<int>(merge) * kDtypeCount + static_cast<int>(type));
}

struct KernelSet {
  const char* name = nullptr;
  std::array<TypeKernels, kMergeCount * kDtypeCount> types;  // by kernel_index: sums by Dtype
};

// Null if this CPU, or its operating system, lacks the instructions.
const KernelSet* scalar_kernels() noexcept;
const KernelSet* avx2_kernels() noexcept;
const KernelSet* avx512_kernels() noexcept;

// The set in use.
const KernelSet& kernels() noexcept;
// Instead of it: for programs in which nobody looks at what the sums are of. `set` stays.
void use_kernels(const KernelSet& set) noexcept;

constexpr size_t accumulator_bytes(Dtype type) {
  return type == Dtype::kF16 || type == Dtype::kBf16 ? sizeof(float) : size_of(type);
}

}  // namespace mercury::aggregation
