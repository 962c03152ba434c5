#include "aggregator/tensor_slots.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "transport/wire/crc32c.h"

namespace mercury::aggregation {
namespace {

// More than any UDP payload carries; with it no size below overflows 64 bits.
constexpr uint64_t kMaxChunkBytes = 65536;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// The order of addition changes bits only where numbers are rounded, and only from three numbers on
// (IEEE addition commutes; NaNs are made canonical).
bool order_matters(Dtype type, uint16_t workers) {
  return type != Dtype::kI32 && type != Dtype::kI64 && workers > 2;
}

// Before each accumulator, so that a partial result's bitmap and its elements lie in one piece.
constexpr uint64_t kBitmapRoom = kCacheLine;
static_assert(kBitmapRoom >= kMaxWorkers / 8);

struct Layout {
  uint64_t sum_stride = 0;
  uint64_t kept_stride = 0;
  uint64_t sums_at = 0;
  uint64_t kept_at = 0;
  uint64_t quorum_at = 0;
  uint64_t apart_at = 0;
  uint64_t total = 0;
};

Layout layout_of(const AggregationTensor& spec, uint16_t workers, bool in_order, bool quorum) {
  Layout layout;
  if (spec.chunk_count == 0) return layout;
  const uint64_t chunks = spec.chunk_count;
  layout.sum_stride =
      round_up(uint64_t{spec.chunk_elems} * accumulator_bytes(spec.dtype), kCacheLine) +
      (quorum ? kBitmapRoom : 0);
  layout.kept_stride = round_up(uint64_t{spec.chunk_elems} * size_of(spec.dtype), kCacheLine);
  layout.sums_at = chunks * sizeof(Slot);
  layout.kept_at = layout.sums_at + 2 * chunks * layout.sum_stride;
  const uint64_t kept = in_order ? chunks * (workers - 1U) * layout.kept_stride : 0;
  layout.quorum_at = layout.kept_at + kept;
  layout.apart_at =
      round_up(layout.quorum_at + (quorum ? chunks * sizeof(QuorumSlot) : 0), kCacheLine);
  layout.total = round_up(layout.apart_at + (quorum ? chunks * layout.sum_stride : 0),
                          static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  return layout;
}

// The next chunk's slot, which is probably the next that is asked for. Behind the last lie the
// sums.
void prefetch_behind(const Slot& slot) noexcept {
  const auto* const next = reinterpret_cast<const std::byte*>(&slot + 1);
  for (size_t line = 0; line < sizeof(Slot); line += kCacheLine) {
    __builtin_prefetch(next + line, 1);
  }
}

}  // namespace

Status check_tensor(const AggregationTensor& spec) {
  const auto bad = [&](const char* what) {
    return Error(Errc::kInvalidArgument,
                 "tensor " + std::to_string(spec.tensor.value) + ": " + what);
  };
  const size_t element_bytes = size_of(spec.dtype);
  if (element_bytes == 0) return bad("unknown element type");
  if (spec.op != ReduceOp::kSum && spec.op != ReduceOp::kAverage) return bad("unknown operation");
  if (spec.op == ReduceOp::kAverage && (spec.dtype == Dtype::kI32 || spec.dtype == Dtype::kI64)) {
    return Error(Errc::kUnsupported, "tensor " + std::to_string(spec.tensor.value) +
                                         ": integers can be summed, not averaged");
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

uint64_t TensorSlots::bytes_needed(const AggregationTensor& spec, uint16_t workers,
                                   bool deterministic, bool quorum) {
  return layout_of(spec, workers, deterministic && order_matters(spec.dtype, workers), quorum)
      .total;
}

Result<TensorSlots> TensorSlots::create(const AggregationTensor& spec, uint16_t workers,
                                        bool deterministic, QuorumRule* rule) {
  TensorSlots out;
  out.spec_ = spec;
  out.element_bytes_ = size_of(spec.dtype);
  out.workers_ = workers;
  out.in_order_ = deterministic && order_matters(spec.dtype, workers);
  out.rule_ = rule;
  out.sum_offset_ = rule != nullptr ? kBitmapRoom : 0;
  const Layout layout = layout_of(spec, workers, out.in_order_, rule != nullptr);
  if (layout.total == 0) return out;
  out.memory_ = MappedMemory::anonymous(layout.total);
  if (!out.memory_) {
    return Error(Errc::kNoMemory, errno,
                 "tensor " + std::to_string(spec.tensor.value) + ": cannot map " +
                     std::to_string(layout.total) + " bytes for its sums");
  }
  std::byte* const base = out.memory_.data();
  out.sum_stride_ = layout.sum_stride;
  out.kept_stride_ = layout.kept_stride;
  out.slots_ = reinterpret_cast<Slot*>(base);  // zeroed, which is the first state of a slot
  out.sums_ = base + layout.sums_at;
  out.kept_ = base + layout.kept_at;
  if (rule != nullptr) {
    out.quorum_ = reinterpret_cast<QuorumSlot*>(base + layout.quorum_at);
    out.apart_ = base + layout.apart_at;
  }
  return out;
}

uint32_t TensorSlots::elems_of(ChunkIndex chunk) const noexcept {
  const uint64_t left = spec_.numel - uint64_t{chunk.value} * spec_.chunk_elems;
  return left < spec_.chunk_elems ? static_cast<uint32_t>(left) : spec_.chunk_elems;
}

std::byte* TensorSlots::accumulator(uint32_t index, uint32_t generation) const noexcept {
  return sums_ + (uint64_t{generation} * spec_.chunk_count + index) * sum_stride_ + sum_offset_;
}

std::byte* TensorSlots::kept_apart(uint32_t index, uint32_t worker) const noexcept {
  return kept_ + ((worker - 1U) * uint64_t{spec_.chunk_count} + index) * kept_stride_;
}

PushVerdict TensorSlots::push(const Contribution& contribution, const PortMemory& port) noexcept {
  const uint32_t index = index_of(contribution.chunk);
  if (index >= spec_.chunk_count) return PushVerdict::kBadChunk;
  const uint32_t elems = elems_of(contribution.chunk);
  if (contribution.elements.size() != elems * element_bytes_) return PushVerdict::kBadChunk;

  Slot& slot = slots_[index];
  prefetch_behind(slot);
  const int32_t ahead = contribution.round.since(round_after(slot.rounds_done));
  if (rule_ != nullptr && (ahead == 0 || ahead == -1)) {
    note_pushed(index, contribution.worker);
  }
  if (ahead != 0) return ahead < 0 ? PushVerdict::kOldRound : PushVerdict::kNewRound;
  if (slot.has(contribution.worker)) return PushVerdict::kDuplicate;

  const uint32_t generation = generation_of(contribution.round);
  if (slot.contributions == 0 && rule_ != nullptr) quorum_[index].waiting = !may_overwrite(index);
  const bool apart = rule_ != nullptr && quorum_[index].waiting;
  if (slot.contributions == 0 && !apart) {
    // From here on the result of round - 2 is gone, even if this payload turns out to be corrupt.
    if (port.busy(port.context, slot.pins[generation])) return PushVerdict::kSlotBusy;
    slot.complete[generation] = false;
    slot.crc[generation] = contribution.payload_crc;  // the sum's, if it is the only one
  }
  std::byte* const sum = apart ? accumulator_apart(index) : accumulator(index, generation);
  if (in_order_ && contribution.worker != slot.added) {
    if (!keep(index, contribution)) return PushVerdict::kCorrupt;
  } else if (!add(slot, sum, contribution)) {
    return PushVerdict::kCorrupt;
  }
  insert(slot.contributors, contribution.worker);
  ++slot.contributions;
  if (in_order_) add_kept(index, slot, sum, elems);
  if (slot.contributions == 1) {
    slot.opened_ns = contribution.now_ns;
    if (rule_ != nullptr) begin(index, contribution);
  }
  if (apart) return PushVerdict::kAdded;
  if (slot.contributions < workers_ && (rule_ == nullptr || !has_enough(index))) {
    return PushVerdict::kAdded;
  }
  complete(index, generation);
  return PushVerdict::kCompleted;
}

// The first contribution overwrites, so a failed copy leaves nothing behind that counts; the next
// chunk's accumulator, which is probably the next that is written, is fetched meanwhile. A later
// one is checked before it is added: a sum cannot be taken back. The check brings it into the
// cache.
bool TensorSlots::add(Slot& slot, std::byte* sum, const Contribution& contribution) noexcept {
  const std::span<const std::byte> wire = contribution.elements;
  if (slot.added == 0 && (alone() || type_kernels().widen == nullptr)) {
    if (wire::copy_crc32c_fetching(sum, wire.data(), wire.size(), behind(sum)) !=
        contribution.payload_crc) {
      return false;
    }
  } else {
    if (wire::crc32c(wire) != contribution.payload_crc) return false;
    const TypeKernels& kernel = type_kernels();
    (slot.added == 0 ? kernel.widen : kernel.add)(sum, wire.data(), wire.size() / element_bytes_);
  }
  ++slot.added;
  return true;
}

bool TensorSlots::keep(uint32_t index, const Contribution& contribution) noexcept {
  const std::span<const std::byte> wire = contribution.elements;
  return wire::copy_crc32c(kept_apart(index, contribution.worker), wire.data(), wire.size()) ==
         contribution.payload_crc;
}

void TensorSlots::add_kept(uint32_t index, Slot& slot, std::byte* sum, uint32_t elems) noexcept {
  const TypeKernels& kernel = type_kernels();
  for (; slot.added < workers_ && slot.has(slot.added); ++slot.added) {
    kernel.add(sum, kept_apart(index, slot.added), elems);
  }
}

void TensorSlots::complete(uint32_t index, uint32_t generation) noexcept {
  Slot& slot = slots_[index];
  if (!alone()) {
    std::byte* const sum = accumulator(index, generation);
    const uint32_t elems = elems_of(chunk_at(index));
    const TypeKernels& kernel = type_kernels();
    if (kernel.finish != nullptr) {
      kernel.finish(sum, elems, spec_.op == ReduceOp::kAverage ? slot.contributions : 1U);
    }
    slot.crc[generation] = wire::crc32c(sum, elems * element_bytes_);
  }
  if (rule_ != nullptr) complete_quorum(index, generation);
  slot.complete[generation] = true;
  slot.contributors = {};
  slot.contributions = 0;
  slot.added = 0;
  ++slot.rounds_done;
}

bool TensorSlots::pins_busy(uint32_t index, const PortMemory& port) const noexcept {
  auto& [first, second] = slots_[index].pins;
  return port.busy(port.context, first) || port.busy(port.context, second);
}

std::span<std::byte> TensorSlots::result_pages() const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(sums_);
  const uintptr_t begin = first / page * page;
  const uintptr_t end = round_up(first + 2 * uint64_t{spec_.chunk_count} * sum_stride_, page);
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

void TensorSlots::take_out(uint16_t worker) noexcept {
  for (uint32_t index = 0; index < spec_.chunk_count; ++index) {
    Slot& slot = slots_[index];
    if (rule_ != nullptr) erase(quorum_[index].ready, worker);
    if (!slot.has(worker)) continue;
    if (in_order_ && worker >= slot.added) {  // still kept apart
      erase(slot.contributors, worker);
      --slot.contributions;
    } else {
      slot.contributors = {};
      slot.contributions = 0;
      slot.added = 0;
      if (rule_ == nullptr) continue;
      unlist(index);
      quorum_[index].waiting = false;
    }
  }
}

// With a quorum that is there only those can be missed who still need the sum that it overwrites.
WorkerSet TensorSlots::awaited(uint32_t index, const WorkerSet& live) const noexcept {
  const Slot& slot = slots_[index];
  if (rule_ == nullptr || slot.contributions < rule_->quorum) {
    return without(live, slot.contributors);
  }
  return quorum_[index].waiting ? without(live, quorum_[index].ready) : WorkerSet{};
}

WorkerSet TensorSlots::missing_for_good(uint32_t index, const WorkerSet& live) const noexcept {
  const Slot& slot = slots_[index];
  if (slot.contributions == 0) return {};  // nobody waits for it
  const WorkerSet absent = complement(slot.contributors, workers_);
  const WorkerSet gone = without(absent, live);
  const uint32_t possible = slot.contributions + count(absent) - count(gone);
  const uint32_t needed = rule_ == nullptr ? workers_ : rule_->quorum;
  return possible < needed ? gone : WorkerSet{};
}

// The rounds of a tensor's chunks differ by one at most, so serial numbers compare.
Round TensorSlots::open_round() const noexcept {
  uint32_t lowest = slots_[0].rounds_done;
  for (uint32_t index = 1; index < spec_.chunk_count; ++index) {
    const uint32_t done = slots_[index].rounds_done;
    if (static_cast<int32_t>(done - lowest) < 0) lowest = done;
  }
  return round_after(lowest);
}

bool TensorSlots::result(Round round, ChunkIndex chunk, ChunkResult& out) noexcept {
  const uint32_t index = index_of(chunk);
  if (index >= spec_.chunk_count) return false;
  Slot& slot = slots_[index];
  prefetch_behind(slot);
  const int32_t rounds_ago = round_after(slot.rounds_done).since(round);  // 1: the last completed
  const uint32_t generation = generation_of(round);
  if (rounds_ago < 1 || rounds_ago > 2 || !slot.complete[generation]) return false;
  out.elements = {accumulator(index, generation), elems_of(chunk) * element_bytes_};
  out.crc = slot.crc[generation];
  out.contributors = workers_;
  out.partial = false;
  if (rule_ != nullptr && quorum_[index].count[generation] < workers_) {
    out.contributors = quorum_[index].count[generation];
    out.partial = true;
    out.elements = {out.elements.data() - bitmap_bytes(), out.elements.size() + bitmap_bytes()};
  }
  out.pin = shared_ ? &slot.pins[generation] : nullptr;
  return true;
}

}  // namespace mercury::aggregation
