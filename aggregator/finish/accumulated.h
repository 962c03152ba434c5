// A chunk whose round is complete, as a finish gets it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/kernels/kernels.h"
#include "scheduler/terms/chunk.h"
#include "scheduler/terms/element.h"

namespace mercury::aggregation {

struct Accumulated {
  uint32_t index = 0;        // of the chunk in its tensor's share
  std::byte* sum = nullptr;  // `elems` numbers of the accumulator's type
  uint32_t elems = 0;
  uint16_t contributions = 0;  // that had elements; 1 if none had, and `sum` is zeros
  Dtype dtype = Dtype::kF32;   // of the wire
  Round round;
  const TypeKernels& kernel;
};

// Leaves the sum, divided once, in the type of the wire; integers are so already, and stay.
inline void round_quotient(const Accumulated& chunk, uint32_t divisor) noexcept {
  if (chunk.kernel.finish != nullptr) chunk.kernel.finish(chunk.sum, chunk.elems, divisor);
}

}  // namespace mercury::aggregation
