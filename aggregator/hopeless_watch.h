// Finds the rounds of a job that will never be complete, when workers have left it and nobody comes
// in their place.
//
// When it begins, and when one more leaves, all chunks are looked at, in steps. From then on each
// push tells of the chunk that it went into, so nobody waits for a look. A tensor is named once,
// and again only with a lower round: its later rounds are as hopeless.
//
// Owner/thread: one engine. Allocates nothing: tensors that are to be named form a list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/aggregator.h"
#include "aggregator/tensor_slots.h"

namespace mercury::aggregation {

class HopelessWatch {
 public:
  void begin() noexcept {
    ending_ = true;
    restart();
  }
  bool ending() const noexcept { return ending_; }
  void restart() noexcept {  // one more has left
    looking_ = ending_;
    tensor_ = {};
    chunk_ = 0;
  }
  bool pending() const noexcept { return looking_ || first_ != nullptr; }

  void note(TensorSlots& slots, uint32_t index, const WorkerSet& live) noexcept;
  // True: `out` (but for its job) names a round.
  bool take(TensorTable& tensors, const WorkerSet& live, uint32_t& looks,
            HopelessRound& out) noexcept;

 private:
  bool ending_ = false;
  bool looking_ = false;  // the pass over all chunks, and where it is
  TensorIndex tensor_;
  uint32_t chunk_ = 0;
  TensorSlots* first_ = nullptr;  // of those to be named
};

}  // namespace mercury::aggregation
