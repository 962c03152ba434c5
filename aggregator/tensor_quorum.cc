// TensorSlots: jobs whose chunks time may complete.
//
// A result is never overwritten before everybody who needs it has it. A worker pushes round r + 1
// only with all sums of round r, so the result of round r is done with when every live worker has
// pushed r + 1 or later; that is what `ready` says when round r + 2, which overwrites it, begins.
// Until then contributions to that round are added up apart, so that nobody has to send them again.
#include <cstring>

#include "aggregator/tensor_slots.h"
#include "transport/wire/crc32c.h"

namespace mercury::aggregation {

bool TensorSlots::may_overwrite(uint32_t index) const noexcept {
  const uint32_t generation = generation_of(round_of(index));
  return !slots_[index].complete[generation] || contains(quorum_[index].ready, rule_->live);
}

std::byte* TensorSlots::accumulator_apart(uint32_t index) const noexcept {
  return apart_ + index * sum_stride_;
}

void TensorSlots::note_pushed(uint32_t index, uint32_t worker) noexcept {
  insert(quorum_[index].ready, worker);
  if (quorum_[index].waiting && may_overwrite(index)) wake(index);
}

void TensorSlots::wake(uint32_t index) noexcept {
  QuorumSlot& slot = quorum_[index];
  if (slot.woken) return;
  slot.woken = true;
  slot.tensor = this;
  slot.next_woken = rule_->first_woken;
  rule_->first_woken = &slot;
}

void TensorSlots::wake_open() noexcept {
  for (uint32_t index = 0; index < spec_.chunk_count; ++index) {
    if (slots_[index].contributions > 0) wake(index);
  }
}

bool TensorSlots::settle(QuorumSlot& chunk, const PortMemory& port) noexcept {
  const auto index = static_cast<uint32_t>(&chunk - quorum_);
  Slot& slot = slots_[index];
  rule_->first_woken = chunk.next_woken;
  if (chunk.waiting && slot.contributions > 0 && may_overwrite(index)) {
    const uint32_t generation = generation_of(round_of(index));
    if (port.busy(port.context, slot.pins[generation])) {
      chunk.next_woken = rule_->first_read;
      rule_->first_read = &chunk;
      return false;
    }
    slot.complete[generation] = false;
    std::memcpy(accumulator(index, generation), accumulator_apart(index),
                sum_stride_ - sum_offset_);
    chunk.waiting = false;
  }
  chunk.woken = false;
  return true;
}

void TensorSlots::begin(uint32_t index, const Contribution& contribution) noexcept {
  QuorumSlot& slot = quorum_[index];
  slot.opened_ns = contribution.now_ns;
  slot.priority = contribution.priority;
  slot.tensor = this;
  slot.listed = true;
  slot.previous = rule_->last_open;
  slot.next = nullptr;
  (rule_->last_open != nullptr ? rule_->last_open->next : rule_->first_open) = &slot;
  rule_->last_open = &slot;
}

void TensorSlots::unlist(uint32_t index) noexcept {
  QuorumSlot& slot = quorum_[index];
  slot.overdue = false;
  if (!slot.listed) return;
  slot.listed = false;
  (slot.previous != nullptr ? slot.previous->next : rule_->first_open) = slot.next;
  (slot.next != nullptr ? slot.next->previous : rule_->last_open) = slot.previous;
}

bool TensorSlots::has_enough(uint32_t index) const noexcept {
  const Slot& slot = slots_[index];
  return slot.contributions >= rule_->quorum &&
         (quorum_[index].overdue || contains(slot.contributors, rule_->live));
}

void TensorSlots::expire(QuorumSlot& chunk) noexcept {
  unlist(static_cast<uint32_t>(&chunk - quorum_));
  chunk.overdue = true;
}

bool TensorSlots::finish(const QuorumSlot& chunk, OverdueChunk& out) noexcept {
  const auto index = static_cast<uint32_t>(&chunk - quorum_);
  const Slot& slot = slots_[index];
  if (chunk.waiting || !has_enough(index)) return false;
  out.key = {tensor_index, round_of(index), chunk_at(index)};
  out.priority = chunk.priority;
  out.partial = slot.contributions < workers_;
  complete(index, generation_of(out.key.round));
  return true;
}

void TensorSlots::complete_quorum(uint32_t index, uint32_t generation) noexcept {
  Slot& slot = slots_[index];
  QuorumSlot& quorum = quorum_[index];
  unlist(index);
  quorum.ready = slot.contributors;
  quorum.count[generation] = slot.contributions;
  if (slot.contributions == workers_) return;
  std::byte* const bitmap = accumulator(index, generation) - bitmap_bytes();
  wire::encode_contributors(slot.contributors, {bitmap, bitmap_bytes()});
  const uint32_t elems = elems_of(chunk_at(index));
  slot.crc[generation] = wire::crc32c(bitmap, bitmap_bytes() + elems * size_of(spec_.dtype));
}

}  // namespace mercury::aggregation
