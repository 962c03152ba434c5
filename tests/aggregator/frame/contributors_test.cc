#include "aggregator/frame/contributors.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace mercury {
namespace {

std::vector<std::byte> encoded(const WorkerSet& set, uint32_t workers) {
  std::vector<std::byte> bytes(contributor_bytes(workers));
  encode_contributors(set, bytes);
  return bytes;
}

TEST(Contributors, HasTheBytesOfTheProtocol) {
  WorkerSet set{};
  for (const Rank rank : {Rank(0), Rank(9), Rank(63), Rank(64)}) insert(set, rank);
  const std::array<uint8_t, 16> golden = {0x80, 0, 0, 0, 0, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0, 0, 1};
  const auto bytes = encoded(set, 65);
  ASSERT_EQ(bytes.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) EXPECT_EQ(bytes[i], std::byte{golden[i]}) << i;
}

TEST(Contributors, ComesBackForAnyNumberOfWorkers) {
  for (uint32_t workers = 1; workers <= kMaxWorkers; ++workers) {
    WorkerSet set{};
    insert(set, Rank(static_cast<uint16_t>(workers - 1)));
    insert(set, Rank(static_cast<uint16_t>(workers / 2)));
    const auto decoded = decode_contributors(encoded(set, workers), workers);
    ASSERT_TRUE(decoded) << workers;
    EXPECT_EQ(*decoded, set) << workers;
    EXPECT_EQ(count(complement(set, workers)) + count(set), workers);
  }
}

TEST(Contributors, RefusesARankThatTheJobLacks) {
  WorkerSet set{};
  insert(set, 5);
  const auto bytes = encoded(set, 6);
  EXPECT_TRUE(decode_contributors(bytes, 6));
  EXPECT_FALSE(decode_contributors(bytes, 5));
}

TEST(Contributors, RefusesAnotherLength) {
  const std::vector<std::byte> bytes(contributor_bytes(65));
  EXPECT_TRUE(decode_contributors(bytes, 65));
  EXPECT_FALSE(decode_contributors(bytes, 64));
  EXPECT_FALSE(decode_contributors(bytes, 129));
  EXPECT_FALSE(decode_contributors({}, 1));
  EXPECT_FALSE(decode_contributors(std::vector<std::byte>(40), 320));  // more than any job has
}

}  // namespace
}  // namespace mercury
