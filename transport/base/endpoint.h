// An IP address (either family) and a UDP port, as values that cannot be mixed up.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/result.h"

namespace mercury {

// IPv4 is held in its IPv4-mapped IPv6 form (::ffff:a.b.c.d), network byte order.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};
  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;

  static IpAddress v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d);
  static Result<IpAddress> parse(std::string_view text);  // "10.0.0.1", "fd00::1"
  bool is_v4() const;
  bool is_unspecified() const;  // 0.0.0.0 or ::
  bool is_multicast() const;    // 224.0.0.0/4 or ff00::/8
  // The four bytes of an IPv4 address in network order; only for is_v4().
  std::array<uint8_t, 4> v4_bytes() const { return {bytes[12], bytes[13], bytes[14], bytes[15]}; }
  std::string to_string() const;
};

// Addresses that begin with the same bits; or one of them, with its network.
struct IpPrefix {
  IpAddress ip;
  uint8_t bits = 0;  // of the address as it was written: 8 for 10.0.0.0/8
  friend bool operator==(const IpPrefix&, const IpPrefix&) = default;
};
bool contains(const IpPrefix& network, const IpAddress& ip);
bool is_loopback(const IpAddress& ip);  // 127.0.0.0/8, ::1

struct Endpoint {
  IpAddress ip;
  uint16_t port = 0;  // host byte order; 0 = none or any
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;

  // "10.0.0.1:7470", "[fd00::1]:7470"; without a port, `default_port`.
  static Result<Endpoint> parse(std::string_view text, uint16_t default_port = 0);
  std::string to_string() const;
};

// Consecutive UDP ports; none where `count` is 0. `first` + `count` is at most 65,536.
struct PortRange {
  uint16_t first = 0;
  uint16_t count = 0;
  friend bool operator==(const PortRange&, const PortRange&) = default;

  bool contains(uint16_t port) const noexcept { return uint32_t{port} - first < count; }
};

}  // namespace mercury
