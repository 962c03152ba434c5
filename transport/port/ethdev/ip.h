// IPv4, IPv6 and UDP headers: checked on the way in, written from a template on the way out. Pure
// functions over bytes.
//
// What is not checked, and why: the UDP checksum. A kernel that sends over a virtual link leaves it
// unfilled, and each Mercury frame carries a CRC-32C over header and payload that is far stronger.
#pragma once

#include <cstdint>
#include <span>

#include "transport/base/counters.h"
#include "transport/base/endpoint.h"
#include "transport/port/ethdev/l2.h"
#include "transport/port/port.h"

namespace mercury::ethdev {

// The Internet checksum (RFC 1071) over pieces of any length.
class InternetSum {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  void add_word(uint32_t host_order_16) noexcept {
    sum_ += __builtin_bswap16(uint16_t(host_order_16));
  }
  // The complement, as the two bytes to store (memcpy order).
  uint16_t finish() const noexcept;

 private:
  uint64_t sum_ = 0;  // of 16-bit words as they lie in memory
  bool odd_ = false;  // an odd number of bytes so far: the next piece is shifted by one
};

// Who this host is on the device.
struct LocalIdentity {
  MacAddress mac;
  IpAddress v4;  // unspecified: none
  IpAddress v6;
  bool has_v4 = false;
  bool has_v6 = false;
  uint16_t udp_port = 0;   // of engine 0
  uint16_t udp_ports = 1;  // how many
};

enum class FrameClass : uint8_t {
  kUdp,      // for one of our UDP ports: the fields below are set
  kArp,      // ARP, any
  kIcmp4,    // ICMP to our address; header checked
  kIcmp6,    // ICMPv6 to our address or a multicast group; header checked
  kDropped,  // `reason` says why
};

struct ParsedFrame {
  Counter reason = Counter::kDropNotMercury;
  uint16_t engine = 0;  // destination port minus LocalIdentity::udp_port
};

// Classifies a whole Ethernet frame; of kUdp all of `rx` is written, in place. Never reads past
// `frame`. Fragments, IP options and extension headers are not accepted, nor VLAN tags: of frames
// of the port's own VLAN they are gone.
FrameClass parse_frame(std::span<const std::byte> frame, const LocalIdentity& local,
                       ParsedFrame& out, RxFrame& rx) noexcept;

// Ethernet, IP and UDP headers of one path, ready but for the lengths and checksums.
struct HeaderTemplate {
  uint8_t bytes[kMaxHeaderBytes]{};
  uint8_t length = 0;  // 42 (IPv4) or 62 (IPv6)
  bool v6 = false;
  InternetSum
      base;  // IPv4: of the header without its length; IPv6: of the pseudo header without it
};
HeaderTemplate make_template(const MacAddress& from, const MacAddress& to, const Endpoint& local,
                             const Endpoint& remote);
void set_destination(HeaderTemplate& header, const MacAddress& to) noexcept;
// One beside the port where this host hears. IPv6: with a flow label of its own, which no checksum
// covers, as routers may choose a path by addresses and label alone (RFC 6438); else that is zero,
// as no other frame has to be told apart.
void set_source_port(HeaderTemplate& header, uint16_t port) noexcept;

// Writes the headers to `at` (header.length bytes). IPv4: UDP checksum zero, which means none. IPv6
// must have one: it is computed over `payload` and `more`, which are what follows the headers,
// unless `offload`: then the sum of the pseudo header is stored, and the device does the rest.
void write_headers(const HeaderTemplate& header, std::byte* at, std::span<const std::byte> payload,
                   std::span<const std::byte> more, bool offload) noexcept;
// Of headers that were written: IPv4's type of service, IPv6's traffic class (traffic_classes.h).
void set_class_byte(const HeaderTemplate& header, std::byte* at, uint8_t class_byte) noexcept;

}  // namespace mercury::ethdev
