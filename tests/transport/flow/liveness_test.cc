#include "transport/flow/liveness.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

class LivenessTest : public testing::Test {
 protected:
  static constexpr uint64_t kTimeoutNs = 1000;
  LivenessTest() { liveness_.start(10'000); }
  Liveness liveness_{kTimeoutNs};
};

TEST_F(LivenessTest, IsLostAWholeTimeOutAfterTheLastFrame) {
  EXPECT_FALSE(liveness_.lost(10'999));
  liveness_.on_heard(10'500);
  EXPECT_FALSE(liveness_.lost(11'499));
  EXPECT_TRUE(liveness_.lost(11'500));
}

TEST_F(LivenessTest, AsksAtEachQuarterOfSilence) {
  EXPECT_EQ(liveness_.deadline_ns(), 10'250U);
  liveness_.on_timer(10'249);
  EXPECT_FALSE(liveness_.ask_due());
  liveness_.on_timer(10'250);
  EXPECT_TRUE(liveness_.ask_due());
  EXPECT_EQ(liveness_.deadline_ns(), 11'000U);  // it is asked: only the end is left
  liveness_.on_asked();
  EXPECT_FALSE(liveness_.ask_due());
  EXPECT_EQ(liveness_.deadline_ns(), 10'500U);  // without an answer again
  liveness_.on_heard(10'400);
  EXPECT_EQ(liveness_.deadline_ns(), 10'650U);
  liveness_.on_timer(10'650);
  EXPECT_TRUE(liveness_.ask_due());
}

TEST_F(LivenessTest, TheEndComesBeforeAQuestionThatWouldBeLater) {
  liveness_.on_timer(10'900);
  liveness_.on_asked();
  EXPECT_EQ(liveness_.deadline_ns(), 11'000U);
}

TEST_F(LivenessTest, MayBeAskedAtAnyTime) {
  liveness_.ask();
  EXPECT_TRUE(liveness_.ask_due());
  liveness_.on_asked();
  EXPECT_EQ(liveness_.deadline_ns(), 10'250U);  // not by its own clock
}

TEST_F(LivenessTest, TimeInWhichNobodyLookedCountsHalfAtMost) {
  liveness_.on_attended(10'900, 500);  // as long as half a time-out is no standstill
  EXPECT_TRUE(liveness_.lost(11'000));
  liveness_.on_attended(50'000, 501);
  EXPECT_FALSE(liveness_.lost(50'499));
  EXPECT_TRUE(liveness_.lost(50'500));
  liveness_.on_heard(60'000);
  liveness_.on_attended(60'100, 40'000);  // and what was heard after it is not forgotten
  EXPECT_FALSE(liveness_.lost(60'999));
}

}  // namespace
}  // namespace mercury
