// Holds sums back until what the job's policy forwards at once is complete: a server's share of a
// tensor, or of a partition (Policy::Forward). Not there at all where chunks are forwarded.
//
// A chunk's next round begins when some worker has all sums of this one, so when all of its
// tensor's chunks are complete, by whomever: a count of what is missing per group is enough.
// Owner/thread: one engine. Allocates in add_tensor only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/scheduler.h"
#include "scheduler/terms/chunk_set.h"

namespace mercury {

class ForwardGate {
 public:
  // The job's next tensor. This engine holds the chunks of `shard`; a group is its part of a
  // partition of `plan`.
  void add_tensor(const PartitionPlan& plan, Shard shard);
  ChunkSpan share_of(TensorIndex tensor) const { return tensors_[tensor.value].share; }
  // One sum of the chunk has been answered already, or will be by another.
  void answered(TensorIndex tensor, ChunkIndex chunk) noexcept {
    count(tensors_[tensor.value], chunk);
  }

  // The sum of one chunk (`chunk` is a range of one) is complete: `answer(range)` is called for
  // what is to be sent to all workers now, with the round and priority of this chunk.
  template <class F>
  void complete(const ChunkRange& chunk, F answer) noexcept {
    GatedTensor& tensor = tensors_[chunk.tensor.value];
    hold(tensor, chunk);
    if (count(tensor, chunk.chunks.first)) {
      flush(chunk.tensor, group_of(tensor, chunk.chunks.first), answer);
    }
  }
  // Everything that is held back, in steps: `looks` times eight chunks at most, or those up to one
  // answer, which it counts down. True: there is nothing left. Nothing else but drop() is asked of
  // it from the first call on.
  template <class F>
  bool drain(uint32_t& looks, F answer) noexcept {
    while (looks > 0 && !tensors_.empty()) {
      --looks;
      GatedTensor& tensor = tensors_.front();
      const uint32_t all = tensor.share.count,
                     before = std::min(all - drained_chunks_, uint32_t{8});
      ChunkSpan left{tensor.share.at(drained_chunks_), before};
      const ChunkSpan run = take(tensor, left);
      if (run.count > 0) answer(ChunkRange{drained_, tensor.round, run, tensor.priority});
      drained_chunks_ += before - left.count;
      if (drained_chunks_ < all) continue;
      tensors_.pop_front();
      ++drained_.value;
      drained_chunks_ = 0;
    }
    return tensors_.empty();
  }
  // Gives its memory back, in steps: `looks` counts them down, four for a tensor. True: of all.
  // Nothing else is asked of it from the first call on.
  bool drop(uint32_t& looks) noexcept {
    constexpr uint32_t kLooksToFree = 4;
    for (; looks > 0 && !tensors_.empty(); looks -= std::min(looks, kLooksToFree)) {
      tensors_.pop_back();
    }
    return tensors_.empty();
  }

 private:
  struct GatedTensor {
    PartitionPlan plan;
    Shard shard;
    ChunkSpan share;
    std::vector<uint32_t> missing;  // chunks that are not complete, by partition; 0: none is yet
    ChunkSet held;                  // of the share, counted from its first
    Round round;                    // of what is held
    uint16_t priority = 0;
  };
  static ChunkSpan group_of(const GatedTensor& tensor, ChunkIndex chunk) noexcept {
    return tensor.plan.span(tensor.shard, tensor.plan.partition_of(chunk));
  }
  static ChunkIndex place_of(const GatedTensor& tensor, ChunkIndex chunk) noexcept {
    return ChunkIndex(chunk.value - tensor.share.first.value);
  }
  static void hold(GatedTensor& tensor, const ChunkRange& chunk) noexcept;
  // True: that was the last of its group, which counts anew.
  static bool count(GatedTensor& tensor, ChunkIndex chunk) noexcept;
  // The next chunks within `span` that are held, and no longer are; empty when there are none.
  static ChunkSpan take(GatedTensor& tensor, ChunkSpan& span) noexcept;

  template <class F>
  void flush(TensorIndex index, ChunkSpan span, F& answer) noexcept {
    GatedTensor& tensor = tensors_[index.value];
    for (ChunkSpan run = take(tensor, span); run.count > 0; run = take(tensor, span)) {
      answer(ChunkRange{index, tensor.round, run, tensor.priority});
    }
  }

  // All of the job's, or what drain() has left of them. One more moves none.
  std::deque<GatedTensor> tensors_;
  TensorIndex drained_;  // how far drain() has come
  uint32_t drained_chunks_ = 0;
};

}  // namespace mercury
