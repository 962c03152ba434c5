#include "transport/flow/ack_tracker.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <random>
#include <set>
#include <vector>

namespace mercury {
namespace {

constexpr uint32_t kEvery = 8;
constexpr uint64_t kDelay = 500;

std::vector<NumberRange> report(AckTracker& tracker) {
  std::vector<NumberRange> ranges(AckTracker::kMaxRanges);
  ranges.resize(tracker.report(ranges));
  return ranges;
}

TEST(AckTracker, AcknowledgesEveryNthPacketOrAfterTheDelay) {
  AckTracker tracker(kEvery, kDelay);
  EXPECT_EQ(tracker.deadline_ns(), kNever);
  for (uint64_t n = 0; n + 1 < kEvery; ++n) tracker.on_received(n, true, false, 10 + n);
  EXPECT_FALSE(tracker.due(10 + kDelay - 1));
  EXPECT_TRUE(tracker.due(10 + kDelay));
  tracker.on_received(kEvery - 1, true, false, 20);
  EXPECT_TRUE(tracker.due(20));
  const auto ranges = report(tracker);
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].first, 0U);
  EXPECT_EQ(ranges[0].last, kEvery - 1);
  EXPECT_EQ(tracker.deadline_ns(), kNever);
}

TEST(AckTracker, AcknowledgesAtOnceWhenAskedOrOutOfOrder) {
  AckTracker tracker(kEvery, kDelay);
  tracker.on_received(5, true, true, 1);
  EXPECT_TRUE(tracker.due(1));
  report(tracker);
  tracker.on_received(7, true, false, 2);  // 6 is missing
  EXPECT_TRUE(tracker.due(2));
  report(tracker);
  tracker.on_received(6, true, false, 3);  // fills the gap
  EXPECT_TRUE(tracker.due(3));
  EXPECT_EQ(tracker.ranges(), 1U);
}

// A forger who has found a session may claim any number; the next acknowledgement would say it.
TEST(AckTracker, ANumberThatNoPeerCanHaveComeToIsNotNew) {
  AckTracker tracker(kEvery, kDelay);
  EXPECT_TRUE(tracker.is_new(uint64_t{1} << 63)) << "a peer begins where it likes";
  tracker.on_received(7, true, false, 1);
  const uint64_t far = 7 + AckTracker::kMostAhead;
  EXPECT_TRUE(tracker.is_new(far));
  EXPECT_FALSE(tracker.is_far_ahead(far));
  for (const uint64_t number : {far + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    EXPECT_FALSE(tracker.is_new(number));
    EXPECT_TRUE(tracker.is_far_ahead(number));
    EXPECT_FALSE(tracker.on_received(number, true, true, 2));
  }
  EXPECT_FALSE(tracker.is_far_ahead(7)) << "that one was received";
  ASSERT_EQ(report(tracker).size(), 1U);
  EXPECT_TRUE(tracker.is_new(8));
}

class Missing : public testing::Test {
 protected:
  bool after(std::initializer_list<uint64_t> numbers) {
    for (const uint64_t number : numbers) acks_.on_received(number, true, false, 0);
    return acks_.take_missing();
  }
  AckTracker acks_{8, 1'000};
};

TEST_F(Missing, IsToldOnceItSeemsLost) {
  EXPECT_FALSE(after({5, 6, 7}));
  EXPECT_FALSE(after({9, 10}));
  EXPECT_TRUE(after({11}));
  EXPECT_FALSE(after({12, 13, 14})) << "again";
  EXPECT_FALSE(after({16, 18})) << "behind the first gap came two";
  EXPECT_TRUE(after({20}));
  EXPECT_TRUE(after({22})) << "of the next gap it is known now";
  EXPECT_TRUE(after({25, 26, 27, 30, 31, 32})) << "two at a time";
  EXPECT_FALSE(after({33}));
}

TEST_F(Missing, WhatIsFilledBeforeSomebodyAsksIsNone) {
  EXPECT_FALSE(after({5, 8, 9, 10, 11, 7, 6}));
  EXPECT_TRUE(after({20, 21, 22, 16})) << "the rest is still missing";
}

TEST_F(Missing, WhatIsFilledLateHidesNoLossAndIsNone) {
  EXPECT_TRUE(after({5, 8, 9, 10}));
  EXPECT_TRUE(after({6, 7, 12, 13, 14})) << "11";
  EXPECT_TRUE(after({20, 21, 22}));
  EXPECT_FALSE(after({17})) << "of one gap two were made";
  EXPECT_FALSE(after({15, 16, 18, 19, 23}));
  EXPECT_FALSE(after({11}));
}

TEST_F(Missing, WhatIsForgottenIsToldAndNotAgain) {
  for (uint64_t i = 0; i <= 3 * AckTracker::kMaxRanges; ++i)
    acks_.on_received(2 * i, true, false, 0);
  EXPECT_EQ(acks_.ranges(), AckTracker::kMaxRanges);
  EXPECT_TRUE(acks_.take_missing());
  EXPECT_FALSE(acks_.take_missing());
}

// Runs of a peer's packets take several paths: that one overtakes another is no loss.
TEST_F(Missing, FromSeveralPathsIsWhatHasNotComeForLong) {
  constexpr uint64_t kBear = 100;
  uint64_t now_ns = 0;
  const auto lasting_after = [&](std::initializer_list<uint64_t> numbers) {
    for (const uint64_t number : numbers) acks_.on_received(number, true, false, now_ns);
    return acks_.take_missing_for_long(now_ns += kBear / 2, kBear);
  };
  EXPECT_FALSE(lasting_after({5, 6, 7, 10, 11, 12, 13}));
  EXPECT_FALSE(lasting_after({8, 9}));
  EXPECT_FALSE(lasting_after({16, 17, 18, 14, 15})) << "all came";
  EXPECT_FALSE(lasting_after({22, 23, 24})) << "19 to 21";
  EXPECT_FALSE(lasting_after({19, 21}));
  EXPECT_TRUE(lasting_after({25})) << "20";
  EXPECT_FALSE(lasting_after({26}));
  EXPECT_FALSE(lasting_after({27}));
  EXPECT_FALSE(lasting_after({28})) << "it is known";
  EXPECT_FALSE(lasting_after({30, 31, 32}));
  EXPECT_FALSE(lasting_after({33}));
  EXPECT_TRUE(lasting_after({34})) << "29";
}

TEST_F(Missing, FromSeveralPathsIsWhatIsForgotten) {
  EXPECT_FALSE(after({0}));
  for (uint64_t i = 1; i <= 4; ++i) acks_.on_received(2 * i, true, false, 0);
  EXPECT_FALSE(acks_.take_missing_for_long(0, 100));
  for (uint64_t i = 5; i <= 3 * AckTracker::kMaxRanges; ++i) {
    acks_.on_received(2 * i, true, false, 0);
  }
  EXPECT_TRUE(acks_.take_missing_for_long(100, 100));
}

TEST(AckTracker, PacketsThatElicitNothingLeaveNoGapAndNoDeadline) {
  AckTracker tracker(kEvery, kDelay);
  tracker.on_received(1, true, false, 1);
  report(tracker);
  tracker.on_received(2, false, false, 2);
  EXPECT_EQ(tracker.deadline_ns(), kNever);
  tracker.on_received(3, true, false, 3);
  EXPECT_FALSE(tracker.due(4));
  EXPECT_EQ(tracker.ranges(), 1U);
}

TEST(AckTracker, LeavesARangeOutOnceItWasReportedOften) {
  AckTracker tracker(kEvery, kDelay);
  tracker.on_received(1, true, false, 1);
  tracker.on_received(3, true, false, 1);
  int reported = 0;
  for (int i = 0; i < 100; ++i) {
    const auto ranges = report(tracker);
    ASSERT_FALSE(ranges.empty());
    EXPECT_EQ(ranges[0].last, 3U) << "the highest range is always there";
    if (ranges.size() == 2) ++reported;
  }
  EXPECT_EQ(reported, 16);
  EXPECT_FALSE(tracker.is_new(1)) << "it is still known";
  tracker.on_received(2, true, false, 2);
  const auto ranges = report(tracker);
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].first, 1U);
}

TEST(AckTracker, ForgetsTheLowestRangeWhenThereAreTooManyGaps) {
  AckTracker tracker(kEvery, kDelay);
  for (uint64_t n = 0; n < 100; ++n) tracker.on_received(1000 + 2 * n, true, false, n);
  EXPECT_EQ(tracker.ranges(), AckTracker::kMaxRanges);
  EXPECT_FALSE(tracker.is_new(1000 + 2 * 99));
  EXPECT_TRUE(tracker.is_new(1000 + 2 * 99 - 1)) << "a recent gap may still be filled";
  EXPECT_FALSE(tracker.is_new(1001)) << "a forgotten gap counts as arrived";
  EXPECT_FALSE(tracker.on_received(1001, true, false, 200));
  EXPECT_FALSE(tracker.is_new(5)) << "a range below all others would be forgotten next";
  EXPECT_EQ(tracker.ranges(), AckTracker::kMaxRanges);
}

TEST(AckTracker, WorksAtTheEndsOfTheNumbers) {
  for (const uint64_t base :
       {uint64_t{0}, (uint64_t{1} << 32) - 4, (uint64_t{1} << 63) - 4, ~uint64_t{0} - 7}) {
    SCOPED_TRACE(base);
    AckTracker tracker(kEvery, kDelay);
    for (const uint64_t step : {1, 0, 3, 7, 6, 2, 5, 4}) {
      EXPECT_TRUE(tracker.is_new(base + step));
      EXPECT_TRUE(tracker.on_received(base + step, true, false, 1));
      EXPECT_FALSE(tracker.on_received(base + step, true, false, 1));
    }
    const auto ranges = report(tracker);
    ASSERT_EQ(ranges.size(), 1U);
    EXPECT_EQ(ranges[0].first, base);
    EXPECT_EQ(ranges[0].last, base + 7);
  }
}

TEST(AckTracker, NothingFollowsTheLargestNumber) {
  const uint64_t largest = ~uint64_t{0};
  AckTracker tracker(kEvery, kDelay);
  EXPECT_TRUE(tracker.on_received(largest, true, false, 1));
  EXPECT_TRUE(tracker.on_received(0, true, false, 2));
  EXPECT_FALSE(tracker.on_received(largest, true, false, 3));
  EXPECT_FALSE(tracker.on_received(0, true, false, 4));
  const auto ranges = report(tracker);
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].first, largest);
  EXPECT_EQ(ranges[0].last, largest);
  EXPECT_EQ(ranges[1].first, 0U);
  EXPECT_EQ(ranges[1].last, 0U);
}

TEST(AckTracker, AgreesWithASetUnderRandomOrder) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    AckTracker tracker(kEvery, kDelay);
    std::set<uint64_t> model;
    uint64_t top = 100;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 20 != 0) ++top;
      const uint64_t number = top - random() % 24;  // too near for more than 64 gaps
      const bool fresh = model.insert(number).second;
      ASSERT_EQ(tracker.is_new(number), fresh) << number;
      ASSERT_EQ(tracker.on_received(number, true, false, 1), fresh);
      uint64_t above = ~uint64_t{0};
      for (const NumberRange& range : report(tracker)) {
        ASSERT_LE(range.first, range.last);
        ASSERT_LT(range.last, above);
        above = range.first;
        for (uint64_t n = range.first; n <= range.last; ++n) ASSERT_TRUE(model.contains(n));
        ASSERT_FALSE(model.contains(range.last + 1));
        ASSERT_TRUE(range.first == 0 || !model.contains(range.first - 1));
      }
      if (tracker.ranges() > 50) break;
    }
  }
}

}  // namespace
}  // namespace mercury
