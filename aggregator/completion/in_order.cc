#include "aggregator/completion/in_order.h"

#include <span>

#include "transport/wire/crc32c.h"

namespace mercury::aggregation {

InOrder::InOrder(const AggregationTensor& spec, uint16_t workers) noexcept
    : All(workers, /*needed_alone=*/true),
      chunks_(spec.chunk_count),
      stride_(SlotMemory::wire_stride(spec)) {}

// Only where numbers are rounded, and only from three numbers on (IEEE addition commutes; NaNs are
// made canonical).
bool InOrder::matters(const AggregationTensor& spec, uint16_t workers) noexcept {
  return !is_integer(spec.dtype) && merge_of(spec.op) == Merge::kAdd && workers > 2;
}

SlotMemory::Room InOrder::room() const noexcept {
  return {.bytes = uint64_t{chunks_} * (workers_ - 1U) * stride_};
}

// Slot::added is the lowest rank that is missing: what is in, of higher ranks, is kept. (Out of
// line, like a quorum's: the engine's loop has room for one rule's code, and most jobs' is All's.)
[[gnu::noinline]] bool InOrder::take(const SlotMemory& memory, uint32_t index, std::byte* sum,
                                     const Contribution& contribution) const noexcept {
  Slot& slot = memory.slot(index);
  if (contribution.worker != Rank(slot.added)) {
    const std::span<const std::byte> wire = contribution.elements;
    return wire::copy_crc32c(kept(index, contribution.worker), wire.data(), wire.size()) ==
           contribution.payload_crc;
  }
  if (!memory.add(slot, sum, contribution)) return false;
  for (; slot.added < workers_ && slot.has(Rank(slot.added)); ++slot.added) {
    memory.kernel().add(sum, kept(index, Rank(slot.added)), memory.elems(index));
  }
  return true;
}

void InOrder::take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept {
  Slot& slot = memory.slot(index);
  if (!slot.has(worker)) return;
  if (worker < Rank(slot.added)) return slot.begin_anew();
  erase(slot.contributors, worker);  // it is only kept
  --slot.contributions;
}

}  // namespace mercury::aggregation
