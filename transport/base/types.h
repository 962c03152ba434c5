// The vocabulary that every folder shares: identities, element types, sizes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace mercury {

// A number that cannot be mistaken for another kind of number. Only what is written out in the code
// becomes one by itself.
template <class Tag, class Number>
struct Id {
  Number value = 0;
  constexpr Id() = default;
  constexpr explicit Id(Number v) : value(v) {}
  consteval Id(int literal) : value(static_cast<Number>(literal)) {}
  friend constexpr auto operator<=>(Id, Id) = default;
};

}  // namespace mercury

template <class Tag, class Number>
struct std::hash<mercury::Id<Tag, Number>> {
  size_t operator()(mercury::Id<Tag, Number> id) const noexcept {
    return std::hash<Number>()(id.value);
  }
};

namespace mercury {

using SessionSlot = Id<struct SessionTag, uint32_t>;  // index in one engine's session table
// What the control plane calls a session, on both sides of an engine's rings: chosen before the
// engine has a slot for it, and never used twice on a host. 0: none.
using Token = Id<struct TokenTag, uint64_t>;
using JobSlot =
    Id<struct JobTag, uint16_t>;  // index in one host's job table, same in all its engines
// Of a session that belongs to no job (a job's control sessions, a service's of streams): no job's
// removal closes it.
inline constexpr JobSlot kNoJob{0xffff};
using LaneId = Id<struct LaneTag, uint16_t>;  // engine index within a host

// Times are nanoseconds of the clock that drives the engine (CLOCK_MONOTONIC, or the simulator's
// virtual time): a plain uint64_t named *_ns. 0 is before everything.
inline constexpr uint64_t kNever = ~uint64_t{0};

inline constexpr size_t kCacheLine = 64;

// Element types. The numbers travel on the wire and through the C ABI.
enum class Dtype : uint8_t { kF32 = 0, kF64 = 1, kF16 = 2, kBf16 = 3, kI32 = 4, kI64 = 5 };
inline constexpr int kDtypeCount = 6;

constexpr size_t size_of(Dtype type) {
  switch (type) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBf16:
      return 2;
  }
  return 0;
}
const char* name_of(Dtype type);

// What a tensor's contributions are made into. The numbers travel like those of element types.
enum class ReduceOp : uint8_t { kSum = 0, kAverage = 1 };
inline constexpr int kReduceOpCount = 2;
constexpr bool is_reduce_op(ReduceOp op) { return static_cast<int>(op) < kReduceOpCount; }
// Integers have sums, no averages.
constexpr bool applies(ReduceOp op, Dtype type) {
  return op != ReduceOp::kAverage || (type != Dtype::kI32 && type != Dtype::kI64);
}
const char* name_of(ReduceOp op);

enum class Role : uint8_t { kWorker = 0, kServer = 1 };
const char* name_of(Role role);

inline constexpr uint32_t kMaxWorkers = 256;  // width of a WorkerSet (worker_set.h)
inline constexpr uint32_t kMaxServers = 256;
inline constexpr uint32_t kPriorities = 65536;  // 0 is the most urgent

}  // namespace mercury
