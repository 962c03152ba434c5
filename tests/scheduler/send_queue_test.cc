#include "scheduler/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mercury {
namespace {

constexpr JobSlot kOneJob{0};
constexpr SessionSlot kFirst{0}, kSecond{1};
constexpr uint32_t kRanges = 10'000;
constexpr uint32_t kOwn = kRanges / 5 / 2;                   // each job's
constexpr uint32_t kPart = kOwn + (kRanges - 2 * kOwn) / 2;  // of one that is alone

// Every chunk a range of its own, as none continues the one before.
ChunkRange chunk(uint32_t index) { return {TensorIndex(0), 1, {ChunkIndex(2 * index), 1}, 7}; }

class SendQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(queue_.scheduler().add_job(kOneJob).ok());
    for (const SessionSlot session : {kFirst, kSecond}) {
      ASSERT_TRUE(queue_.scheduler().add_session(session, kOneJob).ok());
    }
  }
  void fill(SessionSlot session) {
    for (uint32_t i = 0; queue_.scheduler().free_ranges() > 0; ++i) {
      ASSERT_TRUE(queue_.scheduler().admit(session, chunk(i)));
    }
  }
  // The most that one poll does, and how many it takes.
  uint32_t polls(uint32_t* most = nullptr) {
    uint32_t count = 0;
    for (uint32_t done = queue_.poll(); done > 0; done = queue_.poll(), ++count) {
      if (most != nullptr) *most = std::max(*most, done);
    }
    return count;
  }
  uint32_t sent() {
    uint32_t count = 0;
    for (ScheduledChunk out; queue_.scheduler().next(out); ++count) {
    }
    return count;
  }

  SendQueue queue_{{.scheduler = {2, 4, kRanges}, .reserved_ranges = 0, .most_lost = kRanges}};
};

TEST_F(SendQueueTest, WhatASessionHeldIsDroppedInSteps) {
  fill(kFirst);
  queue_.forget(kFirst);
  EXPECT_TRUE(queue_.scheduler().empty()) << "nothing of it is sent";
  EXPECT_EQ(queue_.scheduler().free_ranges(), 0U);
  uint32_t most = 0;
  EXPECT_GE(polls(&most), kRanges / 1024);
  EXPECT_LE(most, 1024U);
  EXPECT_EQ(queue_.scheduler().free_ranges(), kRanges);
}

TEST_F(SendQueueTest, LostChunksWaitForRoomAndGoOnInSteps) {
  fill(kFirst);
  for (uint32_t i = 0; i < kRanges; ++i) queue_.send_again(kSecond, chunk(i));
  EXPECT_EQ(queue_.poll(), 0U) << "no room";
  EXPECT_EQ(queue_.waiting(), kRanges);
  EXPECT_EQ(sent(), kRanges);
  uint32_t most = 0;
  EXPECT_GE(polls(&most), kPart / 1024);
  EXPECT_LE(most, 1024U);
  EXPECT_EQ(sent(), kPart) << "the job's part";
  for (uint32_t left = kRanges - kPart; left > 0; left -= std::min(left, kPart)) {
    (void)polls();
    EXPECT_EQ(sent(), std::min(left, kPart));
  }
}

TEST_F(SendQueueTest, ALostChunkOfASessionThatIsGoneIsNotSentByTheNextOneOfItsPlace) {
  fill(kFirst);
  for (uint32_t i = 0; i < kRanges; ++i) queue_.send_again(kSecond, chunk(i));
  queue_.forget(kSecond);
  ASSERT_TRUE(queue_.scheduler().add_session(kSecond, kOneJob).ok());
  queue_.send_again(kSecond, chunk(0));
  EXPECT_EQ(sent(), kRanges);
  uint32_t most = 0;
  EXPECT_GE(polls(&most), kRanges / 1024);
  EXPECT_LE(most, 1024U);
  EXPECT_EQ(queue_.waiting(), 0U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 1U) << "its own";
}

// The other job's session is gone from the network, say, and has lost all that it had under way.
TEST_F(SendQueueTest, AJobThatHasLostManyChunksHoldsUpNoOther) {
  constexpr JobSlot kOther{1};
  constexpr SessionSlot kOthers{2};
  ASSERT_TRUE(queue_.scheduler().add_job(kOther).ok());
  ASSERT_TRUE(queue_.scheduler().add_session(kOthers, kOther).ok());
  queue_.scheduler().block(kOthers);
  ASSERT_TRUE(queue_.scheduler().admit(kFirst, chunk(0)));
  ASSERT_TRUE(queue_.scheduler().admit(kFirst, chunk(1)));
  fill(kOthers);  // more than it may by itself
  for (uint32_t i = 0; i < kRanges; ++i) queue_.send_again(kOthers, chunk(i));
  queue_.send_again(kSecond, chunk(7));
  queue_.send_again(kSecond, chunk(3));
  queue_.send_again(kSecond, chunk(5));
  EXPECT_EQ(sent(), 2U);  // what is free then is the job's that has less than its part
  EXPECT_EQ(queue_.poll(), 2U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 2U);
  ScheduledChunk out;
  ASSERT_TRUE(queue_.scheduler().next(out));
  EXPECT_EQ(out.key.chunk, chunk(7).chunks.first) << "the first that was lost";
  EXPECT_EQ(queue_.poll(), 1U) << "one is free";
  EXPECT_EQ(queue_.poll(), 0U);
  EXPECT_EQ(queue_.waiting(), kRanges);
}

// So that they do not become more and more while others hold what is shared.
TEST_F(SendQueueTest, NewWorkDoesNotTakeTheRoomForWhichLostChunksOfItsJobWait) {
  constexpr JobSlot kOther{1};
  constexpr SessionSlot kOthers{2};
  ASSERT_TRUE(queue_.scheduler().add_job(kOther).ok());
  ASSERT_TRUE(queue_.scheduler().add_session(kOthers, kOther).ok());
  queue_.scheduler().block(kOthers);
  ASSERT_TRUE(queue_.admit(kFirst, chunk(0)));
  fill(kOthers);  // more than it may by itself
  queue_.send_again(kSecond, chunk(7));
  EXPECT_EQ(queue_.waiting(), 1U);
  EXPECT_EQ(sent(), 1U);
  EXPECT_FALSE(queue_.admit(kFirst, chunk(9)));
  EXPECT_EQ(queue_.poll(), 1U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 1U);
  EXPECT_EQ(sent(), 1U);
  EXPECT_TRUE(queue_.admit(kFirst, chunk(9))) << "of its own";
}

// A sum of 1,024 workers takes as many leaves.
TEST(SendQueueLimits, EachJobOwnsEnoughForASumOfAllWorkersThatAJobMayHave) {
  const Scheduler::Limits limits;
  EXPECT_EQ(JobParts(limits.max_ranges, limits.max_jobs).own(), 1024U);
}

// Where both may have it.
TEST_F(SendQueueTest, WhatIsFreeIsDividedByTurns) {
  constexpr JobSlot kOther{1};
  constexpr SessionSlot kOthers{2};
  ASSERT_TRUE(queue_.scheduler().add_job(kOther).ok());
  ASSERT_TRUE(queue_.scheduler().add_session(kOthers, kOther).ok());
  fill(kFirst);
  for (const SessionSlot session : {kOthers, kSecond}) {
    for (uint32_t i = 0; i < 2'000; ++i) queue_.send_again(session, chunk(i));
  }
  queue_.scheduler().remove_session(kFirst);
  EXPECT_EQ(queue_.scheduler().drop_removed(kRanges), kRanges);
  EXPECT_EQ(queue_.poll(), 1024U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 512U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kOthers), 512U);
}

}  // namespace
}  // namespace mercury
