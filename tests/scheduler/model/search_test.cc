#include "scheduler/model/search.h"

#include <gtest/gtest.h>

#include <map>

#include "scheduler/model/equations.h"
#include "tests/scheduler/model/chains.h"

namespace mercury::model {
namespace {

// Five layers like VGG's: the last ones large.
const Chain kFiveLayers = {layer_of(0.02, 0.01, 1'000'000, 0), layer_of(0.02, 0.01, 5'000'000, 1),
                           layer_of(0.02, 0.01, 9'000'000, 2), layer_of(0.01, 0.005, 80'000'000, 3),
                           layer_of(0.01, 0.005, 20'000'000, 4)};
constexpr Rates kTenGigabit = {1.25e9, 1.25e9};

TEST(Tune, FindsTheBestOfItsGrid) {
  const Policy base = policy_of("bytescheduler:startup=300us");
  const auto candidates = tune(kFiveLayers, kTenGigabit, base);
  ASSERT_TRUE(candidates);
  EXPECT_EQ(candidates->size(), tuning_grid(base).size());
  const double best = candidates->front().iteration_s;
  for (const Candidate& candidate : *candidates) {
    EXPECT_EQ(candidate.iteration_s,
              predict(kFiveLayers, kTenGigabit, candidate.policy)->iteration_s);
    EXPECT_EQ(candidate.policy.startup_ns, base.startup_ns);
    EXPECT_TRUE(check_policy(candidate.policy));
    EXPECT_GE(candidate.iteration_s, best);
  }
  EXPECT_GT(best, optimum_s(kFiveLayers, kTenGigabit));
  EXPECT_LT(best, predict(kFiveLayers, kTenGigabit, base)->iteration_s);
}

TEST(Tune, NamesTheBestOfEachSize) {
  const auto all = tune(kFiveLayers, kTenGigabit, policy_of("bytescheduler"));
  ASSERT_TRUE(all);
  const std::vector<Candidate> best = best_of_each_size(*all);
  EXPECT_EQ(best.front().policy, all->front().policy);
  std::map<uint64_t, double> least;
  for (const Candidate& each : *all) {
    least.try_emplace(each.policy.partition_bytes, each.iteration_s);
    EXPECT_GE(each.iteration_s, least[each.policy.partition_bytes]);
  }
  ASSERT_EQ(best.size(), least.size());
  for (size_t n = 0; n < best.size(); ++n) {
    EXPECT_EQ(best[n].iteration_s, least.at(best[n].policy.partition_bytes));
    EXPECT_GE(best[n].iteration_s, best[n > 0 ? n - 1 : 0].iteration_s);
  }
}

TEST(Tune, LeavesAPolicyWithoutPartitionsAlone) {
  const auto candidates = tune(kFiveLayers, kTenGigabit, policy_of("wfbp"));
  ASSERT_EQ(candidates->size(), 1U);
  EXPECT_EQ(candidates->front().policy, policy_of("wfbp"));
  EXPECT_FALSE(tune({}, kTenGigabit, policy_of("p3")));
}

TEST(FactorForSpeed, IsWhereTheSpeedIsReached) {
  for (const char* name : {"mercury", "mercury-fifo", "wfbp", "wfbp-eq7"}) {
    const Policy policy = policy_of(name);
    const Result<double> factor = factor_for_speed(kFiveLayers, kTenGigabit, policy, 0.9);
    ASSERT_TRUE(factor) << name;
    const auto speed = [&](double f) {
      return oracle_s(kFiveLayers) /
             predict(kFiveLayers, {kTenGigabit.push * f, kTenGigabit.pull * f}, policy)
                 ->iteration_s;
    };
    EXPECT_GE(speed(*factor), 0.9) << name;
    EXPECT_LT(speed(*factor * 0.99999), 0.9) << name;
  }
}

TEST(FactorForSpeed, SaysWhenNoBandwidthIsEnough) {
  const auto factor =
      factor_for_speed(kFiveLayers, kTenGigabit, policy_of("bytescheduler:startup=1s"), 0.9);
  ASSERT_FALSE(factor);
  EXPECT_EQ(factor.error().code, Errc::kUnsupported);
  EXPECT_EQ(factor.error().message,
            "bytescheduler:partition=4MB,credit=20MB,startup=1s does not reach a speed of 0.900000 "
            "at any bandwidth");
}

}  // namespace
}  // namespace mercury::model
