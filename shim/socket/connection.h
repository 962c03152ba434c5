// What the two halves of the sockets' protocol share: between a program and its daemon
// (request.h), and between two daemons (preamble.h).
#pragma once

#include <cstdint>

namespace mercury::sockets {

// Of a connection, in all programs of a host and in all lives of its daemon.
using ConnectionId = uint64_t;

inline constexpr uint8_t kMostPriority = 7;  // the most urgent; 0 is what nobody asked for

// Of the session that a connection shares with others of the same two hosts.
struct Info {
  uint64_t rtt_ns = 0;
  uint64_t least_rtt_ns = 0;
  uint64_t window_bytes = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t lost_packets = 0;
  uint32_t segment_bytes = 0;
};

}  // namespace mercury::sockets
