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

struct Place {
  Endpoint endpoint;
  std::string host;  // empty: endpoint has the address, else only the port
};

Result<Place> parse_one(const std::string& text) {
  Place place;
  Result<Endpoint> endpoint = Endpoint::parse(text, kDefaultPort);
  if (!endpoint) {
    const size_t colon = text.find(':');
    place.host = text.substr(0, colon);
    // Let the parser judge the port, with an address it knows in the name's place.
    const std::string rest = colon == std::string::npos ? "" : text.substr(colon);
    endpoint = Endpoint::parse("0.0.0.0" + rest, kDefaultPort);
  }
  if (!endpoint || endpoint->port == 0 || (text.empty() || text.front() == ':')) {
    return Error(Errc::kInvalidArgument, "rendezvous: '" + text + "' is not ADDRESS:PORT");
  }
  place.endpoint = *endpoint;
  return place;
}

Result<std::vector<Place>> parse(const std::string& text) {
  std::vector<Place> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    Result<Place> one = parse_one(text.substr(at, comma - at));
    if (!one) return one.error();
    out.push_back(*one);
    at = comma + 1;
  }
  return out;
}

}  // namespace

Status check_rendezvous(const std::string& text) {
  const Result<std::vector<Place>> places = parse(text);
  return places ? Status() : Status(places.error());
}

Result<std::vector<Endpoint>> resolve_rendezvous(const std::string& text) {
  Result<std::vector<Place>> places = parse(text);
  if (!places) return places.error();
  std::vector<Endpoint> out;
  for (const Place& place : *places) {
    out.push_back(place.endpoint);
    if (place.host.empty()) continue;
    Result<IpAddress> ip = look_up(place.host);
    if (!ip) return ip.error();
    out.back().ip = *ip;
  }
  return out;
}

}  // namespace mercury::client
