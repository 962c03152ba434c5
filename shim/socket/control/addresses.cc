#include "shim/socket/control/addresses.h"

#include <algorithm>
#include <cstddef>

namespace mercury::sockets {
namespace {

constexpr unsigned kMappedBits = 96;  // before the address of IPv4 in its mapped form

IpAddress loopback6() {
  IpAddress ip;
  ip.bytes[15] = 1;
  return ip;
}

}  // namespace

bool is_loopback(const IpAddress& ip) {
  return ip.is_v4() ? ip.v4_bytes()[0] == 127 : ip == loopback6();
}

IpAddress loopback_of(const IpAddress& ip) {
  return ip.is_v4() ? IpAddress::v4(127, 0, 0, 1) : loopback6();
}

bool contains(const IpNetwork& network, const IpAddress& ip) {
  if (network.ip.is_v4() != ip.is_v4()) return false;
  const unsigned bits = network.bits + (ip.is_v4() ? kMappedBits : 0);
  for (size_t i = 0; i < ip.bytes.size(); ++i) {
    const unsigned left = bits > 8 * i ? bits - static_cast<unsigned>(8 * i) : 0;
    const unsigned mask = left >= 8 ? 0xff : 0xffU << (8 - left);
    if (((network.ip.bytes[i] ^ ip.bytes[i]) & mask & 0xff) != 0) return false;
  }
  return true;
}

bool may_speak(const SocketPolicy& policy, const IpAddress& ip) {
  return !is_loopback(ip) &&
         std::any_of(policy.networks.begin(), policy.networks.end(),
                     [&ip](const IpNetwork& network) { return contains(network, ip); });
}

}  // namespace mercury::sockets
