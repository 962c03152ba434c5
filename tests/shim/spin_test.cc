#include "shim/host/spin.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mercury {
namespace {

constexpr uint64_t kBase = 20'000;
constexpr uint64_t kLonger = Spin::kSocketTimes * kBase;
constexpr uint64_t kLately = 0;
constexpr uint64_t kLongAgo = Spin::kSocketsLatelyNs;

TEST(Spin, LooksForLongerWhereSocketsCarriedBytesLately) {
  Spin spin(kBase);
  EXPECT_TRUE(spin.looks_on(kBase - 1, kLongAgo));
  EXPECT_FALSE(spin.looks_on(kBase, kLongAgo));
  EXPECT_TRUE(spin.looks_on(kBase, kLately));
  EXPECT_TRUE(spin.looks_on(kLonger - 1, kLately));
  EXPECT_FALSE(spin.looks_on(kLonger, kLately));
}

TEST(Spin, NeverWhereItIsNotToSpin) { EXPECT_FALSE(Spin(0).looks_on(0, kLately)); }

// What finds nothing is tried again after 1, 3, 7 sleeps and so on, 63 at most.
TEST(Spin, LooksRarelyWhereItFindsNothing) {
  Spin spin(kBase);
  uint32_t doublings = 0;
  for (uint32_t tries = 0; tries < 10; ++tries) {
    ASSERT_TRUE(spin.looks_on(kBase, kLately)) << tries;
    spin.gave_up();
    doublings = std::min(doublings + 1, Spin::kMostDoublings);
    for (uint32_t rest = 1; rest < 1U << doublings; ++rest) {
      ASSERT_TRUE(spin.looks_on(kBase - 1, kLately));
      ASSERT_FALSE(spin.looks_on(kBase, kLately)) << tries << " " << rest;
      spin.gave_up();
    }
  }
  // Once it finds something it is as before.
  ASSERT_TRUE(spin.looks_on(kBase, kLately));
  spin.found();
  ASSERT_TRUE(spin.looks_on(kBase, kLately));
  spin.gave_up();
  EXPECT_FALSE(spin.looks_on(kBase, kLately));
  spin.gave_up();
  EXPECT_TRUE(spin.looks_on(kBase, kLately));
}

// Work that comes before it has looked for longer says nothing of that.
TEST(Spin, WorkThatComesAtOnceChangesNothing) {
  Spin spin(kBase);
  for (int tries = 0; tries < 2; ++tries) {
    ASSERT_TRUE(spin.looks_on(kBase, kLately));
    spin.gave_up();
    spin.found();
    EXPECT_FALSE(spin.looks_on(kBase, kLately));
    for (int rest = 0; rest < 1 + 2 * tries; ++rest) spin.gave_up();
  }
}

}  // namespace
}  // namespace mercury
