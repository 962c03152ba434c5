#include "transport/base/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace mercury {
namespace {
constexpr std::array<uint8_t, 12> kV4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr unsigned kMappedBits = 8 * kV4Prefix.size();  // before an address of IPv4
}  // namespace

IpAddress IpAddress::v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  IpAddress ip;
  std::copy(kV4Prefix.begin(), kV4Prefix.end(), ip.bytes.begin());
  ip.bytes[12] = a;
  ip.bytes[13] = b;
  ip.bytes[14] = c;
  ip.bytes[15] = d;
  return ip;
}

Result<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string copy(text);
  in_addr four{};
  if (inet_pton(AF_INET, copy.c_str(), &four) == 1) {
    std::array<uint8_t, 4> b{};
    std::memcpy(b.data(), &four, 4);
    return v4(b[0], b[1], b[2], b[3]);
  }
  IpAddress ip;
  if (inet_pton(AF_INET6, copy.c_str(), ip.bytes.data()) == 1) return ip;
  return Error(Errc::kInvalidArgument, "'" + copy + "' is not an IPv4 or IPv6 address");
}

bool IpAddress::is_v4() const {
  return std::equal(kV4Prefix.begin(), kV4Prefix.end(), bytes.begin());
}

bool IpAddress::is_unspecified() const {
  const auto begin = is_v4() ? bytes.begin() + 12 : bytes.begin();
  return std::all_of(begin, bytes.end(), [](uint8_t b) { return b == 0; });
}

bool IpAddress::is_multicast() const {
  return is_v4() ? (bytes[12] & 0xf0) == 0xe0 : bytes[0] == 0xff;
}

std::string IpAddress::to_string() const {
  char text[INET6_ADDRSTRLEN];
  if (is_v4()) {
    inet_ntop(AF_INET, bytes.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, bytes.data(), text, sizeof text);
  }
  return text;
}

bool contains(const IpPrefix& network, const IpAddress& ip) {
  if (network.ip.is_v4() != ip.is_v4()) return false;
  const unsigned bits = network.bits + (ip.is_v4() ? kMappedBits : 0);
  for (size_t i = 0; i < ip.bytes.size(); ++i) {
    const unsigned left = bits > 8 * i ? bits - static_cast<unsigned>(8 * i) : 0;
    const unsigned mask = left >= 8 ? 0xff : 0xffU << (8 - left);
    if (((network.ip.bytes[i] ^ ip.bytes[i]) & mask & 0xff) != 0) return false;
  }
  return true;
}

bool is_loopback(const IpAddress& ip) {
  if (ip.is_v4()) return ip.v4_bytes()[0] == 127;
  IpAddress loopback;
  loopback.bytes[15] = 1;
  return ip == loopback;
}

Result<Endpoint> Endpoint::parse(std::string_view text, uint16_t default_port) {
  const std::string whole(text);
  std::string_view host = text;
  std::string_view port_text;
  bool has_port = false;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) {
      return Error(Errc::kInvalidArgument, "'" + whole + "': missing ']'");
    }
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') {
      return Error(Errc::kInvalidArgument, "'" + whole + "': expected [ADDRESS]:PORT");
    }
    has_port = !rest.empty();
    if (has_port) port_text = rest.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const size_t colon = text.find(':');
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
    has_port = true;
  }
  Result<IpAddress> ip = IpAddress::parse(host);
  if (!ip) return ip.error();
  Endpoint endpoint{*ip, default_port};
  if (has_port) {
    const char* end = port_text.data() + port_text.size();
    const auto [stop, code] = std::from_chars(port_text.data(), end, endpoint.port);
    if (code != std::errc{} || stop != end) {
      return Error(Errc::kInvalidArgument, "'" + whole + "': port must be 0 to 65535");
    }
  }
  return endpoint;
}

std::string Endpoint::to_string() const {
  const std::string host = ip.to_string();
  return (ip.is_v4() ? host : "[" + host + "]") + ":" + std::to_string(port);
}

}  // namespace mercury
