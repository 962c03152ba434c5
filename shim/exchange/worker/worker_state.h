// A worker's jobs and tensors inside one engine. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/partition_release.h"
#include "scheduler/terms/chunk_set.h"
#include "scheduler/terms/tensor_table.h"
#include "scheduler/terms/worker_set.h"
#include "shim/exchange/worker/worker.h"
#include "transport/base/fifo.h"

namespace mercury {

// That a tensor can have waiting at a time: a push's and a pull's.
inline constexpr size_t kCompletionsOfTensor = 2;

struct Worker::WorkerTensor {
  command::AddTensor spec;
  TensorIndex tensor_index;       // its place in the TensorTable
  uint32_t full_chunk_bytes = 0;  // of each but the last: whole vectors, so at most spec's
  uint32_t last_chunk_bytes = 0;
  uint32_t chunks = 0;  // of the whole tensor
  ShardPlan shard_plan;
  uint32_t own_chunks = 0;    // of this engine's shards
  Round round;                // of the last push; the first is 1
  bool in_flight = false;     // the round's sums are not all here
  bool pull_allowed = false;  // pushed, and nobody has pulled that round yet
  uint16_t priority = 0;      // of the last push
  // Of the last push: whether only the chunks of `part` are pushed with their elements; and whether
  // only they come back with theirs.
  bool in_parts = false;
  bool scattered = false;
  ChunkSpan part;
  // The round is being pushed again: what was acknowledged is no longer sure to be in the sum, and
  // an acknowledgement may be of the first time. Only sums count until the round is over.
  bool acks_void = false;
  uint32_t missing_sums = 0;
  uint32_t missing_acks = 0;
  // In the last push, where the job has rows: the furthest of which a chunk was given to the
  // engine, and how many of it were, though it may send one later, or find that nobody needs it.
  uint32_t row = 0;
  uint32_t sent_of_row = 0;
  // From this round on nothing will be complete; kOk: nothing is known of any.
  Errc hopeless = Errc::kOk;
  Round hopeless_from;
  // By which number of the job's credits the last push is released; 0: by none. And its partitions
  // under that one, until the tensor has followed its job to another.
  uint32_t credit = 0;
  PartitionPlan plan;
  ChunkSet summed;
  ChunkSet pushed;  // the server has our contribution: acknowledged, or its sum is here
  // Jobs with a quorum: whose contributions are missing in the round's sums. Null: it has none.
  std::unique_ptr<Absentees> absent;
  uint64_t push_cookie = 0;  // 0 = nobody waits
  uint64_t pull_cookie = 0;

  TensorId id() const noexcept { return spec.tensor; }
  uint32_t bytes_of(ChunkIndex chunk) const noexcept {
    return chunk.value + 1 < chunks ? full_chunk_bytes : last_chunk_bytes;
  }
  std::byte* memory_of(ChunkIndex chunk) const noexcept {
    return spec.data + uint64_t{chunk.value} * full_chunk_bytes;
  }
  // False if it was known already.
  bool note_pushed(ChunkIndex chunk) noexcept {
    if (!pushed.insert(chunk)) return false;
    --missing_acks;
    return true;
  }
  // Sums may be here before their partition is released.
  uint32_t missing_acks_of(const ChunkSpan& span) const noexcept {
    if (missing_acks == own_chunks) return span.count;
    uint32_t missing = 0;
    for (uint32_t chunk = span.first.value; chunk < span.end().value; ++chunk) {
      missing += !pushed.contains(ChunkIndex(chunk));
    }
    return missing;
  }
  bool is_hopeless(Round which) const noexcept {
    return hopeless != Errc::kOk && which.since(hopeless_from) >= 0;
  }
  // Whether the servers still wait for our contribution.
  bool needs(const ChunkKey& key) const noexcept {
    return round == key.round && !pushed.contains(key.chunk) && !is_hopeless(key.round);
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

struct Worker::WorkerJob {
  struct Bound {
    Shard shard;
    SessionSlot session;
  };
  // A credit that the job has given up, until its tensors have followed, step by step.
  struct OldCredit {
    uint32_t number = 0;
    bool lets_go = false;  // what waited for it is queued; else it is pushed again, or not at all
    std::unique_ptr<PartitionRelease> partitions;
  };
  command::AddWorkerJob spec;
  Policy policy;
  std::unique_ptr<PartitionRelease> partitions;  // null: whole tensors are released
  uint32_t credits = 0;                          // so far; the last is that of `partitions`
  std::vector<OldCredit> old_credits;
  Errc failed = Errc::kOk;
  uint32_t life = 0;  // of all jobs here: its own number
  uint64_t chunks_moved = 0;
  // Steps (worker_steps.cc): the next tensor that is to follow the job's credit, and to be pushed
  // again, how many of a failed job's have been given up, and whether they are to go.
  static constexpr TensorIndex kNoTensor{~uint32_t{0}};  // nor one that is declared later
  TensorIndex not_followed = kNoTensor;
  TensorIndex not_refilled = kNoTensor;
  uint32_t given_up = 0;
  bool removed = false;
  std::vector<Bound> shards;  // bound to this engine, in order
  // Of these, with which whole tensors begin: each worker with another server, as what all push at
  // the same time would else come to one server's link after the other.
  size_t begin_with = 0;
  uint32_t least_row = 0;           // of chunks, that is worth being finished; 0: none is
  bool row_waits = false;           // in rows_
  TensorIndex sending = kNoTensor;  // of which a chunk was sent last
  TensorTable<WorkerTensor> tensors;
  WorkerTensor* found = nullptr;  // by the last find(); there as long as no tensor is dropped
  Fifo<WorkerRange> held_up;      // ranges that are more than its part of the scheduler's

  // A tensor's chunks come one after the other: mostly it is the last one again.
  WorkerTensor* find(TensorId id) noexcept {
    return found != nullptr && found->spec.tensor == id ? found : find_other(id);
  }
  [[gnu::noinline]] WorkerTensor* find_other(TensorId id) noexcept {
    WorkerTensor* const other = tensors.find(id);
    if (other != nullptr) found = other;
    return other;
  }
  // Whether the tensor's last push waits for the credit that the job has now.
  bool counts(const WorkerTensor& tensor) const noexcept {
    return partitions != nullptr && tensor.credit == credits;
  }
  // What a tensor that is in flight waited for, that is to be let go of; null: for nothing.
  const PartitionRelease* waited_for(const WorkerTensor& tensor) const noexcept {
    if (!tensor.in_flight || tensor.credit == 0) return nullptr;
    for (const OldCredit& old : old_credits) {
      if (old.lets_go && old.number == tensor.credit) return old.partitions.get();
    }
    return nullptr;
  }
  // Of what a tensor can have waiting at a time, with a quorum.
  size_t absent_words_of_tensor() const noexcept {
    return kCompletionsOfTensor * 2 * words_of(spec.workers);
  }
  bool has_steps() const noexcept {
    if (!old_credits.empty()) return true;
    if (failed != Errc::kOk) return removed || given_up < tensors.size();
    return std::min(not_followed, not_refilled).value < tensors.size();
  }
  WorkerTensor* at(TensorIndex index) noexcept {
    return tensors.has(index) ? &tensors.at(index) : nullptr;
  }
};

inline Worker::WorkerJob* Worker::find(JobSlot job) const noexcept {
  return job.value < jobs_.size() ? jobs_[job.value].get() : nullptr;
}

inline void Worker::queue_range(const WorkerJob& job, SessionSlot session,
                                const WorkerTensor& tensor, const ChunkSpan& span) noexcept {
  if (span.count == 0) return;
  ranges_.push_back({session,
                     {tensor.tensor_index, tensor.round, span, tensor.priority},
                     job.spec.job,
                     job.life});
}

// Of one tensor, beside a range of every tensor: the rest follows on the next pass, or when none is
// held up.
inline bool Worker::has_room_for_ranges(const WorkerJob& job) noexcept {
  if (!job.held_up.empty()) return false;
  const size_t waiting = waiting_ranges();
  const bool has_room = (waiting == 0 || waiting + job.shards.size() <= kMostWaitingRanges) &&
                        ranges_.capacity() - ranges_.size() >= most_ranges_ + job.shards.size();
  lacks_room_ = lacks_room_ || !has_room;
  return has_room;
}

}  // namespace mercury
