// Body of an ACK frame: which packet numbers have arrived, in ranges, newest first (RFC 9000,
// section 19.3, with fixed widths), and of which of them the datagrams were refused for now.
//
// +---------------------------------------------------------------+ 0
// |                   largest packet number (64)                  |
// +---------------------------------------------------------------+ 8
// |        microseconds since the largest one arrived (32)        |
// +-------------------------------+-------------------------------+ 12
// |  refused (8)  |   ranges (8)  |    frames marked so far (16)  |
// +-------------------------------+-------------------------------+ 16
// |  packets in the range - 1 (32)  |  missing below it - 1 (32)  |  once per range; the last
// +---------------------------------------------------------------+  "missing" is zero
// |   taken above it (32)   |   packets in the refused range - 1  |  once per refused range
// +---------------------------------------------------------------+
//
// A refused range ends below so many numbers that are not refused, counted from the refused range
// before it, of the first from the largest number on. Only peers that share kFeatureRefusals
// (hello.h) name any.
//
// The microseconds are exact, or with kFlagAtMost in the header at most so many: a port may not
// know when a packet came.
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
inline constexpr size_t kMaxRefusedRanges = 64;

struct AckRange {
  uint64_t first;  // inclusive, first <= last
  uint64_t last;
};

struct Ack {
  uint32_t delay_us = 0;
  uint16_t count = 0;    // 1 to kMaxAckRanges
  uint16_t refused = 0;  // of refused_ranges, to kMaxRefusedRanges
  uint16_t marked = 0;   // frames with the congestion mark so far, modulo 2^16
  // `count` of them, the others are anything. Newest first, at least one missing number between
  // two.
  AckRange ranges[kMaxAckRanges];
  // These arrived, too, in `ranges` or not, and are to be sent again. Newest first, disjoint.
  AckRange refused_ranges[kMaxRefusedRanges];
};

constexpr size_t ack_bytes(size_t ranges, size_t refused = 0) {
  return 16 + 8 * (ranges + refused);
}

// Returns the bytes written; 0 if `out` is too small for one range and all refused ones, or these
// cannot be said (out of order, or 2^32 apart): left out, they would pass for taken. Ranges that do
// not fit, those beyond a gap of 2^32 and what is further back in a range than 2^32 are left out
// (the oldest).
size_t encode(const Ack& ack, std::span<std::byte> out) noexcept;
// False: malformed (count, length, or numbers below zero).
bool decode(std::span<const std::byte> body, Ack& ack) noexcept;

}  // namespace mercury::wire
