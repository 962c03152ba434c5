// SOURCE_PORTS: which ranges a peer may tell.
#include "transport/wire/source_ports.h"

#include <gtest/gtest.h>

#include <array>

namespace mercury::wire {
namespace {

std::optional<PortRange> told(uint16_t first, uint16_t count) {
  std::array<std::byte, kSourcePortsBytes> body{};
  encode_source_ports({first, count}, body.data());
  return decode_source_ports(body);
}

TEST(SourcePorts, AreAFewThatUdpPacketsHave) {
  for (const PortRange& good :
       {PortRange{1, 1}, PortRange{7478, 15}, PortRange{65535, 1}, PortRange{65521, 15}}) {
    EXPECT_EQ(told(good.first, good.count), good);
  }
  for (const PortRange& bad :
       {PortRange{7478, 0}, PortRange{7478, 16}, PortRange{7478, 65535}, PortRange{0, 1},
        PortRange{0, 15}, PortRange{65535, 2}, PortRange{65522, 15}}) {
    EXPECT_EQ(told(bad.first, bad.count), std::nullopt) << bad.first << " " << bad.count;
  }
}

TEST(SourcePorts, HaveFourBytes) {
  std::array<std::byte, 16> body{};
  encode_source_ports({7478, 3}, body.data());
  for (size_t bytes = 0; bytes <= body.size(); ++bytes) {
    EXPECT_EQ(decode_source_ports(std::span(body).first(bytes)).has_value(), bytes == 4) << bytes;
  }
}

// The ports beside a range, and those to which a sum of 16 bits would wrap.
TEST(SourcePorts, ContainTheirOwn) {
  const PortRange ports{7478, 3};
  for (uint32_t port = 0; port < 65'536; ++port) {
    EXPECT_EQ(ports.contains(static_cast<uint16_t>(port)), port >= 7478 && port <= 7480) << port;
    EXPECT_FALSE(PortRange{}.contains(static_cast<uint16_t>(port)));
  }
  const PortRange last{65'535, 1};
  EXPECT_TRUE(last.contains(65'535));
  EXPECT_FALSE(last.contains(0));
}

}  // namespace
}  // namespace mercury::wire
