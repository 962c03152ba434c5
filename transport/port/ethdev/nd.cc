#include "transport/port/ethdev/nd.h"

#include <algorithm>
#include <cstring>

namespace mercury::ethdev {
namespace {

constexpr uint32_t kArpBytes = 28;
constexpr uint16_t kArpRequest = 1;
constexpr uint16_t kArpReply = 2;
constexpr uint8_t kEchoRequest4 = 8;
constexpr uint8_t kEchoReply4 = 0;
constexpr uint8_t kEchoRequest6 = 128;
constexpr uint8_t kEchoReply6 = 129;
constexpr uint8_t kSolicit = 135;
constexpr uint8_t kAdvertise = 136;
constexpr uint8_t kSourceLinkOption = 1;
constexpr uint8_t kTargetLinkOption = 2;
constexpr uint8_t kNdHopLimit = 255;  // proves that no router forwarded it (RFC 4861 section 7.1)
constexpr uint32_t kNdBytes = 24;     // type, code, checksum, flags, target
constexpr uint32_t kIcmp6At = kEtherHeaderBytes + kIpv6HeaderBytes;

IpAddress v4_at(const uint8_t* at) { return IpAddress::v4(at[0], at[1], at[2], at[3]); }
IpAddress v6_at(const uint8_t* at) {
  IpAddress ip;
  std::memcpy(ip.bytes.data(), at, 16);
  return ip;
}
MacAddress mac_at(const uint8_t* at) {
  MacAddress mac;
  std::memcpy(mac.bytes.data(), at, 6);
  return mac;
}
std::span<const std::byte> as_span(const uint8_t* at, size_t bytes) {
  return std::as_bytes(std::span(at, bytes));
}

uint32_t write_arp(uint8_t* at, uint16_t operation, const MacAddress& to,
                   const LocalIdentity& local, const MacAddress& target_mac,
                   const IpAddress& target) {
  uint8_t* arp = write_ether(at, to, local.mac, kEtherArp);
  const uint8_t fixed[6] = {0, 1, 8, 0, 6, 4};  // Ethernet, IPv4, address lengths
  std::memcpy(arp, fixed, 6);
  store_be16(arp + 6, operation);
  std::memcpy(arp + 8, local.mac.bytes.data(), 6);
  std::memcpy(arp + 14, &local.v4.bytes[12], 4);
  std::memcpy(arp + 18, target_mac.bytes.data(), 6);
  std::memcpy(arp + 24, &target.bytes[12], 4);
  return kEtherHeaderBytes + kArpBytes;
}

ControlAnswer answer_arp(std::span<const std::byte> frame, const LocalIdentity& local,
                         std::span<std::byte> reply) {
  ControlAnswer answer;
  if (!local.has_v4 || frame.size() < kEtherHeaderBytes + kArpBytes) return answer;
  const uint8_t* arp = bytes_of(frame.data()) + kEtherHeaderBytes;
  const uint8_t fixed[6] = {0, 1, 8, 0, 6, 4};
  if (std::memcmp(arp, fixed, 6) != 0) return answer;
  const uint16_t operation = load_be16(arp + 6);
  const MacAddress sender_mac = mac_at(arp + 8);
  const IpAddress sender = v4_at(arp + 14);
  if (sender_mac.is_group() || sender_mac.is_zero() || sender == local.v4) return answer;
  // A probe (sender 0.0.0.0) is answered and teaches nothing.
  if (arp[14] != 0) answer.learned = Sighting{sender, sender_mac};
  if (operation == kArpRequest && v4_at(arp + 24) == local.v4 &&
      reply.size() >= kEtherHeaderBytes + kArpBytes) {
    answer.reply_bytes =
        write_arp(bytes_of(reply.data()), kArpReply, sender_mac, local, sender_mac, sender);
  }
  return answer;
}

// Turns an echo request around in `reply`; addresses swap, so IPv4's header checksum stays right.
ControlAnswer answer_ping4(std::span<const std::byte> frame, std::span<std::byte> reply) {
  const uint8_t* ip = bytes_of(frame.data()) + kEtherHeaderBytes;
  const uint32_t total = load_be16(ip + 2);
  const uint32_t icmp_bytes = total - kIpv4HeaderBytes;  // parse_frame checked `total`
  const uint32_t bytes = kEtherHeaderBytes + total;
  if (icmp_bytes < 8 || reply.size() < bytes) return {};
  InternetSum sum;
  sum.add(as_span(ip + kIpv4HeaderBytes, icmp_bytes));
  if (sum.finish() != 0 || ip[kIpv4HeaderBytes] != kEchoRequest4) return {};
  const MacAddress peer = mac_at(bytes_of(frame.data()) + 6);
  const MacAddress self = mac_at(bytes_of(frame.data()));
  std::memmove(reply.data(), frame.data(), bytes);
  uint8_t* out = bytes_of(reply.data());
  write_ether(out, peer, self, kEtherIpv4);
  uint8_t* out_ip = out + kEtherHeaderBytes;
  std::swap_ranges(out_ip + 12, out_ip + 16, out_ip + 16);
  uint8_t* icmp = out_ip + kIpv4HeaderBytes;
  icmp[0] = kEchoReply4;
  std::memset(icmp + 2, 0, 2);
  InternetSum fresh;
  fresh.add(as_span(icmp, icmp_bytes));
  const uint16_t checksum = fresh.finish();
  std::memcpy(icmp + 2, &checksum, 2);
  return {bytes, {}};
}

uint16_t icmp6_sum(const uint8_t* ip, const uint8_t* icmp, uint32_t icmp_bytes) {
  InternetSum sum;
  sum.add(as_span(ip + 8, 32));
  sum.add_word(58);
  sum.add_word(icmp_bytes);
  sum.add(as_span(icmp, icmp_bytes));
  return sum.finish();
}

// Writes Ethernet and IPv6 in front of an ICMPv6 message that is already at its place.
uint32_t finish_icmp6(uint8_t* out, const MacAddress& to_mac, const LocalIdentity& local,
                      const IpAddress& to, uint8_t hop_limit, uint32_t icmp_bytes) {
  uint8_t* ip = write_ether(out, to_mac, local.mac, kEtherIpv6);
  std::memset(ip, 0, 8);
  ip[0] = 0x60;
  store_be16(ip + 4, icmp_bytes);
  ip[6] = 58;
  ip[7] = hop_limit;
  std::memcpy(ip + 8, local.v6.bytes.data(), 16);
  std::memcpy(ip + 24, to.bytes.data(), 16);
  uint8_t* icmp = ip + kIpv6HeaderBytes;
  std::memset(icmp + 2, 0, 2);
  const uint16_t checksum = icmp6_sum(ip, icmp, icmp_bytes);
  std::memcpy(icmp + 2, &checksum, 2);
  return kIcmp6At + icmp_bytes;
}

uint32_t write_nd(uint8_t* out, uint8_t type, uint8_t flags, const IpAddress& target,
                  uint8_t option, const MacAddress& to_mac, const LocalIdentity& local,
                  const IpAddress& to) {
  uint8_t* icmp = out + kIcmp6At;
  std::memset(icmp, 0, kNdBytes);
  icmp[0] = type;
  icmp[4] = flags;
  std::memcpy(icmp + 8, target.bytes.data(), 16);
  icmp[kNdBytes] = option;
  icmp[kNdBytes + 1] = 1;  // in units of eight bytes
  std::memcpy(icmp + kNdBytes + 2, local.mac.bytes.data(), 6);
  return finish_icmp6(out, to_mac, local, to, kNdHopLimit, kNdBytes + 8);
}

// The link-layer address in the options of a neighbour message. Nothing if there is none or if the
// options are malformed.
std::optional<MacAddress> link_option(const uint8_t* options, uint32_t bytes, uint8_t wanted) {
  while (bytes >= 8) {
    const uint32_t length = uint32_t{options[1]} * 8;
    if (length == 0 || length > bytes) return {};
    if (options[0] == wanted) {
      const MacAddress mac = mac_at(options + 2);
      if (mac.is_group() || mac.is_zero()) return {};
      return mac;
    }
    options += length;
    bytes -= length;
  }
  return {};
}

ControlAnswer answer_nd(std::span<const std::byte> frame, const LocalIdentity& local,
                        std::span<std::byte> reply, uint32_t icmp_bytes) {
  const uint8_t* ip = bytes_of(frame.data()) + kEtherHeaderBytes;
  const uint8_t* icmp = ip + kIpv6HeaderBytes;
  if (icmp_bytes < kNdBytes || ip[7] != kNdHopLimit || icmp[1] != 0) return {};
  const IpAddress source = v6_at(ip + 8);
  const IpAddress target = v6_at(icmp + 8);
  const MacAddress sender = mac_at(bytes_of(frame.data()) + 6);
  ControlAnswer answer;
  const uint8_t wanted = icmp[0] == kSolicit ? kSourceLinkOption : kTargetLinkOption;
  const auto mac = link_option(icmp + kNdBytes, icmp_bytes - kNdBytes, wanted);
  if (icmp[0] == kAdvertise) {
    if (target == local.v6) return {};
    if (mac) answer.learned = Sighting{target, *mac};
    return answer;
  }
  if (source == local.v6) return {};
  const bool detects_duplicates = source.is_unspecified();
  if (!detects_duplicates && mac) answer.learned = Sighting{source, *mac};
  if (target != local.v6 || reply.size() < kSolicitationBytes || sender.is_group()) return answer;
  // Duplicate address detection is answered to all nodes, without the solicited flag.
  IpAddress all_nodes;
  all_nodes.bytes = {0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const IpAddress to = detects_duplicates ? all_nodes : source;
  const MacAddress to_mac =
      detects_duplicates ? MacAddress::multicast_of(all_nodes) : mac.value_or(sender);
  constexpr uint8_t kOverride = 0x20;
  constexpr uint8_t kSolicited = 0x40;
  const uint8_t flags = detects_duplicates ? kOverride : (kOverride | kSolicited);
  answer.reply_bytes = write_nd(bytes_of(reply.data()), kAdvertise, flags, local.v6,
                                kTargetLinkOption, to_mac, local, to);
  return answer;
}

ControlAnswer answer_icmp6(std::span<const std::byte> frame, const LocalIdentity& local,
                           std::span<std::byte> reply) {
  const uint8_t* ip = bytes_of(frame.data()) + kEtherHeaderBytes;
  const uint8_t* icmp = ip + kIpv6HeaderBytes;
  const uint32_t icmp_bytes = load_be16(ip + 4);  // parse_frame checked it
  if (icmp_bytes < 8 || icmp6_sum(ip, icmp, icmp_bytes) != 0) return {};
  if (icmp[0] == kSolicit || icmp[0] == kAdvertise) {
    return answer_nd(frame, local, reply, icmp_bytes);
  }
  const IpAddress source = v6_at(ip + 8);
  if (icmp[0] != kEchoRequest6 || v6_at(ip + 24) != local.v6 || source.is_unspecified() ||
      source.bytes[0] == 0xff || reply.size() < kIcmp6At + icmp_bytes) {
    return {};
  }
  const MacAddress sender = mac_at(bytes_of(frame.data()) + 6);
  std::memmove(reply.data(), frame.data(), kIcmp6At + icmp_bytes);
  uint8_t* out = bytes_of(reply.data());
  out[kIcmp6At] = kEchoReply6;
  return {finish_icmp6(out, sender, local, source, 64, icmp_bytes), {}};
}

}  // namespace

ControlAnswer answer_control(FrameClass kind, std::span<const std::byte> frame,
                             const LocalIdentity& local, std::span<std::byte> reply) noexcept {
  switch (kind) {
    case FrameClass::kArp:
      return answer_arp(frame, local, reply);
    case FrameClass::kIcmp4:
      return answer_ping4(frame, reply);
    case FrameClass::kIcmp6:
      return answer_icmp6(frame, local, reply);
    case FrameClass::kUdp:
    case FrameClass::kDropped:
      break;
  }
  return {};
}

uint32_t build_solicitation(const IpAddress& target, const LocalIdentity& local,
                            std::optional<MacAddress> mac, std::span<std::byte> out) noexcept {
  if (out.size() < kSolicitationBytes) return 0;
  uint8_t* at = bytes_of(out.data());
  if (target.is_v4()) {
    if (!local.has_v4) return 0;
    return write_arp(at, kArpRequest, mac.value_or(MacAddress::broadcast()), local, MacAddress{},
                     target);
  }
  if (!local.has_v6) return 0;
  if (mac) return write_nd(at, kSolicit, 0, target, kSourceLinkOption, *mac, local, target);
  IpAddress group;  // solicited-node multicast: ff02::1:ff and the last three bytes
  group.bytes = {0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff};
  std::copy(target.bytes.begin() + 13, target.bytes.end(), group.bytes.begin() + 13);
  return write_nd(at, kSolicit, 0, target, kSourceLinkOption, MacAddress::multicast_of(group),
                  local, group);
}

bool in_prefix(const IpAddress& ip, const IpAddress& network, uint8_t prefix_bits) noexcept {
  uint32_t bits = prefix_bits;
  if (ip.is_v4() != network.is_v4()) return false;
  if (ip.is_v4()) bits += 96;  // the mapped form
  for (size_t i = 0; i < 16 && bits > 0; ++i) {
    const uint32_t here = std::min(bits, 8U);
    const uint32_t mask = (0xff00U >> here) & 0xffU;
    if (((ip.bytes[i] ^ network.bytes[i]) & mask) != 0) return false;
    bits -= here;
  }
  return true;
}

}  // namespace mercury::ethdev
