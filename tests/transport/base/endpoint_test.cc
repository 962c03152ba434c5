#include "transport/base/endpoint.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

TEST(Endpoint, ParsesBothFamilies) {
  EXPECT_EQ(Endpoint::parse("10.0.0.1:7470")->to_string(), "10.0.0.1:7470");
  EXPECT_EQ(Endpoint::parse("10.0.0.1", 7)->to_string(), "10.0.0.1:7");
  EXPECT_EQ(Endpoint::parse("[fd00::1]:7470")->to_string(), "[fd00::1]:7470");
  EXPECT_EQ(Endpoint::parse("fd00::1", 9)->to_string(), "[fd00::1]:9");
  EXPECT_TRUE(Endpoint::parse("10.0.0.1")->ip.is_v4());
  EXPECT_FALSE(Endpoint::parse("fd00::1")->ip.is_v4());
}

TEST(Endpoint, RefusesWhatIsNotAnAddress) {
  for (const char* bad : {"", "host", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "[fd00::1",
                          "[fd00::1]x", "10.0.0", "1.2.3.4:5x"}) {
    EXPECT_FALSE(Endpoint::parse(bad).has_value()) << bad;
  }
}

TEST(IpAddress, Unspecified) {
  EXPECT_TRUE(IpAddress::parse("0.0.0.0")->is_unspecified());
  EXPECT_TRUE(IpAddress::parse("::")->is_unspecified());
  EXPECT_FALSE(IpAddress::parse("::1")->is_unspecified());
  for (const char* many : {"224.0.0.0", "239.255.255.255", "ff00::", "ff02::1"}) {
    EXPECT_TRUE(IpAddress::parse(many)->is_multicast()) << many;
  }
  for (const char* one : {"223.255.255.255", "240.0.0.0", "fe80::1", "::e000:1"}) {
    EXPECT_FALSE(IpAddress::parse(one)->is_multicast()) << one;
  }
}

}  // namespace
}  // namespace mercury
