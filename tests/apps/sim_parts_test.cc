// What the simulator is made of, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "apps/sim/link_schedule.h"

namespace mercury::simulator {
namespace {

TEST(LinkSchedule, FollowsItsSteps) {
  LinkSchedule schedule = *LinkSchedule::parse("10Gbps,2s:5Gbps,4s:1Gbps");
  Random random(1);
  EXPECT_EQ(schedule.bps(), 10'000'000'000U);
  EXPECT_EQ(schedule.change_ns(), 2'000'000'000U);
  schedule.advance(random);
  EXPECT_EQ(schedule.bps(), 5'000'000'000U);
  EXPECT_EQ(schedule.change_ns(), 4'000'000'000U);
  schedule.advance(random);
  EXPECT_EQ(schedule.bps(), 1'000'000'000U);
  EXPECT_EQ(schedule.change_ns(), kNever);
}

TEST(LinkSchedule, DrawsFromItsRange) {
  LinkSchedule schedule = *LinkSchedule::parse("random:1Gbps-2Gbps/10ms");
  Random random(1);
  schedule.begin(random);
  uint64_t least = kNever, most = 0;
  for (uint64_t i = 1; i <= 200; ++i) {
    EXPECT_EQ(schedule.change_ns(), i * 10'000'000);
    least = std::min(least, schedule.bps());
    most = std::max(most, schedule.bps());
    schedule.advance(random);
  }
  EXPECT_GE(least, 1'000'000'000U);
  EXPECT_LT(least, 1'100'000'000U);
  EXPECT_LE(most, 2'000'000'000U);
  EXPECT_GT(most, 1'900'000'000U);
}

TEST(LinkRule, NamesLinks) {
  const LinkRule one = *LinkRule::parse("worker3.up=1Gbps");
  EXPECT_TRUE(one.is_for(true, 3, true));
  EXPECT_FALSE(one.is_for(true, 3, false));
  EXPECT_FALSE(one.is_for(true, 2, true));
  EXPECT_FALSE(one.is_for(false, 3, true));
  const LinkRule servers = *LinkRule::parse("servers=1Gbps");
  EXPECT_TRUE(servers.is_for(false, 200, true));
  EXPECT_TRUE(servers.is_for(false, 0, false));
  EXPECT_FALSE(servers.is_for(true, 0, false));
  const LinkRule all = *LinkRule::parse("all.down=1Gbps,1ms:2Gbps");
  EXPECT_TRUE(all.is_for(true, 7, false));
  EXPECT_FALSE(all.is_for(false, 7, true));
}

}  // namespace
}  // namespace mercury::simulator
