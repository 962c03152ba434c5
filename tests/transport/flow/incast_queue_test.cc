#include "transport/flow/incast_queue.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

constexpr uint64_t kConfigured = 128 * 1024;
constexpr uint64_t kLongest = 100 * kConfigured;
constexpr uint64_t kCarried = 1'000'000;
constexpr uint64_t kEpochNs = 1'000'000;

class IncastQueueTest : public ::testing::Test {
 protected:
  // `load`: how much of what the link could carry arrives.
  void measure(double load, int count = 1) {
    for (int i = 0; i < count; ++i) {
      now_ns += kEpochNs;
      queue.on_signs(marked, missed, senders.active, now_ns);
      queue.on_measured(static_cast<uint64_t>(load * kCarried), kCarried, senders, now_ns);
    }
  }

  IncastQueue queue{kConfigured, kLongest};
  IncastQueue::Senders senders{2, 2, 2, 9'000};
  uint64_t now_ns = 1'000'000;
  bool marked = false;
  bool missed = false;
};

TEST_F(IncastQueueTest, GrowsToTwiceForEachSenderWhoseOwnLinkIsDivided) {
  measure(1, 1000);
  EXPECT_EQ(queue.bytes(), 4 * kConfigured);
  senders.divided = 8;
  measure(1, 1000);
  EXPECT_EQ(queue.bytes(), 16 * kConfigured);
}

// Who comes later may be others, whose paths hold no more than is configured.
TEST_F(IncastQueueTest, WhatItHasGrownToGoesWithThoseForWhomItDid) {
  senders = {16, 16, 16, 9'000};
  measure(1, 1000);
  ASSERT_EQ(queue.bytes(), 32 * kConfigured);
  senders = {2, 2, 2, 9'000};
  measure(1);
  EXPECT_EQ(queue.bytes(), 24 * kConfigured);
  measure(1, 20);
  EXPECT_EQ(queue.bytes(), 4 * kConfigured);
  senders.divided = 0;
  measure(1, 20);
  EXPECT_EQ(queue.bytes(), kConfigured);
}

TEST_F(IncastQueueTest, ASmallerPartOfTheLinkHasAShorterQueue) {
  senders.divided = 16;
  measure(1, 1000);
  ASSERT_EQ(queue.bytes(), 32 * kConfigured);
  queue.set_longest(10 * kConfigured);
  EXPECT_EQ(queue.bytes(), 32 * kConfigured) << "what is measured may be less for a while";
  queue.bound(10 * kConfigured);
  EXPECT_EQ(queue.bytes(), 10 * kConfigured);
  queue.bound(kConfigured / 2);
  EXPECT_EQ(queue.bytes(), kConfigured);
  measure(1, 10);
  queue.bound(40 * kConfigured);
  EXPECT_EQ(queue.bytes(), 32 * kConfigured) << "what was learnt of the path stays";
}

// They fill this link whatever waits before it; more would only wait longer.
TEST_F(IncastQueueTest, DoesNotGrowForSendersWithLinksOfTheirOwn) {
  senders = {64, 64, 0, 9'000};
  measure(1, 1000);
  EXPECT_EQ(queue.bytes(), kConfigured);
}

TEST_F(IncastQueueTest, NeverGrowsBeyondWhatSendersTakeForCongestion) {
  IncastQueue slow(kConfigured, 3 * kConfigured);
  IncastQueue slower(kConfigured, kConfigured / 2);
  for (int i = 0; i < 1000; ++i) {
    now_ns += kEpochNs;
    slow.on_measured(kCarried, kCarried, senders, now_ns);
    slower.on_measured(kCarried, kCarried, senders, now_ns);
  }
  EXPECT_EQ(slow.bytes(), 3 * kConfigured);
  EXPECT_EQ(slower.bytes(), kConfigured);
}

TEST_F(IncastQueueTest, WhatWaitsElsewhereMayBeInFlightWhileTheLinkIsNotFull) {
  senders.divided = 0;
  measure(0.4, 1000);
  EXPECT_EQ(queue.bytes(), 5 * kConfigured);
  const uint64_t before = queue.bytes();
  measure(1);
  EXPECT_EQ(before - queue.bytes(), kConfigured);  // a quarter of four
  measure(1, 100);
  EXPECT_LT(queue.bytes(), kConfigured + 10);
}

TEST_F(IncastQueueTest, NobodySaysNothingAboutWhatWaitsElsewhere) {
  measure(0, 1000);
  EXPECT_EQ(queue.bytes(), kConfigured);
}

TEST_F(IncastQueueTest, NothingWaitsElsewhereWhereAFrameIsMarkedOrMissing) {
  measure(0.4, 1000);
  marked = true;
  measure(0.4);
  EXPECT_LE(queue.bytes(), kConfigured);
  EXPECT_TRUE(queue.held(now_ns));
  marked = false;
  measure(0.4, 900);
  EXPECT_LE(queue.bytes(), kConfigured);
  measure(0.4, 1000);
  EXPECT_FALSE(queue.held(now_ns));
  EXPECT_GT(queue.bytes(), 4 * kConfigured);
  missed = true;
  measure(0.4);
  EXPECT_LE(queue.bytes(), kConfigured);
}

// The senders' own links are idle at times: what waits only stands.
TEST_F(IncastQueueTest, AQueueThatOnlyStandsGoesDownToWhatIsEnoughAndComesBackAtOnce) {
  measure(1, 1000);
  senders.enough_bytes = 40'000;
  senders.links_free = true;
  measure(1);
  EXPECT_EQ(queue.bytes(), 3 * kConfigured);
  measure(1, 20);
  EXPECT_EQ(queue.bytes(), 40'000U);
  measure(0.3);  // nobody sends much: nothing is learnt, and more may lie elsewhere
  measure(1, 100);
  EXPECT_NEAR(static_cast<double>(queue.bytes()), 40'000, 10);
  senders.links_free = false;
  measure(1);
  EXPECT_GE(queue.bytes(), 4 * kConfigured);
}

TEST_F(IncastQueueTest, AQueueIsNoShorterThanItWasWhereTheLinkIsNotFull) {
  senders = {2, 2, 0, 9'000, true, 40'000};
  measure(0.8, 100);
  EXPECT_GE(queue.bytes(), kConfigured);
}

// A path that marks or loses has its own rule.
TEST_F(IncastQueueTest, NothingIsTakenOfAQueueForStandingWhereFramesWereMarkedLately) {
  senders = {2, 2, 0, 9'000, true, 40'000};
  measure(1, 20);
  EXPECT_EQ(queue.bytes(), 40'000U);
  marked = true;
  measure(1);
  EXPECT_EQ(queue.bytes(), kConfigured - kConfigured / 4);
  marked = false;
  measure(1, 100);
  ASSERT_TRUE(queue.held(now_ns));
  EXPECT_EQ(queue.bytes(), kConfigured);
}

TEST_F(IncastQueueTest, NothingIsEverGrantedForAQueueOfNothing) {
  IncastQueue none(0, kLongest);
  for (int i = 0; i < 1000; ++i) {
    now_ns += kEpochNs;
    none.on_measured(i % 2 == 0 ? kCarried : kCarried / 3, kCarried, senders, now_ns);
    ASSERT_EQ(none.bytes(), 0U) << i;
  }
}

}  // namespace
}  // namespace mercury
