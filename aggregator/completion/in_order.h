// Completion: a round is complete with every worker's contribution, and they are added in rank
// order: what comes ahead of a lower rank is kept apart until its turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/completion/all.h"

namespace mercury::aggregation {

class InOrder : public All {
 public:
  InOrder(const AggregationTensor& spec, uint16_t workers) noexcept;
  // Whether the order of addition changes a bit of such a tensor's sum.
  static bool matters(const AggregationTensor& spec, uint16_t workers) noexcept;

  SlotMemory::Room room() const noexcept;
  void place(const SlotMemory& memory) noexcept;

  bool take(const SlotMemory& memory, uint32_t index, Slot& slot, std::byte* sum,
            Contribution contribution) const noexcept;
  void take_nothing(const SlotMemory& memory, uint32_t index, std::byte* sum,
                    Rank worker) const noexcept;
  static void take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept;

 private:
  void add_kept(const SlotMemory& memory, uint32_t index, std::byte* sum) const noexcept;
  std::byte* kept(uint32_t index, Rank worker) const noexcept {
    return kept_ + ((worker.value - 1U) * uint64_t{chunks_} + index) * stride_;
  }

  // Who of the open round came without elements.
  std::span<uint64_t> nothing(uint32_t index) const noexcept {
    const uint32_t words = words_of(workers_);
    return {nothing_ + uint64_t{index} * words, words};
  }

  uint32_t chunks_ = 0;
  uint64_t stride_ = 0;
  uint64_t* nothing_ = nullptr;  // by chunk, words_of(workers_) each
  std::byte* kept_ = nullptr;    // by rank - 1 (rank 0 is always added at once), then chunk
};

}  // namespace mercury::aggregation
