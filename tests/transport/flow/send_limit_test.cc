#include "transport/flow/send_limit.h"

#include <gtest/gtest.h>

#include "transport/wire/header.h"

namespace mercury {
namespace {

class SendLimitTest : public testing::Test {
 protected:
  static constexpr uint32_t kUnit = wire::kGrantUnitBytes;
  static constexpr uint32_t kWindow = 100 * kUnit;
  static constexpr uint64_t kRttNs = 1'000'000;
  static constexpr uint64_t kLongestNs = 250'000'000;  // between two frames

  void grant(uint16_t now_units, uint16_t idle_units) {
    limit_.take_grants(now_units, idle_units);
    limit_.update();
  }
  SendLimit limit_{FixedWindow(kWindow)};
  RttEstimator rtt_{kRttNs};
};

TEST_F(SendLimitTest, IsTheSmallerOfWindowAndGrant) {
  EXPECT_EQ(limit_.bytes(), kWindow);
  grant(40, 0);
  EXPECT_EQ(limit_.bytes(), 40 * kUnit);
  grant(400, 0);
  EXPECT_EQ(limit_.bytes(), kWindow);
  grant(0, 5);  // none for now, and none is no limit
  EXPECT_EQ(limit_.bytes(), kWindow);
}

TEST_F(SendLimitTest, MovesOnlyWhenItIsUpdated) {
  limit_.take_grants(40, 0);
  EXPECT_EQ(limit_.bytes(), kWindow);
  limit_.update();
  EXPECT_EQ(limit_.bytes(), 40 * kUnit);
}

TEST_F(SendLimitTest, FollowsCongestionControl) {
  SendLimit limit{AdaptiveWindow({1 << 20, 0})};
  const uint64_t first = limit.bytes();
  AckSample sample;
  sample.bytes = first;
  sample.packets = 10;
  sample.in_flight_bytes = first;
  for (uint64_t now_ns = kRttNs; now_ns < 5 * kRttNs; now_ns += kRttNs) {
    sample.now_ns = now_ns;
    sample.newest_sent_ns = now_ns - 1;
    sample.rtt_ns = 1;
    limit.on_ack(sample);
  }
  limit.update();
  const uint64_t grown = limit.bytes();
  EXPECT_GT(grown, first);
  limit.on_lost(true, 6 * kRttNs);
  limit.update();
  EXPECT_LT(limit.bytes(), grown);
}

TEST_F(SendLimitTest, ABurstBeginsWithTheIdleGrantAndNeverWithMore) {
  grant(40, 0);
  limit_.begin_burst();
  EXPECT_EQ(limit_.bytes(), 40 * kUnit);
  grant(40, 10);
  limit_.begin_burst();
  EXPECT_EQ(limit_.bytes(), 10 * kUnit);
  grant(4, 10);
  limit_.begin_burst();
  EXPECT_EQ(limit_.bytes(), 4 * kUnit);
  grant(0, 10);
  limit_.begin_burst();
  EXPECT_EQ(limit_.bytes(), 10 * kUnit);
}

TEST_F(SendLimitTest, AFrameAboveTheWindowStandsForItsShareOfARoundTrip) {
  EXPECT_EQ(limit_.interval_ns(3 * kWindow, rtt_), 3 * kRttNs);
  EXPECT_EQ(limit_.start_interval_ns(3 * kWindow, rtt_), 3 * kRttNs);
  EXPECT_EQ(limit_.idle_interval_ns(3 * kWindow), 0U);
}

TEST_F(SendLimitTest, AnEqualShareOfTheLinkBoundsWhatARoundTripBehindAQueueSays) {
  grant(1, 2);
  // A share of the link is kIdleGrantNs for each idle grant: 4 units, two of them.
  const uint64_t share_ns = 2 * wire::kIdleGrantNs;
  EXPECT_EQ(limit_.idle_interval_ns(4 * kUnit), share_ns);
  EXPECT_EQ(limit_.start_interval_ns(4 * kUnit, rtt_), share_ns);
  RttEstimator queue{kLongestNs};
  EXPECT_EQ(limit_.interval_ns(4 * kUnit, queue), share_ns + share_ns / 4);
  RttEstimator none{4};
  EXPECT_EQ(limit_.interval_ns(4 * kUnit, none), 16U);
  // Where nearly all send, both grants are the same, and the round trip says nothing.
  grant(2, 2);
  EXPECT_EQ(limit_.interval_ns(4 * kUnit, none), share_ns);
  // A window below the grant is the network's word, not the receiver's.
  SendLimit narrow{FixedWindow(kUnit)};
  narrow.take_grants(2, 2);
  narrow.update();
  EXPECT_EQ(narrow.interval_ns(4 * kUnit, none), 16U);
}

TEST_F(SendLimitTest, NoIntervalIsLongerThanTheLongestProbeTimeOut) {
  RttEstimator slow{1'000'000'000};
  EXPECT_EQ(limit_.interval_ns(2 * kWindow, slow), kLongestNs);
  SendLimit nothing{FixedWindow(0)};
  EXPECT_EQ(nothing.interval_ns(1000, rtt_), kLongestNs);
  grant(1, 1);
  EXPECT_EQ(limit_.start_interval_ns(UINT32_MAX, rtt_), kLongestNs);
  EXPECT_EQ(limit_.interval_ns(UINT32_MAX, rtt_), kLongestNs);
}

}  // namespace
}  // namespace mercury
