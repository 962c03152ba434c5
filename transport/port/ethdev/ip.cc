#include "transport/port/ethdev/ip.h"

#include <cstring>

#include "transport/base/random.h"
#include "transport/port/port.h"

namespace mercury::ethdev {
namespace {

constexpr uint8_t kProtocolIcmp = 1;
constexpr uint8_t kProtocolUdp = 17;
constexpr uint8_t kProtocolIcmp6 = 58;
constexpr uint8_t kProtocolFragment = 44;
constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kIpv4FrameHeaderBytes = kEtherHeaderBytes + kIpv4HeaderBytes + kUdpHeaderBytes;
constexpr uint8_t kIpv6FrameHeaderBytes = kMaxHeaderBytes;

uint64_t fold(uint64_t sum) noexcept {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  return (sum & 0xffff) + (sum >> 16);
}

IpAddress mapped_v4(const uint8_t* at) noexcept {
  IpAddress ip;
  ip.bytes[10] = ip.bytes[11] = 0xff;
  std::memcpy(&ip.bytes[12], at, 4);
  return ip;
}

FrameClass drop(ParsedFrame& out, Counter reason) noexcept {
  out.reason = reason;
  return FrameClass::kDropped;
}

// `udp` starts at the UDP header and ends where the IP packet ends.
FrameClass parse_udp(std::span<const std::byte> udp, const LocalIdentity& local, ParsedFrame& out,
                     RxFrame& rx) noexcept {
  if (udp.size() < kUdpHeaderBytes) return drop(out, Counter::kDropBadIp);
  const uint8_t* at = bytes_of(udp.data());
  const uint32_t engine = uint32_t{load_be16(at + 2)} - local.udp_port;
  if (engine >= local.udp_ports) return drop(out, Counter::kDropNotMercury);
  const uint32_t length = load_be16(at + 4);
  rx.source.port = load_be16(at);
  if (length < kUdpHeaderBytes || length > udp.size() || rx.source.port == 0) {
    return drop(out, Counter::kDropBadIp);
  }
  out.engine = static_cast<uint16_t>(engine);
  rx.payload = udp.subspan(kUdpHeaderBytes, length - kUdpHeaderBytes);
  return FrameClass::kUdp;
}

FrameClass parse_ipv4(std::span<const std::byte> packet, bool to_group, const LocalIdentity& local,
                      ParsedFrame& out, RxFrame& rx) noexcept {
  if (packet.size() < kIpv4HeaderBytes) return drop(out, Counter::kDropTruncated);
  const uint8_t* at = bytes_of(packet.data());
  if (!local.has_v4 || std::memcmp(at + 16, &local.v4.bytes[12], 4) != 0 || to_group) {
    return drop(out, Counter::kDropNotMercury);
  }
  const uint32_t total = load_be16(at + 2);
  const bool fragment = (load_be16(at + 6) & 0x3fff) != 0;  // more fragments, or an offset
  const bool bad_source = at[12] == 0 || at[12] >= 224;     // none, multicast or broadcast
  if (at[0] != 0x45 || total < kIpv4HeaderBytes || total > packet.size() || fragment ||
      bad_source) {
    return drop(out, Counter::kDropBadIp);
  }
  InternetSum sum;
  sum.add(packet.first(kIpv4HeaderBytes));
  if (sum.finish() != 0) return drop(out, Counter::kDropIpChecksum);
  if (at[9] == kProtocolIcmp) return FrameClass::kIcmp4;
  if (at[9] != kProtocolUdp) return drop(out, Counter::kDropNotMercury);
  rx.ecn_ce = (at[1] & kEcnMask) == kEcnCe;
  rx.source.ip = mapped_v4(at + 12);
  return parse_udp(packet.subspan(kIpv4HeaderBytes, total - kIpv4HeaderBytes), local, out, rx);
}

FrameClass parse_ipv6(std::span<const std::byte> packet, bool to_group, const LocalIdentity& local,
                      ParsedFrame& out, RxFrame& rx) noexcept {
  if (packet.size() < kIpv6HeaderBytes) return drop(out, Counter::kDropTruncated);
  const uint8_t* at = bytes_of(packet.data());
  const bool group = at[24] == 0xff;
  const bool mine = local.has_v6 && std::memcmp(at + 24, local.v6.bytes.data(), 16) == 0;
  if (!local.has_v6 || (!mine && !group)) return drop(out, Counter::kDropNotMercury);
  const uint32_t length = load_be16(at + 4);
  if ((at[0] >> 4) != 6 || length > packet.size() - kIpv6HeaderBytes || at[8] == 0xff) {
    return drop(out, Counter::kDropBadIp);
  }
  if (at[6] == kProtocolIcmp6) return FrameClass::kIcmp6;
  if (at[6] == kProtocolFragment) return drop(out, Counter::kDropBadIp);
  if (at[6] != kProtocolUdp || group || to_group) return drop(out, Counter::kDropNotMercury);
  std::memcpy(rx.source.ip.bytes.data(), at + 8, 16);
  if (rx.source.ip.is_unspecified() || rx.source.ip.is_v4()) {
    return drop(out, Counter::kDropBadIp);
  }
  rx.ecn_ce = ((at[1] >> 4) & kEcnMask) == kEcnCe;
  return parse_udp(packet.subspan(kIpv6HeaderBytes, length), local, out, rx);
}

void build_ipv4(HeaderTemplate& header, const Endpoint& local, const Endpoint& remote) {
  uint8_t* ip = header.bytes + kEtherHeaderBytes;
  ip[0] = 0x45;
  ip[1] = kEcnCapable;
  ip[6] = 0x40;  // do not fragment: Mercury probes the MTU
  ip[8] = kHopLimit;
  ip[9] = kProtocolUdp;
  std::memcpy(ip + 12, &local.ip.bytes[12], 4);
  std::memcpy(ip + 16, &remote.ip.bytes[12], 4);
  header.base.add(std::as_bytes(std::span(ip, kIpv4HeaderBytes)));
}

// The pseudo header without its length, and the ports.
void sum_ipv6(HeaderTemplate& header) {
  const uint8_t* ip = header.bytes + kEtherHeaderBytes;
  header.base = InternetSum();
  header.base.add(std::as_bytes(std::span(ip + 8, 32)));
  header.base.add_word(kProtocolUdp);
  header.base.add(std::as_bytes(std::span(ip + kIpv6HeaderBytes, 4)));
}

// Others' of one flow lie far apart, and those of one pair of addresses are never the same but for
// the last, in place of zero (RFC 6437 section 3).
void label_flow(HeaderTemplate& header, uint16_t port) {
  constexpr uint32_t kBits = 0xfffff;
  uint8_t* ip = header.bytes + kEtherHeaderBytes;
  uint64_t ends = 0;
  for (size_t at = 8; at < kIpv6HeaderBytes; at += sizeof(uint16_t)) {
    ends ^= load_be16(ip + at);
    ends = split_mix(ends);
  }
  const auto label = static_cast<uint32_t>(ends + uint64_t{port} * 0x9e377) & kBits;
  const uint32_t shown = label == 0 ? kBits : label;
  ip[1] = static_cast<uint8_t>((ip[1] & 0xf0) | shown >> 16);
  store_be16(ip + 2, shown & 0xffff);
}

void build_ipv6(HeaderTemplate& header, const Endpoint& local, const Endpoint& remote) {
  uint8_t* ip = header.bytes + kEtherHeaderBytes;
  ip[0] = 0x60;
  ip[1] = kEcnCapable << 4;  // the traffic class begins in the byte before
  ip[6] = kProtocolUdp;
  ip[7] = kHopLimit;
  std::memcpy(ip + 8, local.ip.bytes.data(), 16);
  std::memcpy(ip + 24, remote.ip.bytes.data(), 16);
  sum_ipv6(header);
}

}  // namespace

void InternetSum::add(std::span<const std::byte> bytes) noexcept {
  const uint8_t* at = bytes_of(bytes.data());
  size_t left = bytes.size();
  uint64_t sum = 0;
  for (; left >= 4; left -= 4, at += 4) {
    uint32_t word;
    std::memcpy(&word, at, 4);
    sum += word;
  }
  if (left >= 2) {
    uint16_t word;
    std::memcpy(&word, at, 2);
    sum += word;
    at += 2;
    left -= 2;
  }
  if (left == 1) sum += *at;  // little-endian memory: the first byte of a word is its low half
  sum = fold(sum);
  if (odd_) sum = __builtin_bswap16(static_cast<uint16_t>(sum));
  sum_ += sum;
  odd_ ^= (bytes.size() & 1) != 0;
}

uint16_t InternetSum::finish() const noexcept { return static_cast<uint16_t>(~fold(sum_)); }

FrameClass parse_frame(std::span<const std::byte> frame, const LocalIdentity& local,
                       ParsedFrame& out, RxFrame& rx) noexcept {
  if (frame.size() < kEtherHeaderBytes) return drop(out, Counter::kDropTruncated);
  const uint8_t* at = bytes_of(frame.data());
  const bool to_group = (at[0] & 1) != 0;
  if (!to_group && std::memcmp(at, local.mac.bytes.data(), 6) != 0) {
    return drop(out, Counter::kDropNotMercury);
  }
  const auto packet = frame.subspan(kEtherHeaderBytes);
  switch (load_be16(at + 12)) {
    case kEtherIpv4:
      return parse_ipv4(packet, to_group, local, out, rx);
    case kEtherIpv6:
      return parse_ipv6(packet, to_group, local, out, rx);
    case kEtherArp:
      return FrameClass::kArp;
    case kEtherVlan:
      return drop(out, Counter::kDropVlan);
    default:
      return drop(out, Counter::kDropNotMercury);
  }
}

HeaderTemplate make_template(const MacAddress& from, const MacAddress& to, const Endpoint& local,
                             const Endpoint& remote) {
  HeaderTemplate header;
  header.v6 = !remote.ip.is_v4();
  write_ether(header.bytes, to, from, header.v6 ? kEtherIpv6 : kEtherIpv4);
  header.length = header.v6 ? kIpv6FrameHeaderBytes : kIpv4FrameHeaderBytes;
  uint8_t* udp = header.bytes + header.length - kUdpHeaderBytes;
  store_be16(udp, local.port);
  store_be16(udp + 2, remote.port);
  if (header.v6) {
    build_ipv6(header, local, remote);
  } else {
    build_ipv4(header, local, remote);
  }
  return header;
}

void set_destination(HeaderTemplate& header, const MacAddress& to) noexcept {
  std::memcpy(header.bytes, to.bytes.data(), 6);
}

void set_source_port(HeaderTemplate& header, uint16_t port) noexcept {
  store_be16(header.bytes + header.length - kUdpHeaderBytes, port);
  if (!header.v6) return;
  label_flow(header, port);
  sum_ipv6(header);
}

void write_headers(const HeaderTemplate& header, std::byte* at, std::span<const std::byte> payload,
                   std::span<const std::byte> more, bool offload) noexcept {
  uint8_t* out = bytes_of(at);
  if (header.v6) {  // lengths that the compiler knows
    std::memcpy(out, header.bytes, kIpv6FrameHeaderBytes);
  } else {
    std::memcpy(out, header.bytes, kIpv4FrameHeaderBytes);
  }
  const uint32_t udp_bytes = static_cast<uint32_t>(kUdpHeaderBytes + payload.size() + more.size());
  uint8_t* ip = out + kEtherHeaderBytes;
  uint8_t* udp = out + header.length - kUdpHeaderBytes;
  store_be16(udp + 4, udp_bytes);
  InternetSum sum = header.base;
  if (!header.v6) {
    store_be16(ip + 2, udp_bytes + kIpv4HeaderBytes);
    sum.add_word(udp_bytes + kIpv4HeaderBytes);
    const uint16_t checksum = sum.finish();
    std::memcpy(ip + 10, &checksum, 2);
    return;
  }
  store_be16(ip + 4, udp_bytes);
  sum.add_word(udp_bytes);  // of the pseudo header
  uint16_t checksum;
  if (offload) {
    // A device wants the sum of the pseudo header alone, not complemented: without the ports.
    InternetSum pseudo;
    pseudo.add(std::as_bytes(std::span(ip + 8, 32)));
    pseudo.add_word(kProtocolUdp);
    pseudo.add_word(udp_bytes);
    checksum = static_cast<uint16_t>(~pseudo.finish());
  } else {
    sum.add_word(udp_bytes);  // of the UDP header
    sum.add(payload);
    sum.add(more);
    checksum = sum.finish();
    if (checksum == 0) checksum = 0xffff;  // zero would mean none, which IPv6 refuses
  }
  std::memcpy(udp + 6, &checksum, 2);
}

void set_class_byte(const HeaderTemplate& header, std::byte* at, uint8_t class_byte) noexcept {
  uint8_t* ip = bytes_of(at) + kEtherHeaderBytes;
  if (header.v6) {  // it begins in the middle of a byte, and no checksum covers it
    ip[0] = static_cast<uint8_t>(0x60 | class_byte >> 4);
    ip[1] = static_cast<uint8_t>(class_byte << 4 | (ip[1] & 0x0f));  // before the flow label
    return;
  }
  InternetSum sum = header.base;
  sum.add_word(load_be16(ip + 2));
  sum.add_word(static_cast<uint32_t>(class_byte - ip[1]));  // beside the bits that are there
  ip[1] = class_byte;
  const uint16_t checksum = sum.finish();
  std::memcpy(ip + 10, &checksum, 2);
}

}  // namespace mercury::ethdev
