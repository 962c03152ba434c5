#include "apps/stackd/local_addresses.h"

#include <ifaddrs.h>

#include "apps/stackd/socket_addresses.h"
#include "transport/base/endpoint.h"

namespace mercury {
namespace {

// Interfaces change seldom, programs connect often.
constexpr uint64_t kStaleNs = 1'000'000'000;

}  // namespace

bool LocalAddresses::has(const IpAddress& ip, uint64_t now_ns) {
  if (is_loopback(ip)) return true;
  if (looked_ns_ == 0 || now_ns - looked_ns_ > kStaleNs) look(now_ns);
  return known_.count(ip) > 0;
}

void LocalAddresses::look(uint64_t now_ns) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return;  // what was known still holds
  looked_ns_ = now_ns;
  known_.clear();
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr) known_.insert(from_kernel(one->ifa_addr).ip);
  }
  freeifaddrs(first);
  known_.erase(IpAddress());  // of addresses that are not IP's
}

}  // namespace mercury
