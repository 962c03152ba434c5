#include "aggregator/slot_memory.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace mercury::aggregation {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Whole cache lines: contributions of neighbouring chunks do not meet in one.
constexpr uint64_t stride_for(uint32_t workers) {
  const uint64_t bytes = sizeof(Slot) + words_of(workers) * sizeof(uint64_t);
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}
static_assert(stride_for(1) == 2 * kCacheLine && stride_for(256) == 2 * kCacheLine);
static_assert(stride_for(kMaxWorkers) == 4 * kCacheLine);

struct Layout {
  uint64_t sums_at = 0;
  uint64_t room_at = 0;
  uint64_t state_at = 0;
  uint64_t total = 0;
};

Layout layout_of(const AggregationTensor& spec, const SlotMemory::Room& room) {
  Layout layout;
  if (spec.chunk_count == 0) return layout;
  const uint64_t chunks = spec.chunk_count;
  layout.sums_at = chunks * stride_for(room.workers);
  layout.room_at = layout.sums_at + 2 * chunks * SlotMemory::sum_stride(spec, room);
  layout.state_at = round_up(layout.room_at + room.bytes, kCacheLine);
  layout.total =
      round_up(layout.state_at + room.state_bytes, static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  return layout;
}

}  // namespace

uint64_t SlotMemory::sum_stride(const AggregationTensor& spec, const Room& room) {
  return round_up(uint64_t{spec.chunk_elems} * accumulator_bytes(spec.dtype), kCacheLine) +
         room.before_sum;
}

uint64_t SlotMemory::wire_stride(const AggregationTensor& spec) {
  return round_up(uint64_t{spec.chunk_elems} * size_of(spec.dtype), kCacheLine);
}

uint64_t SlotMemory::bytes_needed(const AggregationTensor& spec, const Room& room) {
  return layout_of(spec, room).total;
}

Result<SlotMemory> SlotMemory::create(const AggregationTensor& spec, const Room& room,
                                      MemoryThread* thread) {
  SlotMemory out;
  out.spec_ = spec;
  out.element_bytes_ = size_of(spec.dtype);
  out.kernel_ = aggregation::kernel_index(spec.dtype, aggregation::merge_of(spec.op));
  out.before_sum_ = room.before_sum;
  out.sum_stride_ = sum_stride(spec, room);
  out.slot_stride_ = static_cast<uint32_t>(stride_for(room.workers));
  out.worker_words_ = words_of(room.workers);
  const Layout layout = layout_of(spec, room);
  if (layout.total == 0) return out;
  out.memory_ = MappedMemory::anonymous(layout.total);
  if (!out.memory_) {
    return Error(Errc::kNoMemory, errno,
                 "tensor " + std::to_string(spec.tensor.value) + ": cannot map " +
                     std::to_string(layout.total) + " bytes for its sums");
  }
  std::byte* const base = out.memory_.data();
  if (thread != nullptr) {
    out.memory_.leave_to(*thread);
    thread->prefault({base, layout.total});
  }
  out.slots_ = base;  // zeroed, which is the first state of a slot
  out.sums_ = base + layout.sums_at;
  out.room_ = base + layout.room_at;
  out.state_ = base + layout.state_at;
  return out;
}

void SlotMemory::clear_sum(uint32_t index, uint32_t generation) const noexcept {
  std::memset(sum(index, generation), 0, elems(index) * accumulator_bytes(spec_.dtype));
}

void SlotMemory::add_checked(Slot& slot, std::byte* sum, const std::byte* wire,
                             uint32_t index) const noexcept {
  const TypeKernels& of_type = kernel();
  if (slot.summed++ > 0) return of_type.add(sum, wire, elems(index));
  if (of_type.widen != nullptr) return of_type.widen(sum, wire, elems(index));
  std::memcpy(sum, wire, wire_bytes(index));
}

std::span<std::byte> SlotMemory::result_pages() const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(sums_);
  const uintptr_t begin = first / page * page;
  const uintptr_t end = round_up(first + 2 * uint64_t{spec_.chunk_count} * sum_stride_, page);
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

}  // namespace mercury::aggregation
