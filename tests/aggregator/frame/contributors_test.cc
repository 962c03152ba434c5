#include "aggregator/frame/contributors.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

std::vector<std::byte> encoded(const WorkerSet& set, uint32_t workers) {
  std::vector<std::byte> bytes(contributor_bytes(workers, count(set)));
  encode_contributors(std::span(set).first(words_of(workers)), workers, bytes);
  return bytes;
}

WorkerSet all_but(uint32_t workers, std::initializer_list<Rank> absent) {
  WorkerSet set = complement(WorkerSet{}, workers);
  for (const Rank rank : absent) erase(set, rank);
  return set;
}

void expect_bytes(const std::vector<std::byte>& bytes, std::initializer_list<int> golden) {
  ASSERT_EQ(bytes.size(), golden.size());
  size_t i = 0;
  for (const int byte : golden) EXPECT_EQ(std::to_integer<int>(bytes[i++]), byte) << i;
}

TEST(Contributors, HasTheBytesOfTheProtocol) {
  WorkerSet set{};
  for (const Rank rank : {Rank(0), Rank(9), Rank(63), Rank(64)}) insert(set, rank);
  expect_bytes(encoded(set, 65), {0x80, 0, 0, 0, 0, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0, 0, 1});
  expect_bytes(encoded(all_but(1000, {Rank(1), Rank(0x203)}), 1000),
               {0, 1, 2, 3, 0xff, 0xff, 0xff, 0xff});
}

TEST(Contributors, AreABitmapWhereReleasesBeforeKnowTheJob) {
  EXPECT_EQ(contributor_bytes(4, 3), 8U);
  EXPECT_EQ(contributor_bytes(256, 255), 32U);
  EXPECT_EQ(contributor_room(256, 0), 32U);
}

TEST(Contributors, OfLargerJobsAreAListOrABitmapWhicheverIsShorter) {
  EXPECT_EQ(contributor_bytes(257, 256), 8U);
  EXPECT_EQ(contributor_bytes(1024, 1020), 8U);
  EXPECT_EQ(contributor_bytes(1024, 1019), 16U);
  EXPECT_EQ(contributor_bytes(1024, 964), 120U);
  EXPECT_EQ(contributor_bytes(1024, 960), 128U);
  EXPECT_EQ(contributor_bytes(1024, 1), 128U);
  EXPECT_EQ(contributor_room(1024, 0), 0U) << "no sum of it is partial";
  EXPECT_EQ(contributor_room(1024, 1000), 48U);
  EXPECT_EQ(contributor_room(1024, 512), 128U);
}

TEST(Contributors, ComesBackForAnyNumberOfWorkers) {
  for (uint32_t workers = 3; workers <= kMaxWorkers; ++workers) {
    WorkerSet few{};
    insert(few, Rank(static_cast<uint16_t>(workers - 1)));
    insert(few, Rank(static_cast<uint16_t>(workers / 2)));
    for (const WorkerSet& set : {few, complement(few, workers)}) {
      const auto decoded = decode_contributors(encoded(set, workers), workers, count(set));
      ASSERT_TRUE(decoded) << workers;
      EXPECT_EQ(*decoded, set) << workers;
    }
    EXPECT_EQ(count(complement(few, workers)) + count(few), workers);
  }
}

TEST(Contributors, ComesBackWhoeverIsMissing) {
  Random random(1);
  for (uint32_t absent = 1; absent < kMaxWorkers; ++absent) {
    WorkerSet set = complement(WorkerSet{}, kMaxWorkers);
    while (count(set) > kMaxWorkers - absent) {
      erase(set, Rank(static_cast<uint16_t>(random.below(kMaxWorkers))));
    }
    const auto decoded = decode_contributors(encoded(set, kMaxWorkers), kMaxWorkers, count(set));
    ASSERT_TRUE(decoded) << absent;
    EXPECT_EQ(*decoded, set) << absent;
  }
}

TEST(Contributors, RefusesARankThatTheJobLacks) {
  WorkerSet set{};
  insert(set, 5);
  const auto bytes = encoded(set, 6);
  EXPECT_TRUE(decode_contributors(bytes, 6, 1));
  EXPECT_FALSE(decode_contributors(bytes, 5, 1));
  const auto list = encoded(all_but(1001, {Rank(1000)}), 1001);
  EXPECT_TRUE(decode_contributors(list, 1001, 1000));
  EXPECT_FALSE(decode_contributors(list, 1000, 999));
}

TEST(Contributors, RefusesAnotherNumberThanTheHeaderSays) {
  WorkerSet set{};
  insert(set, 5);
  EXPECT_FALSE(decode_contributors(encoded(set, 6), 6, 2));
  const auto list = encoded(all_but(1000, {Rank(3), Rank(4)}), 1000);
  EXPECT_TRUE(decode_contributors(list, 1000, 998));
  EXPECT_FALSE(decode_contributors(list, 1000, 999)) << "a rank where there is to be none";
  EXPECT_FALSE(decode_contributors(list, 1000, 997)) << "no rank where there is to be one";
}

TEST(Contributors, RefusesAListInAnotherOrder) {
  auto list = encoded(all_but(1000, {Rank(3), Rank(4)}), 1000);
  std::swap(list[1], list[3]);
  EXPECT_FALSE(decode_contributors(list, 1000, 998));
  list[1] = list[3];
  EXPECT_FALSE(decode_contributors(list, 1000, 998)) << "nobody is missing twice";
}

TEST(Contributors, RefusesAnotherLength) {
  const std::vector<std::byte> bytes(bitmap_bytes(65));
  EXPECT_TRUE(decode_contributors(bytes, 65, 0));
  EXPECT_FALSE(decode_contributors(bytes, 64, 0));
  EXPECT_FALSE(decode_contributors(bytes, 129, 0));
  EXPECT_FALSE(decode_contributors({}, 1, 0));
  EXPECT_FALSE(decode_contributors({}, 1000, 1000));
  // More than any job has.
  EXPECT_FALSE(decode_contributors(std::vector<std::byte>(136), 1088, 0));
}

}  // namespace
}  // namespace mercury
