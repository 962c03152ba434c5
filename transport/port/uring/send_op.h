// One SENDMSG under way: what the kernel may read until its completion, and the frames it carries.
//
// Owner/thread: the UringPort's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>

#include "transport/port/uring/uring_port.h"

namespace mercury::uring {

// The kernel cuts at most 64 segments (UDP_MAX_SEGMENTS) of at most one IP packet's bytes.
inline constexpr uint32_t kMaxSegments = 64;
inline constexpr uint32_t kMaxGsoBytes = 65'000;
// Queued frames among which a send finds those that go with it, so that what it costs is bounded.
inline constexpr uint32_t kMostLookedAt = 64;
// Less urgent bytes that go before a frame of other paths than theirs, those of all batches
// together. Two of the largest frames: so many the most urgent chunk may find ahead of it anyway,
// whatever the port holds. They take 14 us at 10 Gb/s; each send that they save takes 3 us of the
// thread. Without a bound they were 65,000 for each path; of none, sums that have a priority each
// leave one by one.
inline constexpr uint32_t kMostOvertakingBytes = 2 * 9'000;
// Sends per system call. The ring's memory counts as locked, and grows with this: a few ports must
// fit into 64 KiB, the least limit (ulimit -l) that is usual.
inline constexpr uint32_t kSendOps = 64;
// user_data of the receive; sends have the index of their SendOp.
inline constexpr uint64_t kReceiveTag = ~uint64_t{0};

struct UringPort::SendOp {
  msghdr message{};
  std::array<iovec, 2 * kMaxSegments> parts{};
  std::array<uint32_t, kMaxSegments> frames{};
  uint32_t frame_count = 0;
  // How to cut it, and its traffic class.
  alignas(
      cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))> control{};
};

}  // namespace mercury::uring
