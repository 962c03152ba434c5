// Completion: a round is complete with every worker's contribution, and each is added as it comes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/slot_memory.h"

namespace mercury::aggregation {

class TensorSlots;

class All {
 public:
  // `needed_alone`: the tensor's finish is (Sum::kNeededAlone).
  All(uint16_t workers, bool needed_alone) noexcept
      : workers_(workers), as_it_came_(workers == 1 && !needed_alone) {}

  // What it needs of a tensor's memory.
  SlotMemory::Room room() const noexcept { return {.workers = workers_}; }
  static void place(const SlotMemory&) noexcept {}

  // The only worker's contribution is the result, and its CRC the result's.
  bool as_it_came() const noexcept { return as_it_came_; }

  // On a worker's push of the last completed round or the open one, even if it is a duplicate.
  static void note_pushed(TensorSlots&, uint32_t, Rank) noexcept {}
  // Where the open round is added up meanwhile, as it may not overwrite a result; null: it may.
  static std::byte* apart(const SlotMemory&, uint32_t) noexcept { return nullptr; }
  // A contribution that is not in the open round yet. False: its CRC does not match.
  // `slot` is the chunk's, here and in is_complete.
  bool take(const SlotMemory& memory, uint32_t, Slot& slot, std::byte* sum,
            const Contribution& contribution) const noexcept {
    return as_it_came() ? memory.copy(slot, sum, contribution)
                        : memory.add(slot, sum, contribution);
  }
  // A contribution without elements, likewise: it changes no sum.
  static void take_nothing(const SlotMemory&, uint32_t, std::byte*, Rank) noexcept {}
  // The round's first is in.
  static void opened(TensorSlots&, uint32_t, const Contribution&) noexcept {}
  bool is_complete(const SlotMemory&, uint32_t, const Slot& slot) const noexcept {
    return slot.contributions == workers_;
  }
  // The result is there; the slot still says who is in it.
  static void completed(const SlotMemory&, uint32_t, uint32_t) noexcept {}

  // What the worker contributed to the chunk's open round does not count any more.
  static void take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept {
    Slot& slot = memory.slot(index);
    if (slot.has(worker)) memory.begin_anew(slot);
  }
  // Whom of `live` the open round waits for, and how many it needs to be complete.
  static WorkerSet awaited(const SlotMemory& memory, uint32_t index,
                           const WorkerSet& live) noexcept {
    return without(live, widened(memory.contributors(index)));
  }
  uint16_t needed() const noexcept { return workers_; }

 protected:
  uint16_t workers_ = 0;
  bool as_it_came_ = false;
};

}  // namespace mercury::aggregation
