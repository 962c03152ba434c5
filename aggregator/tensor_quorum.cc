// TensorSlots: jobs whose chunks time may complete.
//
// A result is never overwritten before everybody who needs it has it. A worker pushes round r + 1
// only with all sums of round r, so the result of round r is done with when every live worker has
// pushed r + 1 or later; that is what `ready` says when round r + 2, which overwrites it, is to
// begin.
#include <cstring>

#include "aggregator/tensor_slots.h"
#include "transport/wire/crc32c.h"

namespace mercury::aggregation {

bool TensorSlots::may_begin(uint32_t index) const noexcept {
  // Before the first two rounds are complete there is nothing to overwrite.
  return slots_[index].rounds_done < 2 || contains(quorum_[index].ready, rule_->live);
}

void TensorSlots::begin(uint32_t index, const Contribution& contribution) noexcept {
  QuorumSlot& slot = quorum_[index];
  slot.opened_ns = contribution.now_ns;
  slot.priority = contribution.priority;
  slot.listed = true;
  slot.previous = last_open_;
  slot.next = 0;
  (last_open_ != 0 ? quorum_[last_open_ - 1].next : first_open_) = index + 1;
  last_open_ = index + 1;
}

void TensorSlots::unlist(uint32_t index) noexcept {
  QuorumSlot& slot = quorum_[index];
  slot.overdue = false;
  if (!slot.listed) return;
  slot.listed = false;
  (slot.previous != 0 ? quorum_[slot.previous - 1].next : first_open_) = slot.next;
  (slot.next != 0 ? quorum_[slot.next - 1].previous : last_open_) = slot.previous;
}

bool TensorSlots::has_enough(uint32_t index) const noexcept {
  const Slot& slot = slots_[index];
  return slot.contributions >= rule_->quorum &&
         (quorum_[index].overdue || contains(slot.contributors, rule_->live));
}

// A chunk that has too few contributions when its time is up is completed by the one that makes
// them enough.
bool TensorSlots::take_overdue(uint64_t now_ns, OverdueChunk& out) noexcept {
  while (first_open_ != 0) {
    const uint32_t index = first_open_ - 1;
    if (now_ns < quorum_[index].opened_ns + rule_->patience_ns) return false;
    unlist(index);
    quorum_[index].overdue = true;
    if (slots_[index].contributions < rule_->quorum) continue;
    out.tensor = spec_.tensor;
    out.round = spec_.first_round + slots_[index].rounds_done;
    out.chunk = spec_.first_chunk + index;
    out.priority = quorum_[index].priority;
    complete(index, out.round & 1);
    return true;
  }
  return false;
}

void TensorSlots::complete_quorum(uint32_t index, uint32_t generation) noexcept {
  Slot& slot = slots_[index];
  QuorumSlot& quorum = quorum_[index];
  unlist(index);
  quorum.ready = slot.contributors;
  quorum.in[generation] = slot.contributors;
  quorum.count[generation] = slot.contributions;
  if (slot.contributions == workers_) return;
  std::byte* const bitmap = accumulator(index, generation) - bitmap_bytes();
  for (uint32_t byte = 0; byte < bitmap_bytes(); ++byte) {  // words are big-endian
    const uint64_t word = slot.contributors[byte / 8];
    bitmap[byte] = static_cast<std::byte>(word >> (56 - 8 * (byte % 8)));
  }
  const uint32_t elems = elems_of(spec_.first_chunk + index);
  slot.crc[generation] = wire::crc32c(bitmap, bitmap_bytes() + elems * size_of(spec_.dtype));
}

}  // namespace mercury::aggregation
