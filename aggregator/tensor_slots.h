// One tensor's share in one engine: contributions go into slots, and results come out of them.
//
// What lies where says SlotMemory; when a round is complete, a completion rule; what a complete one
// becomes, a finish. Here is what all rules share: which round a contribution belongs to, whether
// it was in already, and that a result is never overwritten while a port reads it.
//
// Owner/thread: one engine. Allocates in create, never later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "aggregator/aggregator.h"
#include "aggregator/completion/completion.h"
#include "aggregator/finish/finish.h"
#include "aggregator/slot_memory.h"
#include "scheduler/terms/tensor_table.h"
#include "scheduler/terms/worker_set.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/port/port.h"

namespace mercury::aggregation {

class TensorSlots {
 public:
  // What create would map; the spec must be valid (check_tensor).
  static uint64_t bytes_needed(const AggregationTensor& spec, const CompletionRule& rule,
                               const Finish& finish);
  // They stay where they are from the first push on.
  static Result<TensorSlots> create(const AggregationTensor& spec, uint16_t workers,
                                    const CompletionRule& rule, Finish finish,
                                    MemoryThread* thread);

  // Job, worker and incarnation have been checked.
  PushVerdict push(const Contribution& contribution, const PortMemory& port) noexcept;
  bool result(Round round, ChunkIndex chunk, ChunkResult& out) noexcept;
  // Ends the open round of a chunk whose rule says so without a push.
  void complete(uint32_t index, OverdueChunk& out) noexcept;

  // What this worker contributed to a chunk's open round does not count any more.
  void take_out(uint32_t index, Rank worker) noexcept;
  bool empty() const noexcept { return chunks() == 0; }

  // By index, below chunks(): whether a port reads a result, since when its round has been open
  // (kNever: it is not), which it is, and whom of `live` it waits for.
  uint32_t chunks() const noexcept { return memory_.chunks(); }
  bool pins_busy(uint32_t index, const PortMemory& port) const noexcept;
  uint64_t opened_ns(uint32_t index) const noexcept {
    const Slot& slot = memory_.slot(index);
    return slot.contributions == 0 ? kNever : slot.opened_ns;
  }
  Round round_of(uint32_t index) const noexcept { return memory_.open_round(index); }
  WorkerSet awaited(uint32_t index, const WorkerSet& live) const noexcept;
  // Of an open round that cannot be complete with `live` alone: who is neither in it nor there.
  WorkerSet missing_for_good(uint32_t index, const WorkerSet& live) const noexcept;
  // Beyond chunks() if it is not of this share.
  uint32_t index_of(ChunkIndex chunk) const noexcept {
    return chunk.value - memory_.spec().first_chunk.value;
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
  std::span<std::byte> result_pages() const noexcept { return memory_.result_pages(); }
  std::optional<MemoryKey> mapped;                   // these pages, by the port
  void copy_results() noexcept { shared_ = false; }  // it cannot read them there
  bool copies_results() const noexcept { return !shared_; }

  TensorIndex tensor_index;  // its place in the TensorTable
  TensorId id() const noexcept { return memory_.spec().tensor; }
  const SlotMemory& memory() const noexcept { return memory_; }
  Quorum& quorum() noexcept { return *std::get_if<Quorum>(&rule_); }  // of jobs with one

 private:
  TensorSlots(SlotMemory memory, uint16_t workers, const CompletionRule& rule, Finish finish);
  template <class Rule>
  PushVerdict push_by(Rule& rule, const Contribution& contribution,
                      const PortMemory& port) noexcept;
  template <class Rule>
  PushVerdict push_nothing(Rule& rule, Contribution contribution, const PortMemory& port) noexcept;
  template <bool kElements, class Rule>
  PushVerdict push_into(Rule& rule, const Contribution& contribution,
                        const PortMemory& port) noexcept;
  // Apart: the only worker's contribution needs none of it.
  [[gnu::noinline]] void finish(uint32_t index, Slot& slot, uint32_t generation) noexcept;
  template <class Rule>
  void complete_by(Rule& rule, uint32_t index, Slot& slot, uint32_t generation) noexcept;

  SlotMemory memory_;
  CompletionRule rule_;
  Finish finish_;
  uint16_t workers_ = 0;
  bool shared_ = true;  // results are sent from where they lie
};

// A job's.
using TensorTable = mercury::TensorTable<TensorSlots>;

// kInvalidArgument or kUnsupported, saying what is wrong.
Status check_tensor(const AggregationTensor& spec);

}  // namespace mercury::aggregation
