#include "shim/exchange/server/forward_gate.h"

namespace mercury {

void ForwardGate::add_tensor(const PartitionPlan& plan, Shard shard) {
  GatedTensor tensor;
  tensor.plan = plan;
  tensor.shard = shard;
  tensor.share = ShardPlan(plan.first, plan.chunks, plan.shards).span(shard);
  tensor.held = ChunkSet(tensor.share.count);
  tensor.missing.resize(plan.partitions());
  tensors_.push_back(std::move(tensor));
}

void ForwardGate::hold(GatedTensor& tensor, const ChunkRange& chunk) noexcept {
  tensor.held.insert(place_of(tensor, chunk.chunks.first));
  tensor.round = chunk.round;
  tensor.priority = chunk.priority;
}

bool ForwardGate::count(GatedTensor& tensor, ChunkIndex chunk) noexcept {
  uint32_t& missing = tensor.missing[tensor.plan.partition_of(chunk)];
  if (missing == 0) missing = group_of(tensor, chunk).count;
  return --missing == 0;
}

ChunkSpan ForwardGate::take(GatedTensor& tensor, ChunkSpan& span) noexcept {
  const auto held = [&tensor](ChunkIndex chunk) {
    return tensor.held.contains(place_of(tensor, chunk));
  };
  while (span.count > 0 && !held(span.first)) span.take_first();
  ChunkSpan run{span.first, 0};
  for (; span.count > 0 && held(span.first); ++run.count) {
    tensor.held.erase(place_of(tensor, span.take_first()));
  }
  return run;
}

}  // namespace mercury
