// What a tensor's elements are, and what is made of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mercury {

// Element types. The numbers travel on the wire and through the C ABI.
enum class Dtype : uint8_t {
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kBf16 = 3,
  kI32 = 4,
  kI64 = 5,
  kI8 = 6,
  kU8 = 7
};
inline constexpr int kDtypeCount = 8;

constexpr size_t size_of(Dtype type) {
  switch (type) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBf16:
      return 2;
    case Dtype::kI8:
    case Dtype::kU8:
      return 1;
  }
  return 0;
}
constexpr bool is_integer(Dtype type) {
  return type == Dtype::kI32 || type == Dtype::kI64 || type == Dtype::kI8 || type == Dtype::kU8;
}
const char* name_of(Dtype type);

// What a tensor's contributions are made into. The numbers travel like those of element types.
enum class ReduceOp : uint8_t { kSum = 0, kAverage = 1, kMin = 2, kMax = 3 };
inline constexpr int kReduceOpCount = 4;
constexpr bool is_reduce_op(ReduceOp op) { return static_cast<int>(op) < kReduceOpCount; }
// Integers have no averages.
constexpr bool applies(ReduceOp op, Dtype type) {
  return op != ReduceOp::kAverage || !is_integer(type);
}
// What the first versions have: whoever is asked for more must say that it knows it
// (kKnowsReductions).
constexpr bool is_old(Dtype type, ReduceOp op) {
  return type <= Dtype::kI64 && op <= ReduceOp::kAverage;
}
const char* name_of(ReduceOp op);

}  // namespace mercury
