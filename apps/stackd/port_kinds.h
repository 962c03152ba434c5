// The kinds of ports that a configuration may name (port.kind). What the daemon does with each is
// in ports.h.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace mercury {

struct PortKind {
  const char* name;
  const char* help;
  bool one_address;  // it listens at port.address, which must name one
};

inline constexpr PortKind kEthdevPort{"ethdev", "DPDK", false};
inline constexpr PortKind kUringPort{"uring", "UDP sockets through io_uring (no root, no DPDK)",
                                     true};
inline constexpr std::array kPortKinds{kEthdevPort, kUringPort};

// The configuration has been checked: its kind is one of them.
constexpr const PortKind& port_kind(std::string_view name) {
  return *std::find_if(kPortKinds.begin(), kPortKinds.end() - 1,
                       [name](const PortKind& kind) { return name == kind.name; });
}

}  // namespace mercury
