#include "shim/socket/control/addresses.h"

#include <algorithm>

namespace mercury::sockets {
namespace {

IpAddress loopback6() {
  IpAddress ip;
  ip.bytes[15] = 1;
  return ip;
}

}  // namespace

IpAddress loopback_of(const IpAddress& ip) {
  return ip.is_v4() ? IpAddress::v4(127, 0, 0, 1) : loopback6();
}

bool may_speak(const SocketPolicy& policy, const IpAddress& ip) {
  return policy.others && !is_loopback(ip) &&
         std::any_of(policy.networks.begin(), policy.networks.end(),
                     [&ip](const IpPrefix& network) { return contains(network, ip); });
}

}  // namespace mercury::sockets
