// Chunks that wait too long for workers that do not push.
#include <gtest/gtest.h>

#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

constexpr uint64_t kStallNs = 8'000'000'000;
constexpr uint64_t kEighthNs = kStallNs / 8;

class StallTest : public testing::Test {
 protected:
  void make(uint16_t workers, uint16_t quorum = 0, uint64_t stall_ns = kStallNs) {
    ASSERT_TRUE(
        aggregator_.add_job(kJob, {.workers = workers,
                                   .terms = {.quorum = quorum,
                                             .patience_ms = to_ms(quorum > 0 ? kStallNs / 4 : 0),
                                             .stall_timeout_ms = to_ms(stall_ns)}}));
    for (uint16_t w = 0; w < workers; ++w) {
      ASSERT_TRUE(aggregator_.admit(kJob, Rank(w), incarnation_of(w)));
    }
    for (uint32_t tensor : {1, 2}) add_tensor(tensor);
  }
  void add_tensor(uint32_t tensor) {
    ASSERT_TRUE(aggregator_.add_tensor(
        kJob, {.tensor = TensorId(tensor), .numel = 4, .chunk_elems = 1, .chunk_count = 4}));
  }
  PushVerdict push(uint32_t worker, uint32_t round, uint32_t chunk, uint32_t tensor = 1,
                   uint32_t life = 0) {
    const Bytes elements = floats({1});
    Contribution c = Bench::contribution(worker, round, chunk, elements);
    c.tensor = TensorId(tensor);
    c.incarnation += life;
    c.now_ns = now_ns_;
    return aggregator_.push(c).verdict;
  }
  // Looks whenever the aggregator says that it wants to, as an engine does; what time completes is
  // complete before. Until something is reported, or `ns` have passed.
  bool stalls_within(uint64_t ns) {
    const uint64_t until_ns = now_ns_ + ns;
    for (;;) {
      uint32_t looks = 100;
      OverdueChunk due;
      while (aggregator_.take_overdue(now_ns_, looks, due)) {
      }
      looks = looks_;
      if (aggregator_.take_stalled(now_ns_, looks, stalled_)) return true;
      const uint64_t next_ns = std::min(aggregator_.next_stall_ns(), aggregator_.next_overdue_ns());
      if (next_ns > until_ns) break;
      now_ns_ = std::max(now_ns_ + 1, next_ns);
    }
    now_ns_ = until_ns;
    return false;
  }

  uint64_t now_ns_ = 5 * kStallNs;
  uint32_t looks_ = 100;
  StalledChunk stalled_;
  Aggregator aggregator_{PortMemory{[](void*, PayloadPin&) { return false; }}};
};

TEST_F(StallTest, NamesTheChunkThatHasWaitedLongestAndWhomItWaitsFor) {
  make(70);
  EXPECT_FALSE(stalls_within(3 * kStallNs)) << "nobody waits";
  for (uint32_t w = 0; w < 70; ++w) {
    if (w != 3 && w != 69) push(w, 1, 2, 2);
  }
  const uint64_t begin_ns = now_ns_;
  now_ns_ += kEighthNs;
  push(0, 1, 1);
  EXPECT_FALSE(stalls_within(kStallNs - kEighthNs - 1));
  ASSERT_TRUE(stalls_within(1 + kEighthNs)) << "an eighth after the limit";
  EXPECT_EQ(stalled_.job.value, kJob.value);
  EXPECT_EQ(stalled_.at.tensor.value, 2U);
  EXPECT_EQ(stalled_.at.round.value, 1U);
  EXPECT_EQ(stalled_.open_ns, now_ns_ - begin_ns);
  EXPECT_EQ(stalled_.awaited, (WorkerSet{1U << 3, 1U << 5}));
  ASSERT_TRUE(stalls_within(kEighthNs)) << "again, as nothing has changed";
  push(3, 1, 2, 2);
  push(69, 1, 2, 2);
  ASSERT_TRUE(stalls_within(2 * kEighthNs)) << "the other one";
  EXPECT_EQ(stalled_.at.tensor.value, 1U);
}

TEST_F(StallTest, RoundsThatEndInTimeAreNoStall) {
  make(2);
  for (uint32_t round = 1; round <= 20; ++round) {
    for (uint32_t chunk = 0; chunk < 4; ++chunk) push(0, round, chunk);
    ASSERT_FALSE(stalls_within(kStallNs - 1)) << round;
    for (uint32_t chunk = 0; chunk < 4; ++chunk) push(1, round, chunk);
  }
  EXPECT_FALSE(stalls_within(10 * kStallNs));
}

TEST_F(StallTest, WithoutALimitNothingStalls) {
  make(2, 0, 0);
  push(0, 1, 0);
  EXPECT_FALSE(stalls_within(1000 * kStallNs));
  EXPECT_EQ(aggregator_.next_stall_ns(), kNever);
}

// What arrived while the engine stood still is taken before anybody is accused.
TEST_F(StallTest, AnEngineThatStoodStillFirstTakesWhatHasArrived) {
  make(2);
  push(0, 1, 0);
  EXPECT_FALSE(stalls_within(kStallNs / 2));
  now_ns_ += 100 * kStallNs;
  uint32_t looks = 100;
  EXPECT_FALSE(aggregator_.take_stalled(now_ns_, looks, stalled_));
  EXPECT_EQ(push(1, 1, 0), PushVerdict::kCompleted);
  EXPECT_FALSE(stalls_within(10 * kStallNs));
}

TEST_F(StallTest, FewLooksAtATimeFindTheSame) {
  make(3);
  looks_ = 1;
  push(0, 1, 3, 2);
  EXPECT_FALSE(stalls_within(kStallNs));
  ASSERT_TRUE(stalls_within(kEighthNs + 100));
  EXPECT_EQ(stalled_.at.tensor.value, 2U);
  EXPECT_EQ(stalled_.awaited, (WorkerSet{6}));
}

// It could not push before; the others, who waited for it, push when it has.
TEST_F(StallTest, ANextLifeGivesEverybodyTheWholeTimeAgain) {
  make(3);
  push(0, 1, 0);
  EXPECT_FALSE(stalls_within(kStallNs / 2));
  replace(aggregator_, 2, incarnation_of(2) + 1);
  const uint64_t back_ns = now_ns_;
  EXPECT_FALSE(stalls_within(kStallNs - 1));
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.awaited, (WorkerSet{6}));
  EXPECT_EQ(stalled_.open_ns, now_ns_ - back_ns);
  push(1, 1, 0);
  EXPECT_EQ(push(2, 1, 0, 1, 1), PushVerdict::kCompleted);
  EXPECT_FALSE(stalls_within(10 * kStallNs));
}

TEST_F(StallTest, AQuorumThatIsNotReached) {
  make(4, 3);
  push(0, 1, 0);
  push(1, 1, 0);
  EXPECT_FALSE(stalls_within(kStallNs - 1));
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.awaited, (WorkerSet{0b1100}));
  withdraw(aggregator_, 3);
  EXPECT_FALSE(stalls_within(kStallNs - 1));
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.awaited, (WorkerSet{0b0100})) << "nothing is expected of 3";
  EXPECT_EQ(push(2, 1, 0), PushVerdict::kCompleted);
  EXPECT_FALSE(stalls_within(10 * kStallNs));
}

// Enough are there, but what they would overwrite has not reached everybody.
TEST_F(StallTest, ASlowWorkerThatMayStillNeedASum) {
  make(3, 2);
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round, 0);
    push(1, round, 0);
    if (round < 3) {
      EXPECT_FALSE(stalls_within(kStallNs / 2)) << "time completes round " << round;
    }
  }
  EXPECT_FALSE(stalls_within(kStallNs - 1));
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.at.round.value, 3U);
  EXPECT_EQ(stalled_.awaited, (WorkerSet{0b100}));
  withdraw(aggregator_, 2);
  EXPECT_FALSE(stalls_within(10 * kStallNs)) << "round 3 is complete without it";
}

// As many are in as a quorum needs: who has all sums and comes later is not whom they wait for.
TEST_F(StallTest, AtExactlyTheQuorumNobodyIsNamedButWhomItWaitsFor) {
  make(4, 2);
  for (uint32_t round = 1; round <= 2; ++round) {
    for (const uint32_t worker : {0, 1, 2}) push(worker, round, 0);
    EXPECT_FALSE(stalls_within(kStallNs / 2)) << "time completes round " << round;
  }
  push(0, 3, 0);
  push(1, 3, 0);
  EXPECT_FALSE(stalls_within(kStallNs - 1));
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.at.round.value, 3U);
  EXPECT_EQ(stalled_.awaited, (WorkerSet{0b1000})) << "not worker 2, which has pushed round 2";
}

TEST_F(StallTest, EachJobHasItsOwnLimit) {
  make(2);
  constexpr JobSlot kOther{9};
  ASSERT_TRUE(aggregator_.add_job(
      kOther, {.workers = 1, .terms = {.stall_timeout_ms = to_ms(kStallNs / 8)}}));
  push(0, 1, 0);
  EXPECT_FALSE(stalls_within(kStallNs - 1)) << "the other one's has passed; nothing is open there";
  ASSERT_TRUE(stalls_within(kEighthNs + 1));
  EXPECT_EQ(stalled_.job.value, kJob.value);
  aggregator_.remove_job(kJob);
  EXPECT_FALSE(stalls_within(10 * kStallNs));
}

}  // namespace
}  // namespace mercury
