// The vocabulary that every folder shares: identities and sizes.
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

inline constexpr uint32_t kPriorities = 65536;  // 0 is the most urgent

}  // namespace mercury
