#include "scheduler/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace mercury {
namespace {

constexpr JobSlot kOneJob{0};
constexpr SessionSlot kFirst{0}, kSecond{1};
constexpr uint32_t kRanges = 10'000;
constexpr uint32_t kOwn = kRanges / 5 / 2;                   // each job's
constexpr uint32_t kPart = kOwn + (kRanges - 2 * kOwn) / 2;  // of one that is alone

// Every chunk a range of its own, as none continues the one before.
ChunkRange chunk(uint32_t index) { return {TensorIndex(0), 1, {ChunkIndex(2 * index), 1}, 7}; }

uint32_t poll(SendQueue& queue, uint64_t now_ns = 0) {
  ColdSteps steps;
  return queue.poll(now_ns, steps);
}

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
    for (uint32_t done = poll(queue_); done > 0; done = poll(queue_), ++count) {
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
  ColdSteps steps;
  EXPECT_EQ(queue_.poll(0, steps), 0U) << "no room";
  EXPECT_EQ(steps.part(), ColdSteps::kAll - 1) << "a look at the job's first";
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
  EXPECT_EQ(poll(queue_), 2U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 2U);
  ScheduledChunk out;
  ASSERT_TRUE(queue_.scheduler().next(out));
  EXPECT_EQ(out.key.chunk, chunk(7).chunks.first) << "the first that was lost";
  EXPECT_EQ(poll(queue_), 1U) << "one is free";
  EXPECT_EQ(poll(queue_), 0U);
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
  EXPECT_EQ(poll(queue_), 1U);
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
  EXPECT_EQ(poll(queue_), 1024U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kSecond), 512U);
  EXPECT_EQ(queue_.scheduler().queued_chunks(kOthers), 512U);
}

// Two jobs, of which one may send a hundredth of what the link carries.
class RateLimitsTest : public testing::Test {
 protected:
  static constexpr JobSlot kLimited{0};
  static constexpr JobSlot kOther{1};
  static constexpr uint64_t kRate = 12'500'000;  // 100 Mb/s
  static constexpr uint32_t kBytes = 1'500;
  static constexpr uint64_t kPassNs = 10'000;
  static constexpr uint32_t kInPass = 8;

  void SetUp() override {
    for (const JobSlot job : {kLimited, kOther}) {
      ASSERT_TRUE(queue_.scheduler().add_job(job).ok());
      ASSERT_TRUE(queue_.scheduler().add_session(SessionSlot(uint32_t{job.value}), job).ok());
    }
    queue_.limit(kLimited, kRate);
  }
  void admit(JobSlot job) {
    const ChunkRange much{TensorIndex(0), 1, {ChunkIndex(0), 1U << 30}, 7};
    ASSERT_TRUE(queue_.scheduler().admit(SessionSlot(uint32_t{job.value}), much));
  }
  void pass() {
    poll(queue_, now_ns_);
    ScheduledChunk out;
    for (uint32_t i = 0; i < kInPass && queue_.scheduler().next(out); ++i) {
      queue_.charge(out.job, kBytes);
      sent_[out.job.value] += kBytes;
    }
    now_ns_ += kPassNs;
  }
  void send_for(uint64_t ns) {
    for (const uint64_t end_ns = now_ns_ + ns; now_ns_ < end_ns;) pass();
  }
  // Never more than it may, whatever was before; no less than all but a frame.
  void expect_rate(uint64_t sent, uint64_t ns) {
    const double bytes = kRate * static_cast<double>(ns) / 1e9;
    const double ahead = kRate * static_cast<double>(RateLimits::kAheadNs) / 1e9;
    EXPECT_LE(static_cast<double>(sent), bytes + ahead + kBytes);
    EXPECT_GE(static_cast<double>(sent), bytes - kBytes);
  }

  SendQueue queue_{{.scheduler = {2, 4, kRanges}, .reserved_ranges = 0, .most_lost = kRanges}};
  uint64_t now_ns_ = 1'000'000'000'000;
  std::array<uint64_t, 2> sent_{};
};

TEST_F(RateLimitsTest, AJobSendsAtItsRateAndAnotherWhatIsLeft) {
  admit(kLimited);
  admit(kOther);
  send_for(1'000'000'000);
  expect_rate(sent_[0], 1'000'000'000);
  EXPECT_EQ(sent_[0] + sent_[1], 1'000'000'000 / kPassNs * kInPass * kBytes) << "no turn is lost";
}

TEST_F(RateLimitsTest, AJobThatWaitsLeavesNothingToSendAndSaysUntilWhen) {
  admit(kLimited);
  send_for(100'000);
  ASSERT_TRUE(queue_.scheduler().idle()) << "an engine sleeps";
  EXPECT_FALSE(queue_.scheduler().empty());
  EXPECT_GT(queue_.next_deadline_ns(), now_ns_);
  EXPECT_LE(queue_.next_deadline_ns(), now_ns_ + RateLimits::kAheadNs);
  const uint64_t sent = sent_[0];
  now_ns_ = queue_.next_deadline_ns();
  EXPECT_EQ(poll(queue_, now_ns_), 1U);
  EXPECT_FALSE(queue_.scheduler().idle());
  pass();
  EXPECT_GT(sent_[0], sent);
}

TEST_F(RateLimitsTest, WhatAJobDidNotSendItMayNotSendLater) {
  now_ns_ += 1'000'000'000;
  admit(kLimited);
  send_for(100'000'000);
  expect_rate(sent_[0], 100'000'000);
}

TEST_F(RateLimitsTest, WhatComesWhileItWaitsWaitsToo) {
  admit(kLimited);
  send_for(100'000);
  ASSERT_TRUE(queue_.scheduler().idle());
  queue_.scheduler().block(SessionSlot(0));
  queue_.scheduler().unblock(SessionSlot(0));
  ASSERT_TRUE(queue_.scheduler().add_session(SessionSlot(2), kLimited).ok());
  ASSERT_TRUE(queue_.scheduler().admit(SessionSlot(2), chunk(1)));
  EXPECT_TRUE(queue_.scheduler().idle());
  ScheduledChunk out;
  EXPECT_FALSE(queue_.scheduler().next(out));
  queue_.forget(SessionSlot(0));
  send_for(1'000'000);
  EXPECT_TRUE(queue_.scheduler().empty()) << "the other session's chunk has gone";
}

TEST_F(RateLimitsTest, WithoutALimitAndInTheNextLifeOfItsSlotAJobDoesNotWait) {
  admit(kLimited);
  send_for(100'000);
  ASSERT_TRUE(queue_.scheduler().idle());
  queue_.limit(kLimited, 0);
  EXPECT_FALSE(queue_.scheduler().idle());
  EXPECT_EQ(queue_.next_deadline_ns(), kNever);
  queue_.limit(kLimited, kRate);
  send_for(100'000);
  ASSERT_TRUE(queue_.scheduler().idle());
  queue_.remove_job(kLimited);
  EXPECT_EQ(queue_.next_deadline_ns(), kNever);
  ASSERT_TRUE(queue_.scheduler().add_job(kLimited).ok());
  ASSERT_TRUE(queue_.scheduler().add_session(SessionSlot(3), kLimited).ok());
  ASSERT_TRUE(queue_.scheduler().admit(SessionSlot(3), chunk(1)));
  EXPECT_FALSE(queue_.scheduler().idle());
}

// Rates whose chunks take no whole number of ns.
TEST_F(RateLimitsTest, IsExactAtAnyRate) {
  for (const uint64_t rate :
       {uint64_t{31'250}, uint64_t{7'000'000'001}, uint64_t{125'000'000'000}}) {
    RateLimits limits(1);
    limits.set(kLimited, rate);
    uint64_t now_ns = 5;
    limits.poll(now_ns, [](JobSlot) {});
    constexpr uint64_t kChunks = 100'000;
    for (uint64_t i = 0; i < kChunks; ++i) {
      if (!limits.charge(kLimited, kBytes)) continue;
      now_ns = limits.next_deadline_ns();
      ASSERT_EQ(limits.poll(now_ns, [](JobSlot) {}), 1U);
    }
    const double took = static_cast<double>(now_ns) / 1e9;
    const double least = static_cast<double>(kChunks * kBytes) / static_cast<double>(rate);
    EXPECT_NEAR(took, least, 0.0021 + static_cast<double>(kBytes) / static_cast<double>(rate));
  }
}

}  // namespace
}  // namespace mercury
