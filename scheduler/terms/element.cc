#include "scheduler/terms/element.h"

#include <cstddef>

namespace mercury {

const char* name_of(Dtype type) {
  constexpr const char* kNames[kDtypeCount] = {"f32", "f64", "f16", "bf16",
                                               "i32", "i64", "i8",  "u8"};
  const auto index = static_cast<size_t>(type);
  return index < kDtypeCount ? kNames[index] : "unknown";
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[kReduceOpCount] = {"sum", "average", "min", "max"};
  return is_reduce_op(op) ? kNames[static_cast<size_t>(op)] : "unknown";
}

}  // namespace mercury
