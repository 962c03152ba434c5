// A set of one tensor's chunks, or of a share of them counted from its first: a bit for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/terms/chunk.h"

namespace mercury {

// Owner/thread: one at a time. Allocates when it is made only.
class ChunkSet {
 public:
  ChunkSet() = default;
  // Of so many chunks: none of them is in it.
  explicit ChunkSet(uint32_t chunks) : words_((uint64_t{chunks} + 63) / 64, 0) {}

  void clear() noexcept { std::fill(words_.begin(), words_.end(), 0); }
  bool contains(ChunkIndex chunk) const noexcept {
    return (words_[chunk.value / 64] >> (chunk.value % 64) & 1) != 0;
  }
  // False if it was in it already.
  bool insert(ChunkIndex chunk) noexcept {
    const uint64_t bit = uint64_t{1} << (chunk.value % 64);
    const bool fresh = (words_[chunk.value / 64] & bit) == 0;
    words_[chunk.value / 64] |= bit;
    return fresh;
  }
  void erase(ChunkIndex chunk) noexcept {
    words_[chunk.value / 64] &= ~(uint64_t{1} << (chunk.value % 64));
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace mercury
