#include "aggregator/completion/in_order.h"

#include <span>

#include "transport/wire/crc32c.h"

namespace mercury::aggregation {
namespace {

constexpr uint64_t sets_bytes(uint32_t chunks, uint32_t workers) {
  const uint64_t bytes = uint64_t{chunks} * words_of(workers) * sizeof(uint64_t);
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace

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
  return {.workers = workers_,
          .bytes = sets_bytes(chunks_, workers_) + uint64_t{chunks_} * (workers_ - 1U) * stride_};
}

void InOrder::place(const SlotMemory& memory) noexcept {
  nothing_ = reinterpret_cast<uint64_t*>(memory.room());
  kept_ = memory.room() + sets_bytes(chunks_, workers_);
}

// What is in, of ranks above the lowest that is missing, is kept. (Out of line, like a quorum's:
// the engine's loop has room for one rule's code, and most jobs' is All's.)
[[gnu::noinline]] bool InOrder::take(const SlotMemory& memory, uint32_t index, Slot& slot,
                                     std::byte* sum, Contribution contribution) const noexcept {
  if (contribution.worker != Rank(slot.next_rank)) {
    const std::span<const std::byte> wire = contribution.elements;
    if (wire::copy_crc32c(kept(index, contribution.worker), wire.data(), wire.size()) !=
        contribution.payload_crc) {
      return false;
    }
    erase(nothing(index), contribution.worker);
    return true;
  }
  if (!memory.add(slot, sum, contribution)) return false;
  ++slot.next_rank;
  add_kept(memory, index, sum);
  return true;
}

void InOrder::take_nothing(const SlotMemory& memory, uint32_t index, std::byte* sum,
                           Rank worker) const noexcept {
  Slot& slot = memory.slot(index);
  insert(nothing(index), worker);
  if (worker != Rank(slot.next_rank)) return;
  ++slot.next_rank;
  add_kept(memory, index, sum);
}

void InOrder::add_kept(const SlotMemory& memory, uint32_t index, std::byte* sum) const noexcept {
  Slot& slot = memory.slot(index);
  for (; slot.next_rank < workers_ && slot.has(Rank(slot.next_rank)); ++slot.next_rank) {
    const Rank rank(slot.next_rank);
    if (!contains(nothing(index), rank)) memory.add_checked(slot, sum, kept(index, rank), index);
  }
}

void InOrder::take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept {
  Slot& slot = memory.slot(index);
  if (!slot.has(worker)) return;
  if (worker < Rank(slot.next_rank)) return memory.begin_anew(slot);
  erase(memory.contributors(index), worker);  // it is only kept
  --slot.contributions;
}

}  // namespace mercury::aggregation
