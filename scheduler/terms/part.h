// A worker's part of a tensor: as many consecutive parts as there are workers, in the order of
// ranks. They are equal, but that the first ones have one element more where the elements are no
// multiple of the workers.
//
// So part r lies where the plan's range r does (scheduler/plan), to a chunk: with as many servers
// as workers, of one lane each, the server whose turn it is has most of it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/terms/chunk.h"

namespace mercury {

struct Part {
  uint64_t begin = 0;  // elements
  uint64_t numel = 0;  // 0: fewer elements than workers
  constexpr uint64_t end() const { return begin + numel; }
  // The chunks of `chunk_elems` elements that have some of it.
  constexpr ChunkSpan chunks(uint64_t chunk_elems) const {
    if (numel == 0) return {};
    const auto first = static_cast<uint32_t>(begin / chunk_elems);
    const auto last = static_cast<uint32_t>((end() - 1) / chunk_elems);
    return {ChunkIndex(first), last - first + 1};
  }
};

// `workers` is not 0.
constexpr Part part_of(uint64_t numel, uint64_t workers, Rank rank) {
  const uint64_t each = numel / workers, longer = numel % workers;
  return {each * rank.value + std::min<uint64_t>(rank.value, longer),
          each + (rank.value < longer ? 1 : 0)};
}

}  // namespace mercury
