#include "shim/socket/api/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t length) {
  if (!address || length < sizeof address->sa_family) return std::nullopt;
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    std::array<uint8_t, 4> ip;
    std::memcpy(ip.data(), &in.sin_addr, sizeof ip);
    return Endpoint{IpAddress::v4(ip[0], ip[1], ip[2], ip[3]), ntohs(in.sin_port)};
  }
  // Without sin6_scope_id, as RFC 2133 had it, it is as good.
  if (address->sa_family == AF_INET6 && length >= offsetof(sockaddr_in6, sin6_scope_id)) {
    sockaddr_in6 in{};
    std::memcpy(&in, address, std::min<size_t>(length, sizeof in));
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) return std::nullopt;
    Endpoint endpoint;
    std::memcpy(endpoint.ip.bytes.data(), &in.sin6_addr, sizeof in.sin6_addr);
    endpoint.port = ntohs(in.sin6_port);
    return endpoint;
  }
  return std::nullopt;
}

void give_address(int family, const Endpoint& endpoint, sockaddr* address, socklen_t* length) {
  if (!address || !length) return;
  if (family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(endpoint.port);
    const auto ip = endpoint.ip.v4_bytes();
    std::memcpy(&in.sin_addr, ip.data(), ip.size());
    std::memcpy(address, &in, std::min<size_t>(*length, sizeof in));
    *length = sizeof in;
    return;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(endpoint.port);
  std::memcpy(&in.sin6_addr, endpoint.ip.bytes.data(), sizeof in.sin6_addr);
  std::memcpy(address, &in, std::min<size_t>(*length, sizeof in));
  *length = sizeof in;
}

std::optional<Endpoint> kernel_name(int fd) {
  sockaddr_storage storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  if (libc().getsockname(fd, address, &length) != 0) return std::nullopt;
  return endpoint_of(address, length);
}

}  // namespace mercury::sockets
