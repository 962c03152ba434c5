#include "apps/stackd/socket_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

namespace mercury {

SocketAddress to_kernel(const Endpoint& endpoint) {
  SocketAddress out;
  if (endpoint.ip.is_v4()) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port);
    const auto bytes = endpoint.ip.v4_bytes();
    std::memcpy(&four.sin_addr, bytes.data(), bytes.size());
    std::memcpy(&out.storage, &four, sizeof four);
    out.bytes = sizeof four;
    return out;
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(endpoint.port);
  std::memcpy(&six.sin6_addr, endpoint.ip.bytes.data(), endpoint.ip.bytes.size());
  std::memcpy(&out.storage, &six, sizeof six);
  out.bytes = sizeof six;
  return out;
}

Endpoint from_kernel(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in four;
    std::memcpy(&four, address, sizeof four);
    std::array<uint8_t, 4> ip{};
    std::memcpy(ip.data(), &four.sin_addr, ip.size());
    return {IpAddress::v4(ip[0], ip[1], ip[2], ip[3]), ntohs(four.sin_port)};
  }
  if (address->sa_family != AF_INET6) return {};
  sockaddr_in6 six;
  std::memcpy(&six, address, sizeof six);
  Endpoint endpoint{{}, ntohs(six.sin6_port)};
  std::memcpy(endpoint.ip.bytes.data(), &six.sin6_addr, endpoint.ip.bytes.size());
  return endpoint;
}

}  // namespace mercury
