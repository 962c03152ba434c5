// What the simulator is made of, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "apps/sim/deadlines.h"
#include "apps/sim/link_schedule.h"

namespace mercury::simulator {
namespace {

TEST(Deadlines, FindsTheEarliestOfAny) {
  Random random(3);
  for (const size_t count : {1, 2, 3, 7, 64, 100}) {
    Deadlines deadlines(count);
    std::vector<uint64_t> plain(count, kNever);
    for (int step = 0; step < 2000; ++step) {
      const auto index = static_cast<size_t>(random.below(count));
      plain[index] = random.below(10) == 0 ? kNever : random.below(1000);
      deadlines.set(index, plain[index]);
      ASSERT_EQ(deadlines.earliest_ns(), *std::min_element(plain.begin(), plain.end()));
      ASSERT_EQ(deadlines.at(index), plain[index]);
    }
    std::vector<size_t> due;
    deadlines.take_due(500, [&](size_t index) { due.push_back(index); });
    std::vector<size_t> expected;
    for (size_t i = 0; i < count; ++i) {
      if (plain[i] <= 500) expected.push_back(i);
    }
    EXPECT_EQ(due, expected);
    EXPECT_GT(deadlines.earliest_ns(), 500U);
  }
}

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
