#include "transport/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace mercury {
namespace {

TEST(Random, SplitMixGivesThePublishedNumbers) {
  uint64_t state = 1234567;
  EXPECT_EQ(split_mix(state), 6457827717110365317u);
  EXPECT_EQ(split_mix(state), 3203168211198807973u);
  EXPECT_EQ(split_mix(state), 9817491932198370423u);
}

TEST(Random, SameSeedSameNumbersAndAnotherSeedOthers) {
  Random a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t number = a.next();
    EXPECT_EQ(number, b.next());
    differs |= number != c.next();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, BelowIsUniformAndBounded) {
  Random random(1);
  std::array<int, 7> seen{};
  constexpr int kDraws = 70'000;
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t number = random.below(7);
    ASSERT_LT(number, 7u);
    ++seen[number];
  }
  // Five standard deviations of a binomial with n = 70,000 and p = 1/7.
  const double slack = 5 * std::sqrt(kDraws * (1.0 / 7) * (6.0 / 7));
  for (int count : seen) EXPECT_NEAR(count, kDraws / 7, slack);
  EXPECT_EQ(random.below(0), 0u);
  EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, ChanceHitsItsRateAndDrawsNothingAtZero) {
  Random random(3);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) hits += random.chance(0.03);
  EXPECT_NEAR(hits, 3000, 5 * std::sqrt(100'000 * 0.03 * 0.97));
  Random a(5), b(5);
  EXPECT_FALSE(a.chance(0));
  EXPECT_EQ(a.next(), b.next());
}

}  // namespace
}  // namespace mercury
