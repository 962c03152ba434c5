// Ethernet addresses and bytes on the wire, as plain values.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "transport/base/endpoint.h"

namespace mercury::ethdev {

inline constexpr uint32_t kEtherHeaderBytes = 14;
inline constexpr uint32_t kVlanTagBytes = 4;
inline constexpr uint32_t kIpv4HeaderBytes = 20;
inline constexpr uint32_t kIpv6HeaderBytes = 40;
inline constexpr uint32_t kUdpHeaderBytes = 8;
// What stands before a UDP payload at most.
inline constexpr uint32_t kMaxHeaderBytes = kEtherHeaderBytes + kIpv6HeaderBytes + kUdpHeaderBytes;

inline constexpr uint16_t kEtherIpv4 = 0x0800;
inline constexpr uint16_t kEtherArp = 0x0806;
inline constexpr uint16_t kEtherVlan = 0x8100;  // a tag (IEEE 802.1Q), and the type behind it
inline constexpr uint16_t kEtherIpv6 = 0x86dd;

struct MacAddress {
  std::array<uint8_t, 6> bytes{};
  friend auto operator<=>(const MacAddress&, const MacAddress&) = default;

  bool is_zero() const { return *this == MacAddress{}; }
  bool is_group() const { return (bytes[0] & 1) != 0; }  // multicast or broadcast
  static constexpr MacAddress broadcast() { return {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}; }
  // Locally administered, from the last bytes of an address: the same in every run, so that peers'
  // neighbour tables survive a restart.
  static MacAddress from_ip(const IpAddress& ip);
  // 33:33 and the last four bytes (RFC 2464 section 7).
  static MacAddress multicast_of(const IpAddress& v6_group);
  std::string to_string() const;

  // In the low 48 bits, first byte most significant; 0 is no address.
  uint64_t packed() const;
  static MacAddress unpack(uint64_t packed);
};

inline uint16_t load_be16(const uint8_t* at) {
  return static_cast<uint16_t>((uint32_t{at[0]} << 8) | at[1]);
}
inline void store_be16(uint8_t* at, uint32_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

inline const uint8_t* bytes_of(const std::byte* at) { return reinterpret_cast<const uint8_t*>(at); }
inline uint8_t* bytes_of(std::byte* at) { return reinterpret_cast<uint8_t*>(at); }

// Writes an Ethernet header and returns what follows it.
uint8_t* write_ether(uint8_t* at, const MacAddress& to, const MacAddress& from, uint16_t type);

}  // namespace mercury::ethdev
