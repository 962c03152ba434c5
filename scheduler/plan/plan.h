// The star plan, sharded: which chunks of a tensor belong to which shard. A shard is one lane (one
// engine) of one server.
//
// A tensor's chunks are cut into `shards` consecutive ranges whose sizes differ by at most one
// chunk, the longer ones first. Which shard has the first range the job's coordinator says: the
// one behind the longer ranges of the tensor before, so that those that are declared one after the
// other are spread evenly together (ShardTurn). All else is a function of its arguments.
// (Or, as a policy's knob for comparison, small tensors are on one shard each: ShardPlan::whole.)
// Paper: thesis (PHub) section 3.2.4 spreads keys by weighted set partition; equal ranges of every
// tensor, by turns, are balanced to one chunk without one.
#pragma once

#include <cstdint>

#include "scheduler/terms/chunk.h"

namespace mercury {

// Elements per chunk when a frame carries `chunk_bytes` of payload: whole elements, a multiple of
// 16 (one AVX-512 register of f32) where that fits; 0 when not even one element fits.
uint32_t chunk_elems(uint32_t chunk_bytes, uint32_t element_bytes);
// 0 when the tensor is empty, or has more chunks than a frame can number (2^32 - 1).
uint32_t chunk_count(uint64_t numel, uint32_t elems_per_chunk);

// Whose turn it is to have a tensor's first range.
class ShardTurn {
 public:
  explicit ShardTurn(uint16_t shards) : shards_(shards) {}
  Shard take(uint32_t chunks) noexcept {
    const uint32_t taken = next_;
    next_ = static_cast<uint32_t>((uint64_t{next_} + chunks) % shards_);
    return Shard(static_cast<uint16_t>(taken));
  }
  // As members of releases before have it: small tensors at least are spread.
  static Shard of_number(TensorId tensor, uint16_t shards) noexcept {
    return Shard(static_cast<uint16_t>(tensor.value % shards));
  }

 private:
  uint32_t shards_;
  uint32_t next_ = 0;
};

// The chunks of one tensor that each shard has. Divides when it is made, as engines ask for each
// chunk that arrives.
class ShardPlan {
 public:
  ShardPlan() = default;
  ShardPlan(Shard first, uint32_t chunks, uint16_t shards) noexcept;
  // All of the tensor on the shard that MXNet's hash of its number gives (its key, and 9973).
  static ShardPlan whole(TensorId tensor, uint32_t chunks, uint16_t shards) noexcept;
  // Empty for shard >= shards.
  ChunkSpan span(Shard shard) const noexcept {
    if (shard.value >= shards_) return {};
    const uint32_t range =
        shard.value >= rotation_ ? shard.value - rotation_ : shard.value + shards_ - rotation_;
    if (range >= ranges_) return {};
    return {ChunkIndex(range * each_ + (range < longer_ ? range : longer_)),
            each_ + (range < longer_ ? 1 : 0)};
  }
  // Which of its shard's chunks it is: 0, the first. Divides.
  uint32_t row_of(ChunkIndex chunk) const noexcept {
    const uint32_t in_longer = longer_ * (each_ + 1);
    return chunk.value < in_longer ? chunk.value % (each_ + 1) : (chunk.value - in_longer) % each_;
  }

 private:
  uint32_t shards_ = 0;
  uint32_t ranges_ = 0;    // shards_, or 1
  uint32_t rotation_ = 0;  // the shard that has range 0, which is never shorter than another
  uint32_t each_ = 0;
  uint32_t longer_ = 0;  // so many ranges hold one chunk more
};

// Partitions, for policies that release or answer a tensor in such: each is spread evenly over all
// shards, and within a shard consecutive.
struct PartitionPlan {
  Shard first;          // that has the first range of chunks
  uint32_t chunks = 0;  // of the tensor
  uint16_t shards = 1;
  uint32_t partition_chunks = 1;  // of every partition but the last

  // The nearest number of chunks of `chunk_bytes` to `partition_bytes`, at least one;
  // partition_bytes 0: the tensor is one partition.
  static PartitionPlan make(Shard first, uint32_t chunks, uint16_t shards, uint32_t chunk_bytes,
                            uint64_t partition_bytes);
  uint32_t partitions() const;
  Shard shard_of(ChunkIndex chunk) const;
  uint32_t partition_of(ChunkIndex chunk) const;
  ChunkSpan span(Shard shard, uint32_t partition) const;
};

}  // namespace mercury
