#include "transport/wire/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace mercury::wire {
namespace {

std::vector<std::byte> pattern(size_t bytes, uint32_t seed = 1) {
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return data;
}

class Crc32c : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    original_ = crc32c_kernel();
    if (!crc32c_force_kernel(GetParam())) GTEST_SKIP() << "this CPU has no " << GetParam();
  }
  void TearDown() override { crc32c_force_kernel(original_); }
  const char* original_ = nullptr;
};

TEST_P(Crc32c, VectorsOfRfc3720) {
  std::vector<std::byte> data(32, std::byte{0});
  EXPECT_EQ(crc32c(data), 0x8a9136aaU);
  data.assign(32, std::byte{0xff});
  EXPECT_EQ(crc32c(data), 0x62a8ab43U);
  for (uint8_t i = 0; i < 32; ++i) data[i] = std::byte{i};
  EXPECT_EQ(crc32c(data), 0x46dd794eU);
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283U);
}

TEST_P(Crc32c, EveryLengthAndAlignmentEqualsTheTable) {
  const std::vector<std::byte> data = pattern(9100);
  std::vector<std::byte> copy(9100);
  for (size_t bytes = 0; bytes <= 1100; ++bytes) {
    const size_t start = bytes % 9;
    crc32c_force_kernel("table");
    const uint32_t expected = crc32c(data.data() + start, bytes);
    crc32c_force_kernel(GetParam());
    ASSERT_EQ(crc32c(data.data() + start, bytes), expected) << bytes;
    std::fill(copy.begin(), copy.end(), std::byte{0xee});
    ASSERT_EQ(copy_crc32c(copy.data() + 3, data.data() + start, bytes), expected) << bytes;
    ASSERT_EQ(std::memcmp(copy.data() + 3, data.data() + start, bytes), 0);
    ASSERT_EQ(copy[3 + bytes], std::byte{0xee}) << "wrote beyond its end";
  }
  for (size_t bytes : {1424UL, 3072UL, 4096UL, 8924UL, 9000UL}) {
    crc32c_force_kernel("table");
    const uint32_t expected = crc32c(data.data(), bytes);
    crc32c_force_kernel(GetParam());
    EXPECT_EQ(crc32c(data.data(), bytes), expected) << bytes;
    EXPECT_EQ(copy_crc32c(copy.data(), data.data(), bytes), expected) << bytes;
  }
}

TEST_P(Crc32c, ExtendsWhereverTheDataIsCut) {
  const std::vector<std::byte> data = pattern(300, 7);
  const uint32_t whole = crc32c(data);
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    EXPECT_EQ(crc32c_extend(crc32c(data.data(), cut), data.data() + cut, data.size() - cut), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Crc32c, testing::Values("sse4.2", "table"),
                         [](const auto& kernel) {
                           return std::string(kernel.param) == "table" ? "Table" : "Sse42";
                         });

}  // namespace
}  // namespace mercury::wire
