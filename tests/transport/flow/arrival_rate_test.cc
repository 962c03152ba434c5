#include "transport/flow/arrival_rate.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace mercury {
namespace {

constexpr uint32_t kArrivedBytes = 1'500;
constexpr uint64_t kSecondNs = 1'000'000'000;

class ArrivalRateTest : public ::testing::Test {
 protected:
  // Frames one by one, as a link of this rate carries them, or `batch` of them at once.
  void receive(uint64_t bytes_per_second, uint64_t for_ns, uint32_t batch = 1) {
    const uint64_t end_ns = now_ns + for_ns;
    while (now_ns < end_ns) {
      now_ns += uint64_t{batch} * kArrivedBytes * kSecondNs / bytes_per_second;
      for (uint32_t i = 0; i < batch; ++i) changes += rate.add(kArrivedBytes, now_ns) ? 1 : 0;
    }
  }
  double measured() const { return static_cast<double>(rate.bytes_per_second()); }

  ArrivalRate rate;
  uint64_t now_ns = 3 * kSecondNs;
  int changes = 0;
};

TEST_F(ArrivalRateTest, IsWhatArrivesInTime) {
  receive(1'250'000'000, 900'000);
  EXPECT_EQ(rate.bytes_per_second(), 0U);  // too short to say
  receive(1'250'000'000, 5'000'000);
  EXPECT_NEAR(measured(), 1.25e9, 1.25e7);
  EXPECT_GE(changes, 1);
}

TEST_F(ArrivalRateTest, FramesThatAreFoundAtOnceCountAsOfTheTimeBetween) {
  receive(1'250'000'000, 200'000'000, 64);
  EXPECT_NEAR(measured(), 1.25e9, 0.1 * 1.25e9);
}

TEST_F(ArrivalRateTest, ASlowLinkIsMeasuredOverMoreThanAFewFrames) {
  receive(12'500, 20 * kSecondNs);  // a frame in 120 ms
  EXPECT_NEAR(measured(), 12'500, 1'000);
}

TEST_F(ArrivalRateTest, MoreIsBelievedAtOnceAndLessOnlyAfterTwoPeriods) {
  receive(125'000'000, 10'000'000);
  receive(1'250'000'000, 3'000'000);
  EXPECT_NEAR(measured(), 1.25e9, 1.25e8);
  receive(125'000'000, 240'000'000);
  EXPECT_NEAR(measured(), 1.25e9, 1.25e8);
  receive(125'000'000, 300'000'000);
  EXPECT_NEAR(measured(), 1.25e8, 1.25e7);
}

// Who sends nothing says nothing of the link.
TEST_F(ArrivalRateTest, APauseLeavesWhatWasSeen) {
  receive(1'250'000'000, 10'000'000);
  now_ns += 100 * kSecondNs;
  receive(1'250'000'000, 100'000);
  EXPECT_NEAR(measured(), 1.25e9, 1.25e8);
  receive(1'250'000'000, 600'000'000);
  EXPECT_NEAR(measured(), 1.25e9, 1.25e8);
}

}  // namespace
}  // namespace mercury
