// ARP (RFC 826), IPv6 neighbour discovery (RFC 4861) and ping (RFC 792, RFC 4443) for interfaces
// that the kernel does not see. Pure functions over bytes: a whole frame in, a whole frame out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "transport/base/endpoint.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {

// Longest frame that build_solicitation writes.
inline constexpr uint32_t kSolicitationBytes = 86;

// Where an address lives, learned from a frame.
struct Sighting {
  IpAddress ip;
  MacAddress mac;
};

struct ControlAnswer {
  uint32_t reply_bytes = 0;         // 0: nothing to send
  std::optional<Sighting> learned;  // for the neighbour table, which keeps it if it asked for it
};

// Handles a frame that parse_frame called kArp, kIcmp4 or kIcmp6: answers requests for our
// addresses and echo requests, learns from replies. The reply is written over `reply`, which may be
// the frame itself; it is never longer than the frame, save for a neighbour solicitation without
// its link-layer option, which is answered with 86 bytes (`reply` must have room for them, or none
// is sent).
ControlAnswer answer_control(FrameClass kind, std::span<const std::byte> frame,
                             const LocalIdentity& local, std::span<std::byte> reply) noexcept;

// Asks who has `target`: an ARP request or a neighbour solicitation. Returns the frame's bytes, or
// 0 if we have no address of that family. `out` has room for kSolicitationBytes. A known `mac`
// makes it a probe to that neighbour alone.
uint32_t build_solicitation(const IpAddress& target, const LocalIdentity& local,
                            std::optional<MacAddress> mac, std::span<std::byte> out) noexcept;

// True if `ip` lies in the network of `prefix_bits` around `network`; both of one family.
bool in_prefix(const IpAddress& ip, const IpAddress& network, uint8_t prefix_bits) noexcept;

}  // namespace mercury::ethdev
