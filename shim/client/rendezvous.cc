#include "shim/client/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace mercury::client {
namespace {

IpAddress ip_of(const addrinfo& info) {
  IpAddress ip;
  if (info.ai_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, info.ai_addr, sizeof address);
    uint8_t b[4];
    std::memcpy(b, &address.sin_addr, sizeof b);
    return IpAddress::v4(b[0], b[1], b[2], b[3]);
  }
  sockaddr_in6 address;
  std::memcpy(&address, info.ai_addr, sizeof address);
  std::memcpy(ip.bytes.data(), &address.sin6_addr, ip.bytes.size());
  return ip;
}

Result<IpAddress> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  for (const int family : {AF_INET, AF_INET6}) {
    hints.ai_family = family;
    addrinfo* list = nullptr;
    if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) continue;
    const IpAddress ip = ip_of(*list);
    ::freeaddrinfo(list);
    return ip;
  }
  return Error(Errc::kInvalidArgument, "rendezvous: no address is known for '" + host + "'");
}

Result<Endpoint> resolve_one(const std::string& text) {
  if (auto endpoint = Endpoint::parse(text, kDefaultPort)) return endpoint;
  const size_t colon = text.find(':');
  const std::string host = text.substr(0, colon);
  // Let the parser judge the port, with an address it knows in the name's place.
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon);
  Result<Endpoint> endpoint = Endpoint::parse("0.0.0.0" + rest, kDefaultPort);
  if (host.empty() || !endpoint) {
    return Error(Errc::kInvalidArgument, "rendezvous: '" + text + "' is not ADDRESS:PORT");
  }
  Result<IpAddress> ip = look_up(host);
  if (!ip) return ip.error();
  endpoint->ip = *ip;
  return endpoint;
}

}  // namespace

Result<std::vector<Endpoint>> resolve_rendezvous(const std::string& text) {
  std::vector<Endpoint> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    Result<Endpoint> one = resolve_one(text.substr(at, comma - at));
    if (!one) return one.error();
    out.push_back(*one);
    at = comma + 1;
  }
  return out;
}

}  // namespace mercury::client
