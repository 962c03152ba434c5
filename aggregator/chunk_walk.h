// A walk over all chunks of a job, in steps: a large model has millions, and as long as one step
// takes no frame is received. Tensors that are added meanwhile are not part of it.
//
// Owner/thread: one engine.
#pragma once

#include <cstdint>

#include "aggregator/tensor_slots.h"

namespace mercury::aggregation {

class ChunkWalk {
 public:
  ChunkWalk() = default;  // over nothing
  explicit ChunkWalk(const TensorTable& tensors) noexcept : end_(tensors.size()) {}

  bool ended() const noexcept { return tensor_.value == end_; }
  // Calls visit(TensorSlots&, uint32_t index) for the next chunks. Each counts down `looks`, and so
  // does each tensor's end.
  template <class Visit>
  void advance(TensorTable& tensors, uint32_t& looks, Visit visit) {
    for (; looks > 0 && !ended(); --looks) {
      TensorSlots& slots = tensors.at(tensor_);
      if (chunk_ < slots.chunks()) {
        visit(slots, chunk_++);
      } else {
        ++tensor_.value;
        chunk_ = 0;
      }
    }
  }

 private:
  TensorIndex tensor_;
  uint32_t chunk_ = 0;
  uint32_t end_ = 0;
};

}  // namespace mercury::aggregation
