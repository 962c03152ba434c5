// Which parts of a range have been covered, beside one flag for each byte.
#include "apps/stackd/covered.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace mercury {
namespace {

using Ranges = std::vector<Covered::Range>;

TEST(Covered, GivesWhatWasNotCovered) {
  Covered covered;
  EXPECT_EQ(covered.add(10, 20), (Ranges{{10, 20}}));
  EXPECT_EQ(covered.add(10, 20), Ranges());
  EXPECT_EQ(covered.add(30, 40), (Ranges{{30, 40}}));
  EXPECT_EQ(covered.add(5, 45), (Ranges{{5, 10}, {20, 30}, {40, 45}}));
  EXPECT_EQ(covered.add(5, 45), Ranges());
  EXPECT_EQ(covered.add(45, 46), (Ranges{{45, 46}}));
  EXPECT_EQ(covered.add(7, 7), Ranges());
}

TEST(Covered, EqualsFlagsOverManySeeds) {
  constexpr uint64_t kSize = 64;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    Covered covered;
    std::vector<bool> flags(kSize);
    for (int step = 0; step < 40; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      const uint64_t begin = random() % kSize;
      const uint64_t end = begin + random() % (kSize + 1 - begin);
      Ranges expected;
      for (uint64_t at = begin; at < end; ++at) {
        if (flags[at]) continue;
        flags[at] = true;
        if (expected.empty() || expected.back().second != at) expected.emplace_back(at, at);
        ++expected.back().second;
      }
      ASSERT_EQ(covered.add(begin, end), expected);
    }
  }
}

}  // namespace
}  // namespace mercury
