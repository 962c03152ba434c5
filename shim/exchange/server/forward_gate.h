// Holds sums back until what the job's policy forwards at once is complete: a server's share of a
// tensor, or of a partition (Policy::Forward). Not there at all where chunks are forwarded.
//
// A chunk's next round begins when some worker has all sums of this one, so when all of its
// tensor's chunks are complete, by whomever: a count of what is missing per group is enough.
// Owner/thread: one engine. Allocates in add_tensor only.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/scheduler.h"

namespace mercury {

class ForwardGate {
 public:
  // This engine holds the chunks of `shard`; a group is its part of a partition of `plan`.
  void add_tensor(const PartitionPlan& plan, uint16_t shard);
  ChunkSpan share_of(uint32_t tensor) const { return tensors_.at(tensor).share; }
  // The chunk has been answered already in the round that its tensor is in.
  void answered(uint32_t tensor, uint32_t chunk) noexcept { count(tensors_.at(tensor), chunk); }

  // The sum of one chunk (`chunk` is a range of one) is complete: `answer(range)` is called for
  // what is to be sent to all workers now, with the round and priority of this chunk.
  template <class F>
  void complete(const ChunkRange& chunk, F answer) noexcept {
    const auto found = tensors_.find(chunk.tensor);
    if (found == tensors_.end()) return answer(chunk);
    Tensor& tensor = found->second;
    hold(tensor, chunk);
    if (count(tensor, chunk.first_chunk))
      flush(tensor, group_of(tensor, chunk.first_chunk), answer);
  }
  // Everything that is held back.
  template <class F>
  void drain(F answer) noexcept {
    for (auto& [number, tensor] : tensors_) flush(tensor, tensor.share, answer);
  }

 private:
  struct Tensor {
    PartitionPlan plan;
    uint16_t shard = 0;
    ChunkSpan share;
    std::vector<uint32_t> missing;  // chunks that are not complete, by partition
    std::vector<uint64_t> held;     // one bit a chunk of the share
    uint32_t round = 0;             // of what is held
    uint16_t priority = 0;
  };
  static ChunkSpan group_of(const Tensor& tensor, uint32_t chunk) noexcept {
    return tensor.plan.span(tensor.shard, tensor.plan.partition_of(chunk));
  }
  static void hold(Tensor& tensor, const ChunkRange& chunk) noexcept;
  // True: that was the last of its group, which counts anew.
  static bool count(Tensor& tensor, uint32_t chunk) noexcept;
  // The next chunks within `span` that are held, and no longer are; empty when there are none.
  static ChunkSpan take(Tensor& tensor, ChunkSpan& span) noexcept;

  template <class F>
  static void flush(Tensor& tensor, ChunkSpan span, F& answer) noexcept {
    for (ChunkSpan run = take(tensor, span); run.count > 0; run = take(tensor, span)) {
      answer(ChunkRange{tensor.plan.tensor, tensor.round, run.first, run.count, tensor.priority});
    }
  }

  std::unordered_map<uint32_t, Tensor> tensors_;
};

}  // namespace mercury
