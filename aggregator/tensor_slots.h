// One tensor's share in one engine: a slot per chunk, two accumulators per slot, and where the job
// is deterministic a place for every contribution that came ahead of a lower rank.
//
// Owner/thread: one engine. Allocates in create, never later. The memory is mapped zeroed and
// touched when the first contribution of a chunk arrives, or by a port that holds it in place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "aggregator/aggregator.h"
#include "aggregator/kernels/kernels.h"
#include "transport/base/mapped_memory.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/base/worker_set.h"
#include "transport/port/port.h"
#include "transport/wire/contributors.h"

namespace mercury::aggregation {

// All zeros is the state before the first round. At most one round of a chunk is open, so one set
// of contributors serves both generations; a duplicate or a contribution that is added touches the
// first cache line only.
struct Slot {
  uint32_t rounds_done = 0;    // completed rounds, wrapping: the open round is first_round + this
  uint16_t contributions = 0;  // of the open round
  uint16_t added = 0;  // of them, those in the accumulator: ranks 0 to added - 1 if kept in order
  // Of each generation's result; until then its first contribution's.
  std::array<uint32_t, 2> crc{};
  std::array<bool, 2> complete{};
  alignas(8) WorkerSet contributors{};
  uint64_t opened_ns = 0;  // the open round's first contribution
  alignas(kCacheLine) std::array<PayloadPin, 2> pins{};

  bool has(uint32_t worker) const noexcept { return contains(contributors, worker); }
};
static_assert(sizeof(Slot) == 2 * kCacheLine);

struct QuorumSlot;
class TensorSlots;

// A job that time may complete (JobTerms::quorum), and what chunks of it wait for.
struct QuorumRule {
  uint16_t quorum = 0;
  uint64_t patience_ns = 0;  // as the clock counts
  WorkerSet live{};          // admitted and not withdrawn
  // The chunks of all tensors with an open round that time has not run out for yet, in the order of
  // opening. Patience is the same for all: the first is due first.
  QuorumSlot* first_open = nullptr;
  QuorumSlot* last_open = nullptr;
  // Those that may be complete, or need wait no longer (QuorumSlot::waiting), without a push or
  // time.
  QuorumSlot* first_woken = nullptr;
  // Of these, those that would overwrite what the NIC still reads; and when to look at them again.
  QuorumSlot* first_read = nullptr;
  uint64_t read_due_ns = 0;
};

// What a chunk of such a job has besides its Slot. All zeros is the first state.
struct QuorumSlot {
  uint64_t opened_ns = 0;      // the open round's first contribution
  QuorumSlot* next = nullptr;  // of the rule's lists
  QuorumSlot* previous = nullptr;
  QuorumSlot* next_woken = nullptr;  // of first_woken or first_read
  TensorSlots* tensor = nullptr;     // whose it is, while it is in a list
  uint16_t priority = 0;
  bool listed = false;
  bool woken = false;
  bool overdue = false;
  // The open round is added up apart, and not complete however many are in it, as somebody may
  // still need the result that it overwrites.
  bool waiting = false;
  // Who has pushed the last completed round or the open one, and so has all that came before.
  WorkerSet ready{};
  std::array<uint16_t, 2> count{};  // by generation: how many contributions the result has
};

class TensorSlots {
 public:
  // What create would map; the spec must be valid (check_tensor).
  static uint64_t bytes_needed(const AggregationTensor& spec, uint16_t workers, bool deterministic,
                               bool quorum);
  // `rule`: null, or the job's, which outlives the slots; they stay where they are from the first
  // push on.
  static Result<TensorSlots> create(const AggregationTensor& spec, uint16_t workers,
                                    bool deterministic, QuorumRule* rule);

  // Job, worker and incarnation have been checked.
  PushVerdict push(const Contribution& contribution, const PortMemory& port) noexcept;
  bool result(Round round, ChunkIndex chunk, ChunkResult& out) noexcept;

  // With a quorum (tensor_quorum.cc), for one of this tensor's chunks: its time is up.
  void expire(QuorumSlot& chunk) noexcept;
  // The first that is woken: its open round may overwrite the result, or must wait on. False: the
  // NIC reads it, so it is looked at again, and the others do not wait for it.
  bool settle(QuorumSlot& chunk, const PortMemory& port) noexcept;
  // Completes it if it has enough now; else the contribution that makes it enough will.
  bool finish(const QuorumSlot& chunk, OverdueChunk& out) noexcept;
  void wake_open() noexcept;  // fewer are waited for; cold

  // What this worker contributed to rounds that are not complete does not count any more.
  void take_out(uint16_t worker) noexcept;
  bool empty() const noexcept { return spec_.chunk_count == 0; }
  Round open_round() const noexcept;  // the lowest of any chunk; not of an empty share

  // By index, below chunks(): whether a port reads a result, since when its round has been open
  // (kNever: it is not), which it is, and whom of `live` it waits for.
  uint32_t chunks() const noexcept { return spec_.chunk_count; }
  bool pins_busy(uint32_t index, const PortMemory& port) const noexcept;
  uint64_t opened_ns(uint32_t index) const noexcept {
    return slots_[index].contributions == 0 ? kNever : slots_[index].opened_ns;
  }
  Round round_of(uint32_t index) const noexcept { return round_after(slots_[index].rounds_done); }
  WorkerSet awaited(uint32_t index, const WorkerSet& live) const noexcept;
  // Of an open round that cannot be complete with `live` alone: who is neither in it nor there.
  WorkerSet missing_for_good(uint32_t index, const WorkerSet& live) const noexcept;
  // Beyond chunks() if it is not of this share.
  uint32_t index_of(ChunkIndex chunk) const noexcept {
    return chunk.value - spec_.first_chunk.value;
  }
  struct Hopeless {  // HopelessWatch's
    bool known = false;
    bool listed = false;
    Round round;
    uint32_t index = 0;  // of a chunk whose round it is
    TensorSlots* next = nullptr;
  };
  Hopeless hopeless;

  // The pages that results are sent from, none of another tensor's; not of an empty share.
  std::span<std::byte> result_pages() const noexcept;
  std::optional<MemoryKey> mapped;                   // these pages, by the port
  void copy_results() noexcept { shared_ = false; }  // it cannot read them there
  bool copies_results() const noexcept { return !shared_; }

  TensorIndex tensor_index;  // its place in the TensorTable
  TensorId id() const noexcept { return spec_.tensor; }
  uint64_t memory_bytes() const noexcept { return memory_.bytes(); }

 private:
  TensorSlots() = default;
  // The only worker's contribution is the sum, and its CRC the sum's.
  bool alone() const noexcept { return workers_ == 1 && rule_ == nullptr; }
  const TypeKernels& type_kernels() const noexcept {
    return kernels().types[static_cast<size_t>(spec_.dtype)];
  }
  Round round_after(uint32_t rounds_done) const noexcept {
    return Round(spec_.first_round.value + rounds_done);
  }
  // Where a round's result is, until the one after the next overwrites it.
  static uint32_t generation_of(Round round) noexcept { return round.value & 1; }
  ChunkIndex chunk_at(uint32_t index) const noexcept {
    return ChunkIndex(spec_.first_chunk.value + index);
  }
  uint32_t elems_of(ChunkIndex chunk) const noexcept;
  std::byte* accumulator(uint32_t index, uint32_t generation) const noexcept;
  std::byte* accumulator_apart(uint32_t index) const noexcept;
  // To be fetched only: behind the last may be no memory.
  const std::byte* behind(const std::byte* accumulator) const noexcept {
    return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(accumulator) +
                                              sum_stride_);
  }
  std::byte* kept_apart(uint32_t index, uint32_t worker) const noexcept;
  // False: the payload does not match its CRC, and nothing was counted.
  bool add(Slot& slot, std::byte* accumulator, const Contribution& contribution) noexcept;
  bool keep(uint32_t index, const Contribution& contribution) noexcept;
  void add_kept(uint32_t index, Slot& slot, std::byte* accumulator, uint32_t elems) noexcept;
  void complete(uint32_t index, uint32_t generation) noexcept;
  // With a quorum (tensor_quorum.cc): whether the open round may overwrite, has enough; what comes
  // with a worker's push, the round's first contribution, its end.
  bool may_overwrite(uint32_t index) const noexcept;
  void note_pushed(uint32_t index, uint32_t worker) noexcept;
  void wake(uint32_t index) noexcept;
  void begin(uint32_t index, const Contribution& contribution) noexcept;
  bool has_enough(uint32_t index) const noexcept;
  void complete_quorum(uint32_t index, uint32_t generation) noexcept;
  void unlist(uint32_t index) noexcept;
  uint32_t bitmap_bytes() const noexcept { return wire::contributor_bytes(workers_); }

  AggregationTensor spec_;
  size_t element_bytes_ = 0;
  uint16_t workers_ = 0;
  bool in_order_ = false;    // contributions are added in rank order
  bool shared_ = true;       // results are sent from where they lie
  uint64_t sum_stride_ = 0;  // bytes from one accumulator to the next, a multiple of a cache line
  uint64_t kept_stride_ = 0;
  MappedMemory memory_;    // all that follows lies in it
  Slot* slots_ = nullptr;  // at its start
  // By generation, then chunk: consecutive chunks lie side by side, which the CPU's prefetcher
  // follows (out of cache this doubles the rate of 1,424-byte chunks).
  std::byte* sums_ = nullptr;
  QuorumRule* rule_ = nullptr;
  QuorumSlot* quorum_ = nullptr;
  std::byte* apart_ = nullptr;  // with a quorum: where rounds that wait are added up, by chunk
  uint32_t sum_offset_ = 0;     // with a quorum: room for the bitmap before each accumulator
  std::byte* kept_ = nullptr;   // by rank - 1 (rank 0 is always added at once), then chunk
};

// kInvalidArgument or kUnsupported, saying what is wrong.
Status check_tensor(const AggregationTensor& spec);

}  // namespace mercury::aggregation
