#include "shim/exchange/server/forward_gate.h"

namespace mercury {

void ForwardGate::add_tensor(const PartitionPlan& plan, Shard shard) {
  Tensor tensor;
  tensor.plan = plan;
  tensor.shard = shard;
  tensor.share = ShardPlan(plan.tensor, plan.chunks, plan.shards).span(shard);
  tensor.held.resize((tensor.share.count + 63) / 64);
  for (uint32_t partition = 0; partition < plan.partitions(); ++partition) {
    tensor.missing.push_back(plan.span(shard, partition).count);
  }
  tensors_.push_back(std::move(tensor));
}

void ForwardGate::hold(Tensor& tensor, const ChunkRange& chunk) noexcept {
  const uint32_t index = chunk.chunks.first.value - tensor.share.first.value;
  tensor.held[index / 64] |= uint64_t{1} << (index % 64);
  tensor.round = chunk.round;
  tensor.priority = chunk.priority;
}

bool ForwardGate::count(Tensor& tensor, ChunkIndex chunk) noexcept {
  uint32_t& missing = tensor.missing[tensor.plan.partition_of(chunk)];
  if (--missing > 0) return false;
  missing = group_of(tensor, chunk).count;
  return true;
}

ChunkSpan ForwardGate::take(Tensor& tensor, ChunkSpan& span) noexcept {
  const auto held = [&](ChunkIndex chunk) {
    const uint32_t index = chunk.value - tensor.share.first.value;
    return (tensor.held[index / 64] >> (index % 64) & 1) != 0;
  };
  while (span.count > 0 && !held(span.first)) span.take_first();
  ChunkSpan run{span.first, 0};
  for (; span.count > 0 && held(span.first); ++run.count) {
    const uint32_t index = span.take_first().value - tensor.share.first.value;
    tensor.held[index / 64] &= ~(uint64_t{1} << (index % 64));
  }
  return run;
}

}  // namespace mercury
