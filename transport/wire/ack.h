// Body of an ACK frame: which packet numbers have arrived, in ranges, newest first (RFC 9000,
// section 19.3, with fixed widths).
//
// +---------------------------------------------------------------+ 0
// |                   largest packet number (64)                  |
// +---------------------------------------------------------------+ 8
// |        microseconds since the largest one arrived (32)        |
// +-------------------------------+-------------------------------+ 12
// |           ranges (16)         |    frames marked so far (16)  |
// +-------------------------------+-------------------------------+ 16
// |  packets in the range - 1 (32)  |  missing below it - 1 (32)  |  once per range; the last
// +---------------------------------------------------------------+  "missing" is zero
//
// "Marked so far" counts, modulo 2^16, the peer's frames that ask for an acknowledgement and came
// with the network's congestion mark (RFC 3168). As it goes on counting, nothing of it is lost with
// an ACK that is lost; a peer that does not count writes zero.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace mercury::wire {

inline constexpr size_t kMaxAckRanges = 64;

struct AckRange {
  uint64_t first;  // inclusive, first <= last
  uint64_t last;
};

struct Ack {
  uint32_t delay_us = 0;
  uint16_t count = 0;   // 1 to kMaxAckRanges
  uint16_t marked = 0;  // frames with the congestion mark so far, modulo 2^16
  // `count` of them, the others are anything. Newest first, at least one missing number between
  // two.
  AckRange ranges[kMaxAckRanges];
};

constexpr size_t ack_bytes(size_t ranges) { return 16 + 8 * ranges; }

// Returns the bytes written; 0 if `out` is too small for one range. Ranges that do not fit, those
// beyond a gap of 2^32 and what is further back in a range than 2^32 are left out (the oldest).
size_t encode(const Ack& ack, std::span<std::byte> out) noexcept;
// False: malformed (count, length, or numbers below zero).
bool decode(std::span<const std::byte> body, Ack& ack) noexcept;

}  // namespace mercury::wire
