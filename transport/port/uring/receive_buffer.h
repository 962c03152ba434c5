// The layout of a provided receive buffer: io_uring_recvmsg_out, sender's address, control
// messages, payload. Sized so that control messages are aligned and the payload begins a cache
// line.
#pragma once

#include <liburing.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <ctime>

namespace mercury::uring {

inline constexpr uint16_t kBufferGroup = 0;
inline constexpr uint32_t kMaxDatagram = 65'536;  // a GRO batch is at most one IP packet's bytes
inline constexpr uint32_t kNameBytes = 32;
inline constexpr uint32_t kControlBytes = 80;
inline constexpr uint32_t kRxBufferBytes =
    sizeof(io_uring_recvmsg_out) + kNameBytes + kControlBytes + kMaxDatagram;

static_assert(sizeof(sockaddr_in6) <= kNameBytes);
// UDP_GRO, IP_TOS or IPV6_TCLASS, SO_TIMESTAMPNS.
static_assert(CMSG_SPACE(sizeof(int)) * 2 + CMSG_SPACE(sizeof(timespec)) <= kControlBytes);
static_assert((sizeof(io_uring_recvmsg_out) + kNameBytes) % alignof(cmsghdr) == 0);
static_assert((kRxBufferBytes - kMaxDatagram) % 64 == 0 && kRxBufferBytes % 64 == 0);

}  // namespace mercury::uring
