#include "scheduler/plan/plan.h"

#include <algorithm>
#include <limits>

namespace mercury {

namespace {
constexpr uint32_t kVectorElems = 16;  // one AVX-512 register of f32
}

uint32_t chunk_elems(uint32_t chunk_bytes, uint32_t element_bytes) {
  if (element_bytes == 0) return 0;
  const uint32_t fit = chunk_bytes / element_bytes;
  return fit < kVectorElems ? fit : fit - fit % kVectorElems;
}

uint32_t chunk_count(uint64_t numel, uint32_t elems_per_chunk) {
  if (elems_per_chunk == 0) return 0;
  const uint64_t count = numel / elems_per_chunk + (numel % elems_per_chunk != 0 ? 1 : 0);
  return count > std::numeric_limits<uint32_t>::max() ? 0 : static_cast<uint32_t>(count);
}

ShardPlan::ShardPlan(Shard first, uint32_t chunks, uint16_t shards) noexcept
    : shards_(shards), ranges_(shards) {
  if (shards == 0) return;
  rotation_ = first.value % shards;
  each_ = chunks / shards;
  longer_ = chunks % shards;
}

ShardPlan ShardPlan::whole(TensorId tensor, uint32_t chunks, uint16_t shards) noexcept {
  ShardPlan plan;
  if (shards == 0) return plan;
  plan.shards_ = shards;
  plan.ranges_ = 1;
  plan.rotation_ = static_cast<uint32_t>(uint64_t{tensor.value} * 9973 % shards);
  plan.each_ = chunks;
  return plan;
}

PartitionPlan PartitionPlan::make(Shard first, uint32_t chunks, uint16_t shards,
                                  uint32_t chunk_bytes, uint64_t partition_bytes) {
  uint64_t each = chunks;
  if (partition_bytes != 0 && chunk_bytes != 0) {
    each = std::min<uint64_t>(chunks, (partition_bytes + chunk_bytes / 2) / chunk_bytes);
  }
  return {first, chunks, shards, static_cast<uint32_t>(std::max<uint64_t>(each, 1))};
}

uint32_t PartitionPlan::partitions() const {
  return chunks / partition_chunks + (chunks % partition_chunks != 0 ? 1 : 0);
}

Shard PartitionPlan::shard_of(ChunkIndex chunk) const {
  const uint32_t each = chunks / shards, longer = chunks % shards;
  const uint64_t boundary = uint64_t{longer} * (each + 1);
  const uint64_t range =
      chunk.value < boundary ? chunk.value / (each + 1) : longer + (chunk.value - boundary) / each;
  return Shard(static_cast<uint16_t>((range + first.value) % shards));
}

// Chunk k of range i is number k * shards + i in the order of release; as ranges that are one chunk
// longer come first, the numbers are those from 0 to chunks - 1.
uint32_t PartitionPlan::partition_of(ChunkIndex chunk) const {
  const Shard shard = shard_of(chunk);
  const uint32_t range = (shard.value + shards - first.value % shards) % shards;
  const ChunkIndex begin = ShardPlan(first, chunks, shards).span(shard).first;
  return static_cast<uint32_t>((uint64_t{chunk.value - begin.value} * shards + range) /
                               partition_chunks);
}

ChunkSpan PartitionPlan::span(Shard shard, uint32_t partition) const {
  const uint32_t range = (shard.value + shards - first.value % shards) % shards;
  const ChunkSpan share = ShardPlan(first, chunks, shards).span(shard);
  const auto begins_at = [&](uint64_t wanted) {  // the first k whose number is not below
    const uint64_t number = wanted * partition_chunks;
    const uint64_t k = number <= range ? 0 : (number - range + shards - 1) / shards;
    return static_cast<uint32_t>(std::min<uint64_t>(k, share.count));
  };
  const uint32_t begin = begins_at(partition), end = begins_at(uint64_t{partition} + 1);
  return {share.at(begin), end - begin};
}

}  // namespace mercury
