#include "aggregator/tensor_slots.h"

#include <algorithm>
#include <string>
#include <utility>

#include "aggregator/frame/contributors.h"
#include "transport/wire/crc32c.h"

namespace mercury::aggregation {
namespace {

// More than any UDP payload carries; with it no size of a share overflows 64 bits.
constexpr uint64_t kMaxChunkBytes = 65536;

// The next chunk's slot, which is probably the next that is asked for. Behind the last lie the
// sums.
// (With more than 256 workers it is the rest of this one.)
void prefetch_behind(const Slot& slot) noexcept {
  const auto* const next = reinterpret_cast<const std::byte*>(&slot) + 2 * kCacheLine;
  for (size_t line = 0; line < 2 * kCacheLine; line += kCacheLine) {
    __builtin_prefetch(next + line, 1);
  }
}

SlotMemory::Room room_of(const AggregationTensor& spec, const CompletionRule& rule,
                         const Finish& finish) {
  SlotMemory::Room room = std::visit([](const auto& any) { return any.room(); }, rule);
  room.state_bytes = std::visit([&](const auto& any) { return any.state_bytes(spec); }, finish);
  return room;
}

}  // namespace

Status check_tensor(const AggregationTensor& spec) {
  const auto bad = [&](const char* what, Errc code = Errc::kInvalidArgument) {
    return Error(code, "tensor " + std::to_string(spec.tensor.value) + ": " + what);
  };
  const size_t element_bytes = size_of(spec.dtype);
  if (element_bytes == 0) return bad("unknown element type");
  if (!is_reduce_op(spec.op)) return bad("unknown operation");
  if (!applies(spec.op, spec.dtype)) {
    return bad("integers can be summed, not averaged", Errc::kUnsupported);
  }
  if (spec.numel == 0) return bad("has no elements");
  if (spec.chunk_elems == 0 || spec.chunk_elems * uint64_t{element_bytes} > kMaxChunkBytes) {
    return bad("a chunk must hold 1 element or more, in at most 65536 bytes");
  }
  const uint64_t chunks = (spec.numel - 1) / spec.chunk_elems + 1;
  if (uint64_t{spec.first_chunk.value} + spec.chunk_count > chunks) {
    return bad("this engine's chunks lie beyond the tensor's end");
  }
  return {};
}

uint64_t TensorSlots::bytes_needed(const AggregationTensor& spec, const CompletionRule& rule,
                                   const Finish& finish) {
  return SlotMemory::bytes_needed(spec, room_of(spec, rule, finish));
}

Result<TensorSlots> TensorSlots::create(const AggregationTensor& spec, uint16_t workers,
                                        const CompletionRule& rule, Finish finish,
                                        MemoryThread* thread) {
  Result<SlotMemory> memory = SlotMemory::create(spec, room_of(spec, rule, finish), thread);
  if (!memory) return memory.error();
  // NOLINTNEXTLINE(performance-move-const-arg): one that keeps something is moved only
  return TensorSlots(std::move(*memory), workers, rule, std::move(finish));
}

TensorSlots::TensorSlots(SlotMemory memory, uint16_t workers, const CompletionRule& rule,
                         Finish finish)
    : memory_(std::move(memory)),
      rule_(rule),
      finish_(std::move(finish)),  // NOLINT(performance-move-const-arg): as above
      workers_(workers) {
  std::visit([&](auto& placed) { placed.place(memory_); }, rule_);
  std::visit([&](auto& placed) { placed.place(memory_); }, finish_);
}

// What was added up becomes the result.
void TensorSlots::finish(uint32_t index, Slot& slot, uint32_t generation) noexcept {
  if (slot.summed == 0) [[unlikely]]
    memory_.clear_sum(index, generation);
  const Accumulated chunk{.index = index,
                          .sum = memory_.sum(index, generation),
                          .elems = memory_.elems(index),
                          .contributions = std::max<uint16_t>(slot.summed, 1),
                          .dtype = memory_.spec().dtype,
                          .round = memory_.open_round(slot),
                          .kernel = memory_.kernel()};
  std::visit([&](auto& how) { how.finish(chunk); }, finish_);
  slot.crc[generation] = wire::crc32c(chunk.sum, memory_.wire_bytes(index));
}

template <class Rule>
[[gnu::always_inline]] inline void TensorSlots::complete_by(Rule& rule, uint32_t index, Slot& slot,
                                                            uint32_t generation) noexcept {
  if (!rule.as_it_came() || slot.summed == 0) finish(index, slot, generation);
  slot.count[generation] = slot.contributions;
  rule.completed(memory_, index, generation);
  memory_.begin_anew(slot);
  ++slot.rounds_done;
}

PushVerdict TensorSlots::push(const Contribution& contribution, const PortMemory& port) noexcept {
  return std::visit([&](auto& rule) { return push_by(rule, contribution, port); }, rule_);
}

template <class Rule>
PushVerdict TensorSlots::push_by(Rule& rule, const Contribution& contribution,
                                 const PortMemory& port) noexcept {
  const uint32_t index = index_of(contribution.chunk);  // wraps if it lies before
  if (index >= chunks()) return PushVerdict::kBadChunk;
  if (contribution.elements.size() == memory_.wire_bytes(index)) [[likely]] {
    return push_into<true>(rule, contribution, port);
  }
  const bool nothing = contribution.elements.empty();
  return nothing ? push_nothing(rule, contribution, port) : PushVerdict::kBadChunk;
}

// Out of line: gradients have elements.
// By value, as in what rules do out of line: a reference would keep the caller's out of registers.
template <class Rule>
[[gnu::noinline]] PushVerdict TensorSlots::push_nothing(Rule& rule, Contribution contribution,
                                                        const PortMemory& port) noexcept {
  return push_into<false>(rule, contribution, port);
}

template <bool kElements, class Rule>
[[gnu::always_inline]] inline PushVerdict TensorSlots::push_into(Rule& rule,
                                                                 const Contribution& contribution,
                                                                 const PortMemory& port) noexcept {
  const uint32_t index = index_of(contribution.chunk);
  Slot& slot = memory_.slot(index);
  prefetch_behind(slot);
  const int32_t ahead = contribution.round.since(memory_.open_round(slot));
  if (ahead == 0 || ahead == -1) rule.note_pushed(*this, index, contribution.worker);
  if (ahead != 0) return ahead < 0 ? PushVerdict::kOldRound : PushVerdict::kNewRound;
  if (slot.has(contribution.worker)) return PushVerdict::kDuplicate;

  const uint32_t generation = generation_of(contribution.round);
  std::byte* const apart = rule.apart(memory_, index);
  if (slot.contributions == 0 && apart == nullptr) {
    // From here on the result of round - 2 is gone, even if this payload turns out to be corrupt.
    if (port.busy(port.context, slot.pins[generation])) return PushVerdict::kSlotBusy;
    slot.count[generation] = 0;
    slot.whole[generation] = false;
    slot.crc[generation] = contribution.payload_crc;  // the sum's, if it is the only one
  }
  std::byte* const sum = apart != nullptr ? apart : memory_.sum(index, generation);
  if constexpr (!kElements) {
    if (contribution.payload_crc != wire::crc32c(contribution.elements)) {
      return PushVerdict::kCorrupt;
    }
    rule.take_nothing(memory_, index, sum, contribution.worker);
  } else {
    if (!rule.take(memory_, index, slot, sum, contribution)) return PushVerdict::kCorrupt;
  }
  slot.note(contribution.worker);
  slot.whole[generation] |= !contribution.in_part;
  if (++slot.contributions == 1) {
    slot.opened_ns = contribution.now_ns;
    rule.opened(*this, index, contribution);
  }
  if (!rule.is_complete(memory_, index, slot)) return PushVerdict::kAdded;
  complete_by(rule, index, slot, generation);
  return PushVerdict::kCompleted;
}

void TensorSlots::complete(uint32_t index, OverdueChunk& out) noexcept {
  Slot& slot = memory_.slot(index);
  out.key = {tensor_index, memory_.open_round(slot), memory_.chunk(index)};
  out.partial = slot.contributions < workers_;
  const uint32_t generation = generation_of(out.key.round);
  std::visit([&](auto& rule) { complete_by(rule, index, slot, generation); }, rule_);
}

bool TensorSlots::pins_busy(uint32_t index, const PortMemory& port) const noexcept {
  auto& [first, second] = memory_.slot(index).pins;
  return port.busy(port.context, first) || port.busy(port.context, second);
}

void TensorSlots::take_out(uint32_t index, Rank worker) noexcept {
  std::visit([&](auto& rule) { rule.take_out(memory_, index, worker); }, rule_);
}

WorkerSet TensorSlots::awaited(uint32_t index, const WorkerSet& live) const noexcept {
  return std::visit([&](const auto& rule) { return rule.awaited(memory_, index, live); }, rule_);
}

WorkerSet TensorSlots::missing_for_good(uint32_t index, const WorkerSet& live) const noexcept {
  const Slot& slot = memory_.slot(index);
  if (slot.contributions == 0) return {};  // nobody waits for it
  const WorkerSet absent = complement(widened(memory_.contributors(index)), workers_);
  const WorkerSet gone = without(absent, live);
  const uint32_t possible = slot.contributions + count(absent) - count(gone);
  const uint32_t needed = std::visit([](const auto& rule) { return rule.needed(); }, rule_);
  return possible < needed ? gone : WorkerSet{};
}

bool TensorSlots::result(Round round, ChunkIndex chunk, ChunkResult& out) noexcept {
  const uint32_t index = index_of(chunk);
  if (index >= chunks()) return false;
  Slot& slot = memory_.slot(index);
  prefetch_behind(slot);
  const int32_t rounds_ago = memory_.open_round(slot).since(round);  // 1: the last completed
  const uint32_t generation = generation_of(round);
  if (rounds_ago < 1 || rounds_ago > 2 || slot.count[generation] == 0) return false;
  out.elements = {memory_.sum(index, generation), memory_.wire_bytes(index)};
  out.crc = slot.crc[generation];
  out.contributors = slot.count[generation];
  out.partial = out.contributors < workers_;
  out.in_parts = !slot.whole[generation];
  if (out.partial) {
    const uint32_t bytes = contributor_bytes(workers_, out.contributors);
    out.elements = {out.elements.data() - bytes, out.elements.size() + bytes};
  }
  out.tensor = id();
  out.pin = shared_ ? &slot.pins[generation] : nullptr;
  return true;
}

}  // namespace mercury::aggregation
