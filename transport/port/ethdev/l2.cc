#include "transport/port/ethdev/l2.h"

#include <cstdio>

namespace mercury::ethdev {

MacAddress MacAddress::from_ip(const IpAddress& ip) {
  // Bit 1 of the first byte: locally administered. "ME" keeps it apart from what tools derive from
  // an address alone.
  return {{0x02, 0x4d, ip.bytes[12], ip.bytes[13], ip.bytes[14], ip.bytes[15]}};
}

MacAddress MacAddress::multicast_of(const IpAddress& v6_group) {
  return {
      {0x33, 0x33, v6_group.bytes[12], v6_group.bytes[13], v6_group.bytes[14], v6_group.bytes[15]}};
}

std::string MacAddress::to_string() const {
  char text[18];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", bytes[0], bytes[1], bytes[2],
                bytes[3], bytes[4], bytes[5]);
  return text;
}

uint64_t MacAddress::packed() const {
  uint64_t value = 0;
  for (const uint8_t byte : bytes) value = (value << 8) | byte;
  return value;
}

MacAddress MacAddress::unpack(uint64_t packed) {
  MacAddress mac;
  for (size_t i = 6; i-- > 0; packed >>= 8) mac.bytes[i] = static_cast<uint8_t>(packed);
  return mac;
}

uint8_t* write_ether(uint8_t* at, const MacAddress& to, const MacAddress& from, uint16_t type) {
  std::memcpy(at, to.bytes.data(), 6);
  std::memcpy(at + 6, from.bytes.data(), 6);
  store_be16(at + 12, type);
  return at + kEtherHeaderBytes;
}

}  // namespace mercury::ethdev
