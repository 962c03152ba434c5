// Completion: a round is complete with a quorum of contributions once patience is at an end, or
// when all workers that are not withdrawn are in.
//
// A result is never overwritten before everybody who needs it has it. A worker pushes round r + 1
// only with all sums of round r, so the result of round r is done with when every live worker has
// pushed r + 1 or later; that is what `ready` says when round r + 2, which overwrites it, begins.
// Until then contributions to that round are added up apart, so that nobody has to send them again.
//
// Owner/thread: one engine. Allocates nothing: the chunks that wait form lists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/slot_memory.h"

namespace mercury::aggregation {

class TensorSlots;

// What a chunk of such a job has besides its Slot. All zeros is the first state.
struct QuorumSlot {
  uint64_t opened_ns = 0;      // the open round's first contribution
  QuorumSlot* next = nullptr;  // of the job's lists
  QuorumSlot* previous = nullptr;
  QuorumSlot* next_woken = nullptr;  // of first_woken_ or first_read_
  TensorSlots* tensor = nullptr;     // whose it is, while it is in a list
  uint16_t priority = 0;
  bool listed = false;
  bool woken = false;
  bool overdue = false;
  // The open round is added up apart, and not complete however many are in it, as somebody may
  // still need the result that it overwrites.
  bool waiting = false;
};

// A job that time may complete (JobTerms::quorum), and what chunks of it wait for.
class JobQuorum {
 public:
  explicit JobQuorum(const WorkerSet& live) noexcept : live_(live) {}
  void set(uint16_t contributions, uint64_t patience_ns) noexcept {
    contributions_ = contributions;
    patience_ns_ = patience_ns;
  }
  bool exists() const noexcept { return contributions_ > 0; }
  void retire() noexcept {  // nothing is completed any more
    contributions_ = 0;
    first_open_ = last_open_ = first_woken_ = first_read_ = nullptr;
  }

  // Completes what time, or a slow worker's progress, lets complete, one chunk at a time. Looks at
  // `looks` chunks at most, which it counts down. False: nothing, or nothing yet.
  bool take_overdue(uint64_t now_ns, const PortMemory& port, uint32_t& looks,
                    OverdueChunk& out) noexcept;
  uint64_t next_due_ns() const noexcept;  // when that is worth a call; kNever

 private:
  friend class Quorum;
  uint64_t woken_due_ns() const noexcept;
  uint64_t overdue_ns() const noexcept;  // when time is up for the first of its chunks

  uint16_t contributions_ = 0;
  uint64_t patience_ns_ = 0;  // as the clock counts
  const WorkerSet& live_;     // admitted and not withdrawn
  // The chunks of all tensors with an open round that time has not run out for yet, in the order of
  // opening. Patience is the same for all: the first is due first.
  QuorumSlot* first_open_ = nullptr;
  QuorumSlot* last_open_ = nullptr;
  // Those that may be complete, or need wait no longer (QuorumSlot::waiting), without a push or
  // time.
  QuorumSlot* first_woken_ = nullptr;
  // Of these, those that would overwrite what the NIC still reads; and when to look at them again.
  QuorumSlot* first_read_ = nullptr;
  uint64_t read_due_ns_ = 0;
};

// One tensor's: the same functions as All's.
class Quorum {
 public:
  // `job` outlives it.
  Quorum(const AggregationTensor& spec, uint16_t workers, JobQuorum& job) noexcept;

  SlotMemory::Room room() const noexcept;
  void place(const SlotMemory& memory) noexcept;
  static bool as_it_came() noexcept { return false; }

  void note_pushed(TensorSlots& tensor, uint32_t index, Rank worker) noexcept;
  std::byte* apart(const SlotMemory& memory, uint32_t index) noexcept;
  static bool take(const SlotMemory& memory, uint32_t index, Slot& slot, std::byte* sum,
                   Contribution contribution) noexcept;
  static void take_nothing(const SlotMemory&, uint32_t, std::byte*, Rank) noexcept {}
  void opened(TensorSlots& tensor, uint32_t index, Contribution contribution) noexcept;
  bool is_complete(const SlotMemory& memory, uint32_t index, const Slot& slot) const noexcept;
  void completed(const SlotMemory& memory, uint32_t index, uint32_t generation) noexcept;

  void take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept;
  // With a quorum that is there only those can be missed who still need the sum that it overwrites.
  WorkerSet awaited(const SlotMemory& memory, uint32_t index, const WorkerSet& live) const noexcept;
  uint16_t needed() const noexcept { return job_->contributions_; }

  // What the job's lists ask of one of this tensor's chunks: its time is up.
  void expire(QuorumSlot& chunk) noexcept;
  // The first that is woken: its open round may overwrite the result, or must wait on. False: the
  // NIC reads it, so it is looked at again, and the others do not wait for it.
  bool settle(const SlotMemory& memory, QuorumSlot& chunk, const PortMemory& port) noexcept;
  uint32_t index_of(const QuorumSlot& chunk) const noexcept {
    return static_cast<uint32_t>(&chunk - slots_);
  }
  void wake_open(TensorSlots& tensor, uint32_t index) noexcept;  // fewer are waited for

 private:
  bool may_overwrite(const SlotMemory& memory, uint32_t index) const noexcept;
  // Who has pushed the last completed round or the open one, and so has all that came before.
  std::span<uint64_t> ready(uint32_t index) const noexcept;
  std::byte* sum_apart(uint32_t index) const noexcept { return apart_ + index * sum_stride_; }
  void wake(TensorSlots& tensor, uint32_t index) noexcept;
  void unlist(uint32_t index) noexcept;
  uint64_t apart_at() const noexcept;  // in its room

  JobQuorum* job_;
  uint16_t workers_ = 0;
  uint32_t chunks_ = 0;
  // Before each accumulator, so that a partial result's contributors and its elements lie in one
  // piece.
  uint32_t before_sum_ = 0;
  uint64_t sum_stride_ = 0;
  QuorumSlot* slots_ = nullptr;
  uint64_t* ready_ = nullptr;   // by chunk, words_of(workers_) each
  std::byte* apart_ = nullptr;  // where rounds that wait are added up, by chunk
};

}  // namespace mercury::aggregation
