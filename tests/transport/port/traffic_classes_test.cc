#include "transport/port/traffic_classes.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "transport/port/port.h"
#include "transport/wire/header.h"

namespace mercury {
namespace {

uint8_t byte_of(const TrafficClasses& classes, wire::FrameType type, uint16_t priority = 0) {
  std::array<std::byte, sizeof(wire::DatagramHeader)> frame{};
  wire::Header header;
  header.type = type;
  header.priority = priority;
  wire::encode(header, frame.data());
  return classes.byte_of(frame.data());
}

constexpr uint8_t marked(unsigned dscp) { return static_cast<uint8_t>(dscp << 2 | kEcnCapable); }

TEST(TrafficClasses, PrioritiesHaveTheFirstClassThatTheyAreBelow) {
  const auto classes = TrafficClasses::parse("16:46, 256:26,65536:8");
  ASSERT_TRUE(classes && classes->any());
  for (const auto type : {wire::FrameType::kDatagram0, wire::FrameType::kDatagram1}) {
    EXPECT_EQ(byte_of(*classes, type, 0), marked(46));
    EXPECT_EQ(byte_of(*classes, type, 15), marked(46));
    EXPECT_EQ(byte_of(*classes, type, 16), marked(26));
    EXPECT_EQ(byte_of(*classes, type, 255), marked(26));
    EXPECT_EQ(byte_of(*classes, type, 256), marked(8));
    EXPECT_EQ(byte_of(*classes, type, 65'535), marked(8));
  }
}

TEST(TrafficClasses, PartsHaveTheClassOfTheirFrame) {
  const auto classes = TrafficClasses::parse("16:46,65536:8");
  ASSERT_TRUE(classes);
  const auto part_of = [&](wire::FrameType type, uint16_t priority) {
    std::array<std::byte, sizeof(wire::PlainHeader)> frame{};
    wire::Header header;
    header.type = wire::FrameType::kPart;
    header.grant = priority;
    header.idle_grant = static_cast<uint16_t>(type);
    wire::encode(header, frame.data());
    return classes->byte_of(frame.data());
  };
  EXPECT_EQ(part_of(wire::FrameType::kDatagram0, 15), marked(46));
  EXPECT_EQ(part_of(wire::FrameType::kDatagram1, 16), marked(8));
  EXPECT_EQ(part_of(wire::FrameType::kStream, 0), marked(0));
}

TEST(TrafficClasses, WhatIsInNoClassHasNone) {
  const auto classes = TrafficClasses::parse("16:46");
  ASSERT_TRUE(classes);
  EXPECT_EQ(byte_of(*classes, wire::FrameType::kDatagram0, 16), marked(0));
  EXPECT_EQ(byte_of(*classes, wire::FrameType::kStream), marked(0));
}

TEST(TrafficClasses, WhatDatagramsWaitForIsAsUrgentAsTheMostUrgent) {
  const auto classes = TrafficClasses::parse("1:63,2:1");
  ASSERT_TRUE(classes);
  for (uint8_t type = 1; type <= wire::kMaxFrameType; ++type) {
    const auto one = static_cast<wire::FrameType>(type);
    if (wire::is_datagram(one) || one == wire::FrameType::kStream) continue;
    EXPECT_EQ(byte_of(*classes, one), marked(63)) << int{type};
  }
}

TEST(TrafficClasses, WhatIsNoSuchListIsNone) {
  const auto none = TrafficClasses::parse("");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->any());
  for (const char* text :
       {"0:1", "65537:1", "16:64", "16", "16:", ":46", "16:46,", "16:46 256:26", "16:46,16:26",
        "16:46,8:26", "16:46;256:26", "-1:46", "16:-1", "sixteen:46", " 16:46", "16:46, ", "16 :46",
        "1:1,2:1,3:1,4:1,5:1,6:1,7:1,8:1,9:1", "4294967297:1"}) {
    EXPECT_FALSE(TrafficClasses::parse(text)) << text;
  }
  EXPECT_TRUE(TrafficClasses::parse("1:1,2:1,3:1,4:1,5:1,6:1,7:1,65536:0"));
}

}  // namespace
}  // namespace mercury
