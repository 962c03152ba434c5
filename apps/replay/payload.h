// What a replay's tensors carry, so that a receiver can verify every element of every sum.
//
// A worker's contribution is made of blocks, each a stretch of that worker's pattern (small random
// whole numbers) from an offset that tensor, round and block choose. The sums lie in the same
// places of the sum of all workers' patterns, so that both filling and verifying cost one pass of
// memory, however many workers there are. Values are so small that any partial sum of theirs is
// exact in the type (bf16: 256 at most), in any order of adding.
//
// Found: any lost, doubled, damaged or misplaced contribution, except where the numbers happen to
// agree. Shape: one element type per object. Not shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/terms/element.h"
#include "scheduler/terms/members.h"

namespace mercury {

class Payload {
 public:
  static constexpr size_t kBlock = 1024;  // elements; pattern and sums stay in a core's own cache

  struct Mismatch {
    uint64_t element = 0;
    std::string got, expected;
  };
  struct Verdict {
    uint64_t mismatches = 0;
    std::optional<Mismatch> first;
  };

  // `rank` below `workers`, `workers` from 1 to kMaxWorkers.
  Payload(Dtype dtype, uint32_t workers, uint32_t rank);

  // Both work on elements from `first` on, a multiple of kBlock; `data` holds them, whole elements.
  // Writes this worker's contribution to `round` of `tensor`.
  void fill(uint32_t tensor, uint64_t round, uint64_t first, std::span<std::byte> data) const;
  // Compares `data` with the sum of all workers' contributions, bit by bit.
  Verdict verify(uint32_t tensor, uint64_t round, uint64_t first,
                 std::span<const std::byte> data) const;

 private:
  size_t offset_bytes(uint32_t tensor, uint64_t round, uint64_t block) const;
  void compare(std::span<const std::byte> got, const std::byte* expected, uint64_t first,
               Verdict& verdict) const;

  Dtype dtype_;
  size_t element_bytes_;
  std::vector<std::byte> own_,
      sums_;  // twice kBlock elements: a block begins anywhere in the first
};

// The element at `data`, in decimal.
std::string element_text(Dtype dtype, const std::byte* data);

}  // namespace mercury
