#include "aggregator/completion/quorum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aggregator/frame/contributors.h"
#include "aggregator/tensor_slots.h"
#include "transport/wire/crc32c.h"

namespace mercury::aggregation {
namespace {

// How soon a result is looked at again that the NIC still reads.
constexpr uint64_t kPinRetryNs = 1'000'000;

constexpr uint64_t cache_lines(uint64_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// If it has enough now; else the contribution that makes it enough completes it.
bool complete(const QuorumSlot& chunk, OverdueChunk& out) noexcept {
  TensorSlots& tensor = *chunk.tensor;
  const Quorum& rule = tensor.quorum();
  const uint32_t index = rule.index_of(chunk);
  if (!rule.is_complete(tensor.memory(), index, tensor.memory().slot(index))) return false;
  out.priority = chunk.priority;
  tensor.complete(index, out);
  return true;
}

}  // namespace

uint64_t JobQuorum::overdue_ns() const noexcept {
  return first_open_ == nullptr ? kNever : first_open_->opened_ns + patience_ns_;
}

uint64_t JobQuorum::woken_due_ns() const noexcept {
  if (first_woken_ != nullptr) return 0;
  return first_read_ == nullptr ? kNever : read_due_ns_;
}

uint64_t JobQuorum::next_due_ns() const noexcept { return std::min(overdue_ns(), woken_due_ns()); }

bool JobQuorum::take_overdue(uint64_t now_ns, const PortMemory& port, uint32_t& looks,
                             OverdueChunk& out) noexcept {
  if (woken_due_ns() <= now_ns && first_woken_ == nullptr) {
    first_woken_ = std::exchange(first_read_, nullptr);
  }
  while (looks > 0 && first_woken_ != nullptr) {
    --looks;
    QuorumSlot& chunk = *first_woken_;
    if (first_read_ == nullptr) read_due_ns_ = now_ns + kPinRetryNs;
    TensorSlots& tensor = *chunk.tensor;
    if (tensor.quorum().settle(tensor.memory(), chunk, port) && complete(chunk, out)) return true;
  }
  while (looks > 0 && overdue_ns() <= now_ns) {
    --looks;
    QuorumSlot& chunk = *first_open_;
    chunk.tensor->quorum().expire(chunk);
    if (complete(chunk, out)) return true;
  }
  return false;
}

Quorum::Quorum(const AggregationTensor& spec, uint16_t workers, JobQuorum& job) noexcept
    : job_(&job),
      workers_(workers),
      chunks_(spec.chunk_count),
      before_sum_(
          static_cast<uint32_t>(cache_lines(contributor_room(workers, job.contributions_)))) {
  sum_stride_ = SlotMemory::sum_stride(spec, {.before_sum = before_sum_});
}

SlotMemory::Room Quorum::room() const noexcept {
  return {
      .workers = workers_, .before_sum = before_sum_, .bytes = apart_at() + chunks_ * sum_stride_};
}

void Quorum::place(const SlotMemory& memory) noexcept {
  slots_ = reinterpret_cast<QuorumSlot*>(memory.room());
  ready_ = reinterpret_cast<uint64_t*>(slots_ + chunks_);
  apart_ = memory.room() + apart_at();
}

uint64_t Quorum::apart_at() const noexcept {
  return cache_lines(chunks_ *
                     (sizeof(QuorumSlot) + words_of(workers_) * uint64_t{sizeof *ready_}));
}

std::span<uint64_t> Quorum::ready(uint32_t index) const noexcept {
  const uint32_t words = words_of(workers_);
  return {ready_ + uint64_t{index} * words, words};
}

bool Quorum::may_overwrite(const SlotMemory& memory, uint32_t index) const noexcept {
  const uint32_t generation = generation_of(memory.open_round(index));
  return memory.slot(index).count[generation] == 0 || contains(ready(index), job_->live_);
}

std::byte* Quorum::apart(const SlotMemory& memory, uint32_t index) noexcept {
  bool& waiting = slots_[index].waiting;
  if (memory.slot(index).contributions == 0) waiting = !may_overwrite(memory, index);
  return waiting ? sum_apart(index) : nullptr;
}

void Quorum::note_pushed(TensorSlots& tensor, uint32_t index, Rank worker) noexcept {
  insert(ready(index), worker);
  if (slots_[index].waiting && may_overwrite(tensor.memory(), index)) wake(tensor, index);
}

void Quorum::wake(TensorSlots& tensor, uint32_t index) noexcept {
  QuorumSlot& slot = slots_[index];
  if (slot.woken) return;
  slot.woken = true;
  slot.tensor = &tensor;
  slot.next_woken = job_->first_woken_;
  job_->first_woken_ = &slot;
}

void Quorum::wake_open(TensorSlots& tensor, uint32_t index) noexcept {
  if (tensor.memory().slot(index).contributions > 0) wake(tensor, index);
}

bool Quorum::settle(const SlotMemory& memory, QuorumSlot& chunk, const PortMemory& port) noexcept {
  const uint32_t index = index_of(chunk);
  Slot& slot = memory.slot(index);
  job_->first_woken_ = chunk.next_woken;
  if (chunk.waiting && slot.contributions > 0 && may_overwrite(memory, index)) {
    const uint32_t generation = generation_of(memory.open_round(index));
    if (port.busy(port.context, slot.pins[generation])) {
      chunk.next_woken = job_->first_read_;
      job_->first_read_ = &chunk;
      return false;
    }
    slot.count[generation] = 0;
    std::memcpy(memory.sum(index, generation), sum_apart(index), sum_stride_ - before_sum_);
    chunk.waiting = false;
  }
  chunk.woken = false;
  return true;
}

[[gnu::noinline]] bool Quorum::take(const SlotMemory& memory, uint32_t, Slot& slot, std::byte* sum,
                                    Contribution contribution) noexcept {
  return memory.add(slot, sum, contribution);
}

void Quorum::opened(TensorSlots& tensor, uint32_t index, Contribution contribution) noexcept {
  QuorumSlot& slot = slots_[index];
  slot.opened_ns = contribution.now_ns;
  slot.priority = contribution.priority;
  slot.tensor = &tensor;
  slot.listed = true;
  slot.previous = job_->last_open_;
  slot.next = nullptr;
  (job_->last_open_ != nullptr ? job_->last_open_->next : job_->first_open_) = &slot;
  job_->last_open_ = &slot;
}

void Quorum::unlist(uint32_t index) noexcept {
  QuorumSlot& slot = slots_[index];
  slot.overdue = false;
  if (!slot.listed) return;
  slot.listed = false;
  (slot.previous != nullptr ? slot.previous->next : job_->first_open_) = slot.next;
  (slot.next != nullptr ? slot.next->previous : job_->last_open_) = slot.previous;
}

bool Quorum::is_complete(const SlotMemory& memory, uint32_t index,
                         const Slot& slot) const noexcept {
  const QuorumSlot& chunk = slots_[index];
  return !chunk.waiting && slot.contributions >= needed() &&
         (chunk.overdue || contains(memory.contributors(index), job_->live_));
}

void Quorum::expire(QuorumSlot& chunk) noexcept {
  unlist(index_of(chunk));
  chunk.overdue = true;
}

void Quorum::completed(const SlotMemory& memory, uint32_t index, uint32_t generation) noexcept {
  Slot& slot = memory.slot(index);
  unlist(index);
  const std::span<const uint64_t> contributors = memory.contributors(index);
  std::copy(contributors.begin(), contributors.end(), ready(index).begin());
  if (slot.contributions == workers_) return;
  const uint32_t bytes = contributor_bytes(workers_, slot.contributions);
  std::byte* const at = memory.sum(index, generation) - bytes;
  encode_contributors(contributors, workers_, {at, bytes});
  slot.crc[generation] = wire::crc32c(at, bytes + memory.wire_bytes(index));
}

void Quorum::take_out(const SlotMemory& memory, uint32_t index, Rank worker) noexcept {
  Slot& slot = memory.slot(index);
  erase(ready(index), worker);
  if (!slot.has(worker)) return;
  memory.begin_anew(slot);
  unlist(index);
  slots_[index].waiting = false;
}

WorkerSet Quorum::awaited(const SlotMemory& memory, uint32_t index,
                          const WorkerSet& live) const noexcept {
  if (memory.slot(index).contributions < needed()) {
    return without(live, widened(memory.contributors(index)));
  }
  return slots_[index].waiting ? without(live, widened(ready(index))) : WorkerSet{};
}

}  // namespace mercury::aggregation
