#include "transport/flow/adaptive_window.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

constexpr uint64_t kRtt = 100'000;
constexpr uint32_t kFrame = 1000;

class AdaptiveWindowTest : public ::testing::Test {
 protected:
  explicit AdaptiveWindowTest(AdaptiveWindowConfig config = {1 << 20, 500'000}) : window(config) {
    window.set_frame_bytes(kFrame);
  }
  // One round trip in which a full window is acknowledged; `marked` and `lost` are shares.
  // Of what it takes `bounded_ns` may have been the hosts'.
  void round(double marked = 0, double lost = 0, uint64_t queued_ns = 0, bool full = true,
             uint64_t bounded_ns = 0) {
    const uint64_t bytes = window.window_bytes();
    const auto packets = static_cast<uint32_t>(std::max<uint64_t>(bytes / kFrame, 1));
    const uint64_t sent_ns = now_ns;
    now_ns += kRtt + queued_ns;
    for (uint32_t i = 0; i < static_cast<uint32_t>(lost * packets); ++i) {
      window.on_lost(false, now_ns);
    }
    AckSample sample;
    sample.bytes = bytes;
    sample.packets = packets;
    sample.marked = static_cast<uint32_t>(marked * packets + 0.5);
    sample.newest_sent_ns = sent_ns;
    sample.rtt_ns = kRtt + queued_ns - bounded_ns;
    sample.rtt_most_ns = kRtt + queued_ns;
    sample.in_flight_bytes = full ? bytes : 0;
    sample.now_ns = now_ns;
    window.on_ack(sample);
  }
  void rounds(int count, double marked = 0, double lost = 0, uint64_t queued_ns = 0) {
    for (int i = 0; i < count; ++i) round(marked, lost, queued_ns);
  }
  AdaptiveWindow window;
  uint64_t now_ns = 1'000'000;
};

TEST_F(AdaptiveWindowTest, DoublesUntilTheFirstMarkThenGrowsByAFrame) {
  EXPECT_EQ(window.window_bytes(), AdaptiveWindow::kFirstBytes);
  rounds(3);
  EXPECT_EQ(window.window_bytes(), 8 * AdaptiveWindow::kFirstBytes);
  round(0.5);
  EXPECT_FALSE(window.starting());
  const uint64_t after = window.window_bytes();
  EXPECT_LT(after, 8 * AdaptiveWindow::kFirstBytes);
  rounds(4);
  EXPECT_NEAR(static_cast<double>(window.window_bytes()), static_cast<double>(after + 4 * kFrame),
              4);
}

TEST_F(AdaptiveWindowTest, ReachesTheLargestAndNoMore) {
  rounds(20);
  EXPECT_EQ(window.window_bytes(), uint64_t{1} << 20);
}

TEST_F(AdaptiveWindowTest, GrowsOnlyWhileItIsWhatLimits) {
  for (int i = 0; i < 20; ++i) round(0, 0, 0, false);
  EXPECT_EQ(window.window_bytes(), AdaptiveWindow::kFirstBytes);
}

TEST_F(AdaptiveWindowTest, FewMarksTakeLittleAndManyTakeHalf) {
  rounds(4);
  rounds(40, 0.1);
  EXPECT_NEAR(window.marked_share(), 0.1, 0.05);
  const uint64_t before = window.window_bytes();
  round(0.1);
  EXPECT_GT(window.window_bytes(), before * 9 / 10);
  rounds(40, 1);
  EXPECT_NEAR(window.marked_share(), 1, 0.05);
}

TEST_F(AdaptiveWindowTest, APathTenTimesSlowerAndFasterIsFollowedWithinTwentyRounds) {
  rounds(5);
  round(0.5);
  const uint64_t before = window.window_bytes();
  int down = 0;
  for (; window.window_bytes() > before / 10; ++down) round(1);
  EXPECT_LE(down, 20);
  int up = 0;
  for (; window.window_bytes() < before * 9 / 10; ++up) round();
  EXPECT_LE(up, 20);
}

TEST_F(AdaptiveWindowTest, GoesBelowOneFrameAndComesBack) {
  rounds(100, 1);
  EXPECT_EQ(window.window_bytes(), kFrame / AdaptiveWindow::kLeastFraction);
  rounds(12);
  EXPECT_GT(window.window_bytes(), uint64_t{kFrame});
}

TEST_F(AdaptiveWindowTest, AStandingQueueIsTakenBackAScheduledOutHostIsNot) {
  rounds(4);
  const uint64_t before = window.window_bytes();
  rounds(3, 0, 0, 400'000);  // below the target
  EXPECT_GE(window.window_bytes(), before);
  rounds(40, 0, 0, 5'000'000);
  EXPECT_LE(window.window_bytes(), 4 * kFrame + kFrame);
  EXPECT_GE(window.window_bytes(), 2 * kFrame) << "delay alone goes no lower";
}

// What hosts may have taken is neither the network's queue nor a shorter way through it.
TEST_F(AdaptiveWindowTest, WhatTheHostsMayHaveWaitedCutsNothingAndMakesNoPathShorter) {
  rounds(10);
  const uint64_t before = window.window_bytes();
  for (int i = 0; i < 20; ++i) round(0, 0, 5'000'000, true, 5'000'000);
  EXPECT_GE(window.window_bytes(), before);
  for (int i = 0; i < 20; ++i) round(0, 0, 0, true, kRtt - 1);
  EXPECT_EQ(window.base_rtt_ns(), kRtt);
  round(0, 0, 5'000'000, true, 4'000'000);
  EXPECT_LT(window.window_bytes(), before) << "the rest is the network's";
}

TEST_F(AdaptiveWindowTest, RandomLossIsNotObeyedWhereNothingQueues) {
  rounds(4);
  const uint64_t before = window.window_bytes();
  rounds(20, 0, 0.05);
  EXPECT_GE(window.window_bytes(), before);
}

TEST_F(AdaptiveWindowTest, LossBesideAQueueIsObeyedWhereThePathDoesNotMark) {
  rounds(4);
  const uint64_t before = window.window_bytes();
  round(0, 0.05, 200'000);
  EXPECT_LT(window.window_bytes(), before * 8 / 10);
}

TEST_F(AdaptiveWindowTest, OnAPathThatMarksLossIsObeyedOnlyInMasses) {
  rounds(4);
  round(0.1);
  rounds(2);
  uint64_t before = window.window_bytes();
  rounds(2, 0, 0.05, 200'000);
  EXPECT_GE(window.window_bytes(), before);
  before = window.window_bytes();
  rounds(6, 0, 0.5, 200'000);
  EXPECT_LT(window.window_bytes(), before / 2);
}

TEST_F(AdaptiveWindowTest, APathThatIsAnotherAndMarksNothingIsBelievedInTime) {
  rounds(4);
  round(0.1);
  const auto seconds = [this](int count) {
    for (int i = 0; i < count; ++i) {
      now_ns += 1'000'000'000;
      round(0, 0, 0, false);
    }
  };
  uint64_t before = 0;
  for (int i = 0; i < 2; ++i) {  // after 50 s, and 100
    seconds(50);
    before = window.window_bytes();
    round(0, 0.05, 200'000);
    EXPECT_GE(window.window_bytes(), before) << "it may still be the path that marks";
  }
  seconds(40);
  before = window.window_bytes();
  round(0, 0.05, 200'000);
  EXPECT_LT(window.window_bytes(), before * 8 / 10);
}

TEST_F(AdaptiveWindowTest, SilenceBeginsAnew) {
  rounds(6);
  const uint64_t before = window.window_bytes();
  window.on_lost(true, now_ns);
  EXPECT_EQ(window.window_bytes(), AdaptiveWindow::kFirstBytes);
  EXPECT_TRUE(window.starting());
  rounds(40);
  EXPECT_GE(window.window_bytes(), before);
}

TEST_F(AdaptiveWindowTest, APathThatGotLongerIsBelievedInTime) {
  rounds(3);
  EXPECT_EQ(window.base_rtt_ns(), kRtt);
  const uint64_t until_ns = now_ns + 130'000'000'000;
  while (now_ns < until_ns) {
    now_ns += 1'000'000'000;
    round(0, 0, 5'000'000);
  }
  EXPECT_EQ(window.base_rtt_ns(), kRtt + 5'000'000);
}

}  // namespace
}  // namespace mercury
