#include "transport/base/quantity.h"

#include <gtest/gtest.h>

#include "transport/base/random.h"

namespace mercury {
namespace {

TEST(Quantity, ReadsUnitsExactly) {
  EXPECT_EQ(*parse_bytes("160KB"), 160'000U);
  EXPECT_EQ(*parse_bytes("0.4MB"), 400'000U);
  EXPECT_EQ(*parse_bytes("1.5KiB"), 1536U);
  EXPECT_EQ(*parse_bytes("0"), 0U);
  EXPECT_EQ(*parse_bytes("4096"), 4096U);
  EXPECT_EQ(*parse_bytes("0GB"), 0U);
  EXPECT_EQ(*parse_bytes("18446744073709551615B"), ~uint64_t{0});
  EXPECT_EQ(*parse_ns("50us"), 50'000U);
  EXPECT_EQ(*parse_ns("0.3ms"), 300'000U);
  EXPECT_EQ(*parse_ns("1.000000001s"), 1'000'000'001U);
  EXPECT_EQ(*parse_bits_per_second("10Gbps"), 10'000'000'000U);
  EXPECT_EQ(*parse_bits_per_second("2.5Gbit"), 2'500'000'000U);
  EXPECT_EQ(*parse_bits_per_second("0.1kbit"), 100U);
}

TEST(Quantity, RefusesWhatIsNoWholeNumberOfUnits) {
  for (const char* text : {"",
                           "B",
                           "KB",
                           "-1KB",
                           "+1KB",
                           "1kB",
                           "1 KB",
                           "1KB ",
                           ".5KB",
                           "1.KB",
                           "1.5.0KB",
                           "1e3B",
                           "0x10B",
                           "nan",
                           "inf",
                           "0.5B",
                           "1.0001KB",
                           "1.0000000001GB",
                           "18446744073709551616B",
                           "18446744073709551615KB",
                           "99999999999999999999999999B",
                           "1Gbps",
                           "1s"}) {
    const Result<uint64_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(bytes.error().code, Errc::kInvalidArgument);
  }
  EXPECT_EQ(parse_bits_per_second("fast").error().message,
            "'fast' is not a bandwidth such as 10Gbps (bps, kbps, Mbps, Gbps or Tbps)");
  EXPECT_FALSE(parse_ns("0.5ns"));
  EXPECT_FALSE(parse_ns("1h"));
  EXPECT_FALSE(parse_bytes(std::string("1\0KB", 4)));
}

TEST(Quantity, PrintsWhatItReads) {
  EXPECT_EQ(print_bytes(160'000), "160KB");
  EXPECT_EQ(print_bytes(0), "0B");
  EXPECT_EQ(print_bytes(1'000'001), "1000001B");
  EXPECT_EQ(print_ns(50'000), "50us");
  EXPECT_EQ(print_bits_per_second(2'500'000'000), "2500Mbps");
  constexpr uint64_t kSeed = 1;
  Random random(kSeed);
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t value = random.next() >> random.below(64);
    EXPECT_EQ(*parse_bytes(print_bytes(value)), value) << "seed " << kSeed << " step " << i;
    EXPECT_EQ(*parse_ns(print_ns(value)), value);
    EXPECT_EQ(*parse_bits_per_second(print_bits_per_second(value)), value);
  }
}

}  // namespace
}  // namespace mercury
