// The UDP socket behind a uring port. Cold, except read_source, read_control and wall_ahead_ns.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::uring {

struct UdpSocket {
  int fd = -1;          // the caller's
  Endpoint local;       // with the port that the kernel chose
  uint32_t mtu = 1500;  // of the interface that has the address
};

// Bound to `local`, non-fragmenting, with GRO and large buffers. An address in use is waited for,
// up to a second: a process that was just killed may still hold it. Errors name the address.
Result<UdpSocket> open_udp(const Endpoint& local);

// One that sends from `local`, by which nothing is heard: what comes there is dropped by a filter.
// The caller's. Errors as open_udp's.
Result<int> open_source(const Endpoint& local);

socklen_t write_address(const Endpoint& endpoint, sockaddr_storage& out);
// False: not an address of a known family.
bool read_source(const void* name, uint32_t bytes, Endpoint& out) noexcept;
// Datagrams that found no room in the socket's buffer, since it was opened; wraps around.
uint32_t missed_datagrams(int fd) noexcept;
// What the kernel says beside a packet that came.
struct ReceivedFacts {
  uint32_t segment_bytes = 0;  // of GRO's segments
  bool ecn_ce = false;
  // Wall clock; of what GRO has made of several, when the last had come; 0: not said.
  uint64_t arrived_ns = 0;
};
// One of its control messages.
void read_control(const cmsghdr& control, ReceivedFacts& facts) noexcept;
// How far the clock of `arrived_ns` is ahead of CLOCK_MONOTONIC, or a little less: they are read
// one after the other.
int64_t wall_ahead_ns() noexcept;

}  // namespace mercury::uring
