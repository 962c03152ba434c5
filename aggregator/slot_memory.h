// One tensor's share in one engine, as it lies in memory: a slot per chunk, two accumulators per
// slot, and behind them what the completion rule and the finish ask for.
//
// Owner/thread: one engine. Allocates in create, never later. The memory is mapped zeroed, and
// touched by a thread beside the engine, by a port that holds it in place, or when the first
// contribution of a chunk arrives: whoever comes first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "aggregator/aggregator.h"
#include "aggregator/kernels/kernels.h"
#include "scheduler/terms/worker_set.h"
#include "transport/base/mapped_memory.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/port/port.h"
#include "transport/wire/crc32c.h"

namespace mercury::aggregation {

// All zeros is the state before the first round. At most one round of a chunk is open, so one set
// of contributors serves both generations. It lies behind the slot, in as many words as the job
// needs: with up to 256 workers a duplicate or a contribution that is added touches the second
// cache line only, and a slot is two of them; with 1,024 it is four.
struct Slot {
  std::array<PayloadPin, 2> pins{};
  uint32_t rounds_done = 0;    // completed rounds, wrapping: the open round is first_round + this
  uint16_t contributions = 0;  // of the open round
  uint16_t summed = 0;         // of them, those whose elements are in the accumulator
  uint16_t next_rank = 0;      // if they are added in order: the lowest that has not had its turn
  // Of each generation: whether a contributor wants all of the sum, and not its own part.
  std::array<bool, 2> whole{};
  // Of each generation's result; until then its first contribution's.
  std::array<uint32_t, 2> crc{};
  std::array<uint16_t, 2> count{};  // contributions in each generation's result; 0: there is none
  uint64_t opened_ns = 0;           // the open round's first contribution

  static constexpr size_t kFirstWords = 4;  // that every slot has
  // So many words of the job's: the slot does not know how many that is.
  std::span<uint64_t> contributors(size_t words) noexcept {
    return {reinterpret_cast<uint64_t*>(this + 1), words};
  }
  std::span<const uint64_t> contributors(size_t words) const noexcept {
    return {reinterpret_cast<const uint64_t*>(this + 1), words};
  }
  bool has(Rank worker) const noexcept { return contains(contributors(kWorkerWords), worker); }
  void note(Rank worker) noexcept { insert(contributors(kWorkerWords), worker); }
  void begin_anew(size_t words) noexcept {  // the open round
    uint64_t* const set = contributors(words).data();
    std::memset(set, 0, kFirstWords * sizeof *set);
    if (words > kFirstWords) [[unlikely]]
      std::memset(set + kFirstWords, 0, (words - kFirstWords) * sizeof *set);
    contributions = 0;
    summed = 0;
    next_rank = 0;
  }
};
static_assert(sizeof(Slot) + Slot::kFirstWords * sizeof(uint64_t) == 2 * kCacheLine);

// Where a round's result is, until the one after the next overwrites it.
inline uint32_t generation_of(Round round) noexcept { return round.value & 1; }

class SlotMemory {
 public:
  // What a completion rule needs of it, and a finish.
  struct Room {
    uint16_t workers = 1;      // whom a slot tells apart
    uint32_t before_sum = 0;   // bytes before each accumulator: whole cache lines
    uint64_t bytes = 0;        // behind the last, from a cache line on; zeroed
    uint64_t state_bytes = 0;  // the finish's, behind these; likewise
  };
  // What create would map.
  static uint64_t bytes_needed(const AggregationTensor& spec, const Room& room);
  // kNoMemory. The spec must be valid (check_tensor). `thread` touches the memory ahead, and gives
  // it back; null: neither.
  static Result<SlotMemory> create(const AggregationTensor& spec, const Room& room,
                                   MemoryThread* thread);
  // From one accumulator to the next, a multiple of a cache line.
  static uint64_t sum_stride(const AggregationTensor& spec, const Room& room);
  // The same of elements as they come, for who keeps them.
  static uint64_t wire_stride(const AggregationTensor& spec);

  const AggregationTensor& spec() const noexcept { return spec_; }
  uint64_t bytes() const noexcept { return memory_.bytes(); }
  std::byte* room() const noexcept { return room_; }    // Room::bytes
  std::byte* state() const noexcept { return state_; }  // Room::state_bytes

  // By index, below chunks().
  uint32_t chunks() const noexcept { return spec_.chunk_count; }
  ChunkIndex chunk(uint32_t index) const noexcept {
    return ChunkIndex(spec_.first_chunk.value + index);
  }
  Slot& slot(uint32_t index) const noexcept {
    return *reinterpret_cast<Slot*>(slots_ + uint64_t{index} * slot_stride_);
  }
  Round open_round(uint32_t index) const noexcept { return open_round(slot(index)); }
  Round open_round(const Slot& slot) const noexcept {
    return Round(spec_.first_round.value + slot.rounds_done);
  }
  // Who is in a slot's open round.
  std::span<uint64_t> contributors(uint32_t index) const noexcept {
    return slot(index).contributors(worker_words_);
  }
  void begin_anew(Slot& slot) const noexcept { slot.begin_anew(worker_words_); }
  uint32_t elems(uint32_t index) const noexcept {
    const uint64_t left = spec_.numel - uint64_t{chunk(index).value} * spec_.chunk_elems;
    return left < spec_.chunk_elems ? static_cast<uint32_t>(left) : spec_.chunk_elems;
  }
  size_t wire_bytes(uint32_t index) const noexcept { return elems(index) * element_bytes_; }
  std::byte* sum(uint32_t index, uint32_t generation) const noexcept {
    return sums_ + (uint64_t{generation} * spec_.chunk_count + index) * sum_stride_ + before_sum_;
  }
  const TypeKernels& kernel() const noexcept { return kernels().types[kernel_]; }

  // One more contribution to the open round. False: the payload does not match its CRC, and nothing
  // was counted.
  bool add(Slot& slot, std::byte* sum, const Contribution& contribution) const noexcept;
  // Nobody had elements: zeros.
  void clear_sum(uint32_t index, uint32_t generation) const noexcept;
  // One that has been checked, and kept as it came.
  void add_checked(Slot& slot, std::byte* sum, const std::byte* wire,
                   uint32_t index) const noexcept;
  // The first, left in the type that it came in.
  bool copy(Slot& slot, std::byte* sum, const Contribution& contribution) const noexcept;

  // The pages that results are sent from, none of another tensor's; not of an empty share.
  std::span<std::byte> result_pages() const noexcept;

 private:
  AggregationTensor spec_;
  size_t element_bytes_ = 0;
  uint8_t kernel_ = 0;  // kernel_index
  uint32_t before_sum_ = 0;
  uint64_t sum_stride_ = 0;
  uint32_t slot_stride_ = 0;
  uint32_t worker_words_ = 0;
  MappedMemory memory_;         // all that follows lies in it
  std::byte* slots_ = nullptr;  // at its start
  // By generation, then chunk: consecutive chunks lie side by side, which the CPU's prefetcher
  // follows (out of cache this doubles the rate of 1,424-byte chunks).
  std::byte* sums_ = nullptr;
  std::byte* room_ = nullptr;
  std::byte* state_ = nullptr;
};

// A failed copy leaves nothing behind that counts; the next chunk's accumulator, which is probably
// the next that is written, is fetched meanwhile (behind the last may be no memory: it is only
// fetched).
inline bool SlotMemory::copy(Slot& slot, std::byte* sum,
                             const Contribution& contribution) const noexcept {
  const std::span<const std::byte> wire = contribution.elements;
  const auto* const behind =
      reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(sum) + sum_stride_);
  if (wire::copy_crc32c_fetching(sum, wire.data(), wire.size(), behind) !=
      contribution.payload_crc) {
    return false;
  }
  ++slot.summed;
  return true;
}

// The first contribution with elements overwrites. A later one is checked before it is added: a sum
// cannot be taken back. The check brings it into the cache. (Inlined in each rule: it saves a
// contribution 20 instructions.)
[[gnu::always_inline]] inline bool SlotMemory::add(
    Slot& slot, std::byte* sum, const Contribution& contribution) const noexcept {
  const TypeKernels& of_type = kernel();
  if (slot.summed == 0 && of_type.widen == nullptr) return copy(slot, sum, contribution);
  const std::span<const std::byte> wire = contribution.elements;
  if (wire::crc32c(wire) != contribution.payload_crc) return false;
  (slot.summed == 0 ? of_type.widen : of_type.add)(sum, wire.data(), wire.size() / element_bytes_);
  ++slot.summed;
  return true;
}

}  // namespace mercury::aggregation
