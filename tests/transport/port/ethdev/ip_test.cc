#include "transport/port/ethdev/ip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "transport/port/port.h"

namespace mercury::ethdev {
namespace {

using Frame = std::vector<std::byte>;

constexpr MacAddress kOurs{{2, 0, 0, 0, 0, 1}};
constexpr MacAddress kTheirs{{2, 0, 0, 0, 0, 2}};
const Endpoint kUs4{IpAddress::v4(10, 0, 0, 1), 7470};
const Endpoint kThem4{IpAddress::v4(10, 0, 0, 2), 9000};
const Endpoint kUs6{*IpAddress::parse("fd00::1"), 7470};
const Endpoint kThem6{*IpAddress::parse("fd00::2"), 9000};

LocalIdentity identity() {
  LocalIdentity local;
  local.mac = kOurs;
  local.v4 = kUs4.ip;
  local.v6 = kUs6.ip;
  local.has_v4 = local.has_v6 = true;
  local.udp_port = 7470;
  local.udp_ports = 2;
  return local;
}

// A frame as the peer's port would send it to us.
Frame frame_with(size_t payload_bytes, bool v6, uint16_t port = 7470) {
  const Endpoint us{v6 ? kUs6.ip : kUs4.ip, port};
  const auto header = make_template(kTheirs, kOurs, v6 ? kThem6 : kThem4, us);
  Frame frame(header.length + payload_bytes);
  for (size_t i = 0; i < payload_bytes; ++i) frame[header.length + i] = std::byte(i);
  write_headers(header, frame.data(), std::span(frame).subspan(header.length), {}, false);
  return frame;
}

void set(Frame& frame, size_t at, uint8_t value) { frame[at] = std::byte(value); }

// The IPv4 header's checksum, made right again after a change.
void fix_checksum(Frame& frame) {
  set(frame, 24, 0);
  set(frame, 25, 0);
  InternetSum sum;
  sum.add(std::span(frame).subspan(14, 20));
  const uint16_t value = sum.finish();
  std::memcpy(&frame[24], &value, 2);
}

TEST(Ip, ATrafficClassIsWrittenWhereItBelongsAndTheChecksumFits) {
  for (const bool v6 : {false, true}) {
    for (const unsigned dscp : {0U, 1U, 46U, 63U}) {
      Frame frame = frame_with(100, v6);
      const Frame before = frame;
      const auto header = make_template(kTheirs, kOurs, v6 ? kThem6 : kThem4, v6 ? kUs6 : kUs4);
      set_class_byte(header, frame.data(), static_cast<uint8_t>(dscp << 2 | kEcnCapable));
      const unsigned first = std::to_integer<unsigned>(frame[14]);
      const unsigned second = std::to_integer<unsigned>(frame[15]);
      EXPECT_EQ(v6 ? (first << 4 | second >> 4) & 0xff : second, dscp << 2 | kEcnCapable);
      EXPECT_EQ(first >> 4, v6 ? 6U : 4U);
      ParsedFrame parsed;
      RxFrame rx;
      ASSERT_EQ(parse_frame(frame, identity(), parsed, rx), FrameClass::kUdp) << v6 << ' ' << dscp;
      EXPECT_FALSE(rx.ecn_ce);
      if (dscp == 0) {
        EXPECT_EQ(frame, before) << "as they are without classes";
      }
    }
  }
}

Counter reason_for(const Frame& frame) {
  ParsedFrame parsed;
  RxFrame rx;
  EXPECT_EQ(parse_frame(frame, identity(), parsed, rx), FrameClass::kDropped);
  return parsed.reason;
}

TEST(InternetSum, MatchesTheExampleOfRfc1071) {
  const uint8_t bytes[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  InternetSum sum;
  sum.add(std::as_bytes(std::span(bytes)));
  const uint16_t stored = sum.finish();
  uint8_t out[2];
  std::memcpy(out, &stored, 2);
  EXPECT_EQ(load_be16(out), 0xffff - 0xddf2);
}

TEST(InternetSum, DoesNotDependOnHowTheBytesAreCut) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(4001);
  for (std::byte& byte : bytes) byte = std::byte(random());
  InternetSum whole;
  whole.add(bytes);
  for (size_t first : {0, 1, 2, 3, 5, 8, 9, 1000, 2001}) {
    for (size_t second : {0, 1, 4, 7, 999}) {
      InternetSum sum;
      sum.add(std::span(bytes).first(first));
      sum.add(std::span(bytes).subspan(first, second));
      sum.add(std::span(bytes).subspan(first + second));
      EXPECT_EQ(sum.finish(), whole.finish()) << first << " " << second;
    }
  }
}

TEST(WriteHeaders, GoldenIpv4) {
  const Frame frame = frame_with(4, false);
  const uint8_t golden[] = {
      2,    0,    0,    0,    0, 1,  2,    0, 0,  0,  0,    2,    8,  0,        // Ethernet
      0x45, 2,    0,    32,   0, 0,  0x40, 0, 64, 17, 0x26, 0xc9, 10, 0, 0, 2,  // IPv4, ECT(0)
      10,   0,    0,    1,                                                      //
      0x23, 0x28, 0x1d, 0x2e, 0, 12, 0,    0,  // UDP, without a checksum
      0,    1,    2,    3};
  ASSERT_EQ(frame.size(), sizeof(golden));
  EXPECT_TRUE(std::ranges::equal(frame, std::as_bytes(std::span(golden))));
}

TEST(WriteHeaders, GoldenIpv6) {
  const Frame frame = frame_with(4, true);
  const uint8_t golden[] = {
      2,    0,    0, 0, 0, 1,  2,  0,  0, 0, 0, 2,    0x86, 0xdd,  // Ethernet
      0x60, 0x20, 0, 0, 0, 12, 17, 64,                             // IPv6, ECT(0)
      0xfd, 0,    0, 0, 0, 0,  0,  0,  0, 0, 0, 0,    0,    0,    0,    2, 0xfd, 0,    0,    0, 0,
      0,    0,    0, 0, 0, 0,  0,  0,  0, 0, 1, 0x23, 0x28, 0x1d, 0x2e, 0, 12,   0xc3, 0x77,  // UDP
      0,    1,    2, 3};
  ASSERT_EQ(frame.size(), sizeof(golden));
  EXPECT_TRUE(std::ranges::equal(frame, std::as_bytes(std::span(golden))));
}

// What a receiving kernel computes over an IPv6 datagram: zero if the checksum is right.
uint16_t residue_v6(const Frame& frame) {
  InternetSum sum;
  sum.add(std::span(frame).subspan(22, 32));
  sum.add_word(17);
  sum.add_word(static_cast<uint32_t>(frame.size() - 54));
  sum.add(std::span(frame).subspan(54));
  return sum.finish();
}

TEST(WriteHeaders, Ipv6ChecksumSatisfiesAReceiverAtEverySizeAndCut) {
  for (size_t bytes = 0; bytes < 70; ++bytes) EXPECT_EQ(residue_v6(frame_with(bytes, true)), 0);
  const auto header = make_template(kTheirs, kOurs, kThem6, kUs6);
  for (size_t cut : {1, 8, 13}) {  // header and payload in two pieces, as tx_send_shared has them
    Frame frame(header.length + 100, std::byte{0xa5});
    const auto body = std::span(frame).subspan(header.length);
    write_headers(header, frame.data(), body.first(cut), body.subspan(cut), false);
    EXPECT_EQ(residue_v6(frame), 0) << cut;
  }
}

TEST(WriteHeaders, Ipv6ChecksumIsNeverZero) {
  // Choose two bytes of payload so that the sum comes out as zero, which must be sent as ffff.
  const auto header = make_template(kTheirs, kOurs, kThem6, kUs6);
  bool met = false;
  for (uint32_t word = 0; word < 65536; ++word) {
    Frame frame(header.length + 2);
    set(frame, header.length, static_cast<uint8_t>(word >> 8));
    set(frame, header.length + 1, static_cast<uint8_t>(word));
    write_headers(header, frame.data(), std::span(frame).subspan(header.length), {}, false);
    const uint16_t checksum = load_be16(bytes_of(&frame[60]));
    ASSERT_NE(checksum, 0);
    met = met || checksum == 0xffff;
  }
  EXPECT_TRUE(met);
}

uint32_t flow_label(const Frame& frame) {
  return (std::to_integer<uint32_t>(frame[15]) & 0xf) << 16 |
         std::to_integer<uint32_t>(frame[16]) << 8 | std::to_integer<uint32_t>(frame[17]);
}

TEST(WriteHeaders, EachSourcePortHasAFlowLabelOfItsOwn) {
  std::set<uint32_t> labels;
  for (const char* peer : {"fd00::2", "fd00::3"}) {
    const Endpoint to{*IpAddress::parse(peer), 7470};
    for (uint16_t port = 7470; port < 7486; ++port) {
      HeaderTemplate header = make_template(kOurs, kTheirs, kUs6, to);
      if (port != kUs6.port) set_source_port(header, port);
      Frame frame(header.length + 100);
      const auto payload = std::span(frame).subspan(header.length);
      write_headers(header, frame.data(), payload, {}, false);
      set_class_byte(header, frame.data(), 46 << 2 | kEcnCapable);
      EXPECT_EQ(std::to_integer<unsigned>(frame[14]), 0x60U | 46 >> 2);
      EXPECT_EQ(std::to_integer<unsigned>(frame[15]) >> 4, (46U << 2 | kEcnCapable) & 0xf);
      EXPECT_EQ(residue_v6(frame), 0);
      if (port == kUs6.port) {
        EXPECT_EQ(flow_label(frame), 0U);
      } else {
        labels.insert(flow_label(frame));
      }
    }
  }
  EXPECT_EQ(labels.size(), 30U);
  EXPECT_FALSE(labels.contains(0));
  // By whatever bits a router goes, they have some of each.
  for (uint32_t bit = 0; bit < 20; ++bit) {
    const auto ones =
        std::ranges::count_if(labels, [bit](uint32_t label) { return (label >> bit & 1) != 0; });
    EXPECT_GT(ones, 5) << bit;
    EXPECT_LT(ones, 25) << bit;
  }
}

TEST(ParseFrame, ReturnsPayloadSourceAndEngine) {
  for (const bool v6 : {false, true}) {
    for (const size_t bytes : {0, 1, 1400}) {
      Frame frame = frame_with(bytes, v6, 7471);
      frame.resize(std::max<size_t>(frame.size(), 60));  // Ethernet pads short frames
      ParsedFrame parsed;
      RxFrame rx;
      ASSERT_EQ(parse_frame(frame, identity(), parsed, rx), FrameClass::kUdp);
      EXPECT_EQ(rx.payload.size(), bytes);
      EXPECT_EQ(rx.source, v6 ? kThem6 : kThem4);
      EXPECT_EQ(parsed.engine, 1);
      EXPECT_FALSE(rx.ecn_ce);
    }
  }
}

TEST(ParseFrame, ReportsCongestionMarks) {
  for (uint8_t ecn = 0; ecn < 4; ++ecn) {
    Frame v4 = frame_with(10, false);
    set(v4, 15, ecn);
    fix_checksum(v4);
    Frame v6 = frame_with(10, true);
    set(v6, 15, static_cast<uint8_t>(ecn << 4));
    for (const Frame& frame : {v4, v6}) {
      ParsedFrame parsed;
      RxFrame rx;
      ASSERT_EQ(parse_frame(frame, identity(), parsed, rx), FrameClass::kUdp);
      EXPECT_EQ(rx.ecn_ce, ecn == kEcnCe);
    }
  }
}

TEST(ParseFrame, AcceptsAnUnfilledUdpChecksum) {
  Frame frame = frame_with(10, false);
  set(frame, 40, 0x12);
  ParsedFrame parsed;
  RxFrame rx;
  EXPECT_EQ(parse_frame(frame, identity(), parsed, rx), FrameClass::kUdp);
}

struct Hostile {
  const char* what;
  bool v6;
  size_t at;
  uint8_t value;
  Counter reason;
};

TEST(ParseFrame, DropsEachMalformationUnderItsReason) {
  const Hostile cases[] = {
      {"another MAC", false, 5, 9, Counter::kDropNotMercury},
      {"VLAN tag", false, 12, 0x81, Counter::kDropVlan},
      {"IP options", false, 14, 0x46, Counter::kDropBadIp},
      {"IP version", false, 14, 0x65, Counter::kDropBadIp},
      {"length beyond the frame", false, 16, 0xff, Counter::kDropBadIp},
      {"length below the header", false, 17, 19, Counter::kDropBadIp},
      {"more fragments", false, 20, 0x20, Counter::kDropBadIp},
      {"fragment offset", false, 21, 1, Counter::kDropBadIp},
      {"TCP", false, 23, 6, Counter::kDropNotMercury},
      {"multicast source", false, 26, 224, Counter::kDropBadIp},
      {"another address", false, 33, 77, Counter::kDropNotMercury},
      {"source port 0", false, 34, 0, Counter::kDropBadIp},
      {"another port", false, 36, 0, Counter::kDropNotMercury},
      {"UDP length beyond the packet", false, 38, 1, Counter::kDropBadIp},
      {"UDP length below its header", false, 39, 7, Counter::kDropBadIp},
      {"IPv6 version", true, 14, 0x45, Counter::kDropBadIp},
      {"IPv6 length", true, 18, 0xff, Counter::kDropBadIp},
      {"IPv6 fragment", true, 20, 44, Counter::kDropBadIp},
      {"IPv6 extension", true, 20, 0, Counter::kDropNotMercury},
      {"IPv6 multicast source", true, 22, 0xff, Counter::kDropBadIp},
      {"IPv6 another address", true, 53, 9, Counter::kDropNotMercury},
      {"IPv6 multicast UDP", true, 38, 0xff, Counter::kDropNotMercury},
  };
  for (const Hostile& hostile : cases) {
    Frame frame = frame_with(10, hostile.v6);
    set(frame, hostile.at, hostile.value);
    if (hostile.at == 34) set(frame, 35, 0);
    if (!hostile.v6) fix_checksum(frame);
    EXPECT_EQ(reason_for(frame), hostile.reason) << hostile.what;
  }
}

TEST(ParseFrame, ChecksTheIpv4HeaderChecksum) {
  Frame frame = frame_with(10, false);
  set(frame, 22, 63);  // a time to live that the checksum does not know
  EXPECT_EQ(reason_for(frame), Counter::kDropIpChecksum);
}

TEST(ParseFrame, SurvivesEveryTruncationAndRandomBytes) {
  std::mt19937 random(11);
  for (const bool v6 : {false, true}) {
    const Frame whole = frame_with(40, v6);
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      // A heap block of exactly this size: a sanitizer sees any read beyond it.
      const Frame cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      ParsedFrame parsed;
      RxFrame rx;
      EXPECT_EQ(parse_frame(cut, identity(), parsed, rx), FrameClass::kDropped) << bytes;
    }
    for (int round = 0; round < 20000; ++round) {
      Frame frame = whole;
      for (int flips = 0; flips < 3; ++flips)
        set(frame, random() % frame.size(), uint8_t(random()));
      frame.resize(random() % (frame.size() + 1));
      ParsedFrame parsed;
      RxFrame rx;
      if (parse_frame(frame, identity(), parsed, rx) != FrameClass::kUdp) continue;
      ASSERT_GE(rx.payload.data(), frame.data());
      ASSERT_LE(rx.payload.data() + rx.payload.size(), frame.data() + frame.size());
      ASSERT_LT(parsed.engine, 2);
    }
  }
}

}  // namespace
}  // namespace mercury::ethdev
