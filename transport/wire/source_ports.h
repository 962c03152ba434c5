// Payload of SOURCE_PORTS: from which UDP ports, beside the one at which it hears, its sender's
// datagrams come. Routers that choose among paths of equal cost by a frame's ports so spread them.
//
//  0                   1                   2                   3
//  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
// +-------------------------------+-------------------------------+  0
// |           first port          |        how many, 1 to 15      |
// +-------------------------------+-------------------------------+  4
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "transport/base/endpoint.h"
#include "transport/wire/be.h"

namespace mercury::wire {

// With the one at which it hears a sender has 16: of four paths the fullest then has more than
// half of the datagrams in 3 of 100 sessions. A peer that may name more names ports of others.
inline constexpr uint16_t kMostFurtherPorts = 15;
inline constexpr size_t kSourcePortsBytes = 4;

inline void encode_source_ports(const PortRange& ports, std::byte* out) noexcept {
  const Be16 wire[2]{Be16(ports.first), Be16(ports.count)};
  static_assert(sizeof wire == kSourcePortsBytes);
  std::memcpy(out, wire, sizeof wire);
}

// Nothing: of another length, none or too many ports, or some that no UDP packet has.
inline std::optional<PortRange> decode_source_ports(std::span<const std::byte> payload) noexcept {
  Be16 wire[2];
  if (payload.size() != sizeof wire) return std::nullopt;
  std::memcpy(wire, payload.data(), sizeof wire);
  const PortRange ports{wire[0].value(), wire[1].value()};
  const bool good = ports.first > 0 && ports.count > 0 && ports.count <= kMostFurtherPorts &&
                    uint32_t{ports.first} + ports.count <= 65'536;
  return good ? std::optional(ports) : std::nullopt;
}

}  // namespace mercury::wire
