// A worker's jobs and tensors inside one engine. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "scheduler/partition_release.h"
#include "shim/exchange/worker/worker.h"
#include "transport/base/worker_set.h"

namespace mercury {

// One bit a chunk.
class ChunkBits {
 public:
  void resize(uint32_t chunks) { words_.assign((chunks + 63) / 64, 0); }
  void clear() noexcept { std::fill(words_.begin(), words_.end(), 0); }
  bool get(uint32_t chunk) const noexcept { return (words_[chunk / 64] >> (chunk % 64)) & 1; }
  // False if it was set already.
  bool set(uint32_t chunk) noexcept {
    const uint64_t bit = uint64_t{1} << (chunk % 64);
    const bool fresh = (words_[chunk / 64] & bit) == 0;
    words_[chunk / 64] |= bit;
    return fresh;
  }

 private:
  std::vector<uint64_t> words_;
};

struct Worker::Tensor {
  command::AddTensor spec;
  uint32_t index = 0;
  uint32_t full_chunk_bytes = 0;  // of each but the last: whole vectors, so at most spec's
  uint32_t last_chunk_bytes = 0;
  uint32_t chunks = 0;  // of the whole tensor
  ShardPlan shard_plan;
  uint32_t own_chunks = 0;    // of this engine's shards
  uint32_t round = 0;         // of the last push; the first is 1
  bool in_flight = false;     // the round's sums are not all here
  bool pull_allowed = false;  // pushed, and nobody has pulled that round yet
  uint16_t priority = 0;      // of the last push
  // The round is being pushed again: what was acknowledged is no longer sure to be in the sum, and
  // an acknowledgement may be of the first time. Only sums count until the round is over.
  bool acks_void = false;
  uint32_t missing_sums = 0;
  uint32_t missing_acks = 0;
  // From this round on nothing will be complete; kOk: nothing is known of any.
  Errc hopeless = Errc::kOk;
  uint32_t hopeless_from = 0;
  PartitionPlan plan;  // of a job that releases partitions
  ChunkBits summed;
  ChunkBits pushed;  // the server has our contribution: acknowledged, or its sum is here
  // Jobs with a quorum: the workers whose contributions are missing in some chunk's sum, in all.
  WorkerSet absent_in_some{};
  WorkerSet absent_in_all{};
  uint64_t push_cookie = 0;  // 0 = nobody waits
  uint64_t pull_cookie = 0;

  uint32_t bytes_of(uint32_t chunk) const noexcept {
    return chunk + 1 < chunks ? full_chunk_bytes : last_chunk_bytes;
  }
  std::byte* memory_of(uint32_t chunk) const noexcept {
    return spec.data + uint64_t{chunk} * full_chunk_bytes;
  }
  // False if it was known already.
  bool note_pushed(uint32_t chunk) noexcept {
    if (!pushed.set(chunk)) return false;
    --missing_acks;
    return true;
  }
  bool is_hopeless(uint32_t which) const noexcept {  // rounds are serial numbers
    return hopeless != Errc::kOk && static_cast<int32_t>(which - hopeless_from) >= 0;
  }
  // What waited for the last push ends without its sums.
  void give_up() noexcept {
    push_cookie = pull_cookie = 0;
    if (in_flight) pull_allowed = false;
    in_flight = false;
  }
  bool push_ended() const noexcept { return push_cookie != 0 && missing_acks == 0; }
  bool sums_ended() const noexcept { return missing_sums == 0; }
};

struct Worker::Job {
  struct Shard {
    uint16_t shard = 0;
    SessionSlot session;
  };
  command::AddWorkerJob spec;
  Policy policy;
  std::unique_ptr<PartitionRelease> partitions;  // null: whole tensors are released
  Errc failed = Errc::kOk;
  uint64_t chunks_moved = 0;
  std::vector<Shard> shards;  // bound to this engine
  std::vector<Tensor> tensors;
  std::unordered_map<uint32_t, uint32_t> index_of;  // wire number -> index in tensors
  uint32_t found = 0;                               // by the last find()

  // A tensor's chunks come one after the other: mostly it is the last one again.
  Tensor* find(uint32_t number) noexcept {
    if (found < tensors.size() && tensors[found].spec.tensor == number) return &tensors[found];
    const auto it = index_of.find(number);
    if (it == index_of.end()) return nullptr;
    found = it->second;
    return &tensors[found];
  }
};

}  // namespace mercury
