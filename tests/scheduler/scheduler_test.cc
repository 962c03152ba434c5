#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace mercury {
namespace {

constexpr JobSlot kJob{0};

ChunkRange range(uint16_t priority, uint32_t tensor, uint32_t first, uint32_t count) {
  return {TensorIndex(tensor), 1, {ChunkIndex(first), count}, priority};
}

class SchedulerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(scheduler_.add_job(kJob).ok());
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.add_session(SessionSlot(i), kJob).ok());
  }
  // Tensor of the next chunk, -1 if there is none.
  int64_t next() {
    if (!scheduler_.next(out_)) return -1;
    scheduler_.charge(out_.job, 1000);
    return out_.key.tensor.value;
  }
  Scheduler scheduler_{{4, 64, 1000, 4096}};
  ScheduledChunk out_;
};

TEST_F(SchedulerTest, AnUrgentTensorPreemptsAtTheNextChunk) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 1, 0, 100'000)));
  EXPECT_EQ(next(), 1);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(2, 2, 0, 2)));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(out_.key.chunk.value, 1U);
}

TEST_F(SchedulerTest, AUnitIsNotPreempted) {
  scheduler_.set_unit(kJob, 3);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 1, 0, 8)));
  EXPECT_EQ(next(), 1);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(2, 2, 0, 2)));
  for (int64_t tensor : {1, 1, 2, 2, 1}) EXPECT_EQ(next(), tensor);
  EXPECT_EQ(out_.key.chunk.value, 3U);
  EXPECT_EQ(out_.priority, 9U);
  // It ends with its range, before three.
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 3, 0, 5)));
  for (int64_t tensor : {1, 1, 3, 3, 3, 3, 3, 1, 1, -1}) EXPECT_EQ(next(), tensor);
  EXPECT_TRUE(scheduler_.empty());
}

TEST_F(SchedulerTest, AUnitGoesBesideWhatIsMostUrgentElsewhere) {
  scheduler_.set_unit(kJob, 3);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 1, 0, 6)));
  EXPECT_EQ(next(), 1);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(2, 2, 0, 2)));
  for (int64_t tensor : {1, 1, 2, 2, 1}) EXPECT_EQ(next(), tensor);
  // Blocked in the middle of one: others go, and it comes back to its own rest.
  scheduler_.block(SessionSlot(0));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(0, 3, 0, 1)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(5, 4, 0, 1)));
  EXPECT_EQ(next(), 4);
  EXPECT_EQ(next(), -1);
  scheduler_.unblock(SessionSlot(0));
  for (int64_t tensor : {1, 1, 3, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, AUnitSurvivesRetransmissionsAndAnotherUnit) {
  scheduler_.set_unit(kJob, 3);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, 0, 6)));
  EXPECT_EQ(next(), 1);
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 2, 0, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(0, 3, 0, 1)));
  for (int64_t tensor : {2, 1, 1, 3, 1}) EXPECT_EQ(next(), tensor);
  scheduler_.set_unit(kJob, 1);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(4, 4, 0, 1)));
  for (int64_t tensor : {4, 1, 1, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, WhatIsToBeFinishedGoesFirstWhateverComes) {
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(9, 1, 0, 8)));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next(), 1);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(scheduler_.finish(SessionSlot(i), range(9, 1, 0, 1)), i >= 2);
  }
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(2, 2, 0, 1)));
  for (const uint32_t session : {2U, 3U}) {
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(out_.session, SessionSlot(session));
    EXPECT_EQ(out_.key.chunk.value, 0U);
  }
  for (int64_t tensor : {2, 2, 2, 2, 1}) EXPECT_EQ(next(), tensor);
  EXPECT_EQ(out_.key.chunk.value, 1U);
}

// Nor does anybody take the place of one that waits for credit.
TEST_F(SchedulerTest, WhoIsBlockedDoesNotFinish) {
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(9, 1, 0, 8)));
  EXPECT_EQ(next(), 1);
  scheduler_.block(SessionSlot(1));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(scheduler_.finish(SessionSlot(i), range(9, 1, 0, 1)), i == 2);
  }
  EXPECT_FALSE(scheduler_.finish(SessionSlot(2), range(9, 1, 0, 1))) << "once";
  scheduler_.unblock(SessionSlot(1));
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(2, 2, 0, 1)));
  for (int64_t tensor : {1, 2, 2, 2, 2, 1}) EXPECT_EQ(next(), tensor);
}

// One that is blocked after that goes on with it when it may.
TEST_F(SchedulerTest, WhatIsToBeFinishedWaitsForCredit) {
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(9, 1, 0, 8)));
  EXPECT_TRUE(scheduler_.finish(SessionSlot(1), range(9, 1, 0, 1)));
  scheduler_.block(SessionSlot(1));
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(scheduler_.admit(SessionSlot(i), range(2, 2, 0, 2)));
  EXPECT_EQ(next(), 2);
  scheduler_.unblock(SessionSlot(1));
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(out_.session, SessionSlot(1));
  for (int64_t tensor : {2, 2, 2, 1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, WhatIsNotNextOfItsPriorityIsNotFinished) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 1, 4, 4)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 3, 0, 4)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(0), range(9, 1, 0, 4)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(0), range(9, 3, 0, 4)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(0), range(7, 1, 4, 4)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(1), range(9, 1, 4, 4)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(60), range(9, 1, 4, 4)));
  // A lost one is next.
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(9, 1, 2, 1)));
  EXPECT_FALSE(scheduler_.finish(SessionSlot(0), range(9, 1, 0, 8)));
  EXPECT_EQ(next(), 1);
  // One that is lost meanwhile goes in its place.
  EXPECT_TRUE(scheduler_.finish(SessionSlot(0), range(9, 1, 4, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(9, 3, 9, 1)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(0, 2, 0, 1)));
  for (int64_t tensor : {3, 2, 1}) EXPECT_EQ(next(), tensor);
  // While the session's turns are the most urgent ones as well.
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(0, 2, 1, 3)));
  EXPECT_EQ(next(), 2);
  EXPECT_TRUE(scheduler_.finish(SessionSlot(0), range(9, 1, 0, 8)));
  for (int64_t tensor : {1, 2, 2, 1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, WithoutTurnsTheMostUrgentOfAllJobsGoes) {
  Scheduler::Limits limits{4, 64, 1000, 4096};
  for (const bool fair : {true, false}) {
    limits.turns = fair ? Scheduler::Turns::kFair : Scheduler::Turns::kUrgency;
    Scheduler scheduler(limits);
    for (uint16_t job = 0; job < 4; ++job) {
      ASSERT_TRUE(scheduler.add_job(JobSlot(job), 1 + job).ok());
      ASSERT_TRUE(scheduler.add_session(SessionSlot(uint32_t{job}), JobSlot(job)).ok());
    }
    EXPECT_FALSE(scheduler.add_job(JobSlot(4)).ok());
    ASSERT_TRUE(scheduler.admit(SessionSlot(0), range(7, 0, 0, 1000)));
    ASSERT_TRUE(scheduler.admit(SessionSlot(3), range(8, 3, 0, 1000)));
    ScheduledChunk chunk;
    uint32_t urgent = 0;
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(scheduler.next(chunk));
      urgent += chunk.job == JobSlot(0);
      scheduler.charge(chunk.job, 1000);
    }
    if (fair) {
      EXPECT_NEAR(urgent, 200, 10);
    } else {
      EXPECT_EQ(urgent, 1000U);
    }
    scheduler.remove_job(JobSlot(0));
    ASSERT_TRUE(scheduler.add_job(JobSlot(0)).ok());
    ASSERT_TRUE(scheduler.next(chunk)) << "the other jobs stay";
    EXPECT_EQ(chunk.job, JobSlot(3));
  }
}

TEST_F(SchedulerTest, FirstInFirstOutInsideAPriority) {
  for (uint32_t tensor : {3U, 1U, 2U}) {
    ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, tensor, 0, 2)));
  }
  for (int64_t tensor : {3, 3, 1, 1, 2, 2, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, SessionsOfOnePriorityTakeTurns) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 10, 0, 3)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(5, 11, 0, 3)));
  for (int64_t tensor : {10, 11, 10, 11, 10, 11, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, RetransmissionsGoFirstAtTheirOwnPriorityInOrder) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, 10, 2)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(4, 2, 0, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 3, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 7, 1)));
  EXPECT_EQ(next(), 2);
  EXPECT_FALSE(out_.retransmit);
  for (uint32_t chunk : {3U, 7U, 10U, 11U}) {
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(out_.key.chunk.value, chunk);
    EXPECT_EQ(out_.retransmit, chunk < 10);
  }
  EXPECT_EQ(next(), -1);
}

TEST_F(SchedulerTest, ABlockedSessionHoldsUpNobody) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(0, 1, 0, 2)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(9, 2, 0, 2)));
  scheduler_.block(SessionSlot(0));
  scheduler_.block(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  scheduler_.unblock(SessionSlot(0));
  EXPECT_EQ(next(), 1);
  scheduler_.block(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), -1);
  EXPECT_TRUE(scheduler_.idle());
  EXPECT_FALSE(scheduler_.empty());
  scheduler_.unblock(SessionSlot(0));
  EXPECT_EQ(next(), 1);
  EXPECT_TRUE(scheduler_.empty());
}

TEST_F(SchedulerTest, ContinuedRangesCostOneNode) {
  const uint32_t before = scheduler_.free_ranges();
  for (uint32_t chunk = 0; chunk < 5000; ++chunk) {
    ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, chunk, 1)));
  }
  EXPECT_EQ(scheduler_.free_ranges(), before - 1);
  EXPECT_EQ(scheduler_.queued_chunks(kJob), 5000U);
}

// Priorities 64 apart need a leaf each, which is the most that a range can take: still it is the
// ranges that run out, every time.
TEST_F(SchedulerTest, OnlyTheNumberOfRangesRefusesAndThatHeals) {
  for (int repetition = 0; repetition < 3; ++repetition) {
    for (uint32_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(scheduler_.free_ranges(), 1000 - i);
      const ChunkRange far = range(static_cast<uint16_t>(i * 64), i, 0, 1);
      ASSERT_TRUE(i % 2 == 0 ? scheduler_.admit(SessionSlot(i % 4), far)
                             : scheduler_.readmit(SessionSlot(i % 4), far));
    }
    EXPECT_FALSE(scheduler_.admit(SessionSlot(0), range(1, 5000, 0, 1)));
    EXPECT_FALSE(scheduler_.readmit(SessionSlot(0), range(1, 5000, 0, 1)));
    EXPECT_EQ(scheduler_.queued_chunks(kJob), 1000U);
    // What continues an admitted range needs no node.
    EXPECT_TRUE(scheduler_.admit(SessionSlot(0), range(996 * 64 & 65535, 996, 1, 1)));
    for (int i = 0; i < 1001; ++i) ASSERT_GE(next(), 0);
    EXPECT_EQ(next(), -1);
    EXPECT_TRUE(scheduler_.empty());
    EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  }
}

TEST_F(SchedulerTest, ARetransmissionIsNeverMergedWithWhatWasNotSent) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, 4, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 2, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 3, 1)));
  EXPECT_EQ(scheduler_.free_ranges(), 998U);
  for (uint32_t chunk : {2U, 3U, 4U}) {
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(out_.key.chunk.value, chunk);
    EXPECT_EQ(out_.retransmit, chunk < 4);
  }
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 4, 1)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, 5, 1)));
  EXPECT_EQ(next(), 1);
  EXPECT_TRUE(out_.retransmit);
  EXPECT_EQ(next(), 1);
  EXPECT_FALSE(out_.retransmit);
}

TEST_F(SchedulerTest, ChunkAndRoundNumbersDoNotWrapIntoEachOther) {
  constexpr uint32_t kLast = ~uint32_t{0};
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {1, kLast, kLast - 1, 1, 5}));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {1, kLast, kLast, 1, 5}));  // continues
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {1, kLast, 0, 1, 5}));      // does not
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {1, 0, 1, kLast, 5}));      // of the next round
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {2, 0, 0, kLast, 5}));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), {2, 0, kLast, 2, 5}));  // together too many
  EXPECT_EQ(scheduler_.free_ranges(), 995U);
  EXPECT_EQ(scheduler_.queued_chunks(SessionSlot(0)), 3ULL + kLast + kLast + 2);
  for (uint32_t chunk : {kLast - 1, kLast, 0U, 1U}) {
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(out_.key.chunk.value, chunk);
    EXPECT_EQ(out_.key.round.value, chunk == 1 ? 0 : kLast);
  }
}

TEST_F(SchedulerTest, RemovingASessionDropsWhatItHolds) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 1, 0, 10)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(2, 1, 0, 1)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(3, 2, 0, 1)));
  scheduler_.remove_session(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), -1);
  EXPECT_TRUE(scheduler_.empty());
  EXPECT_EQ(scheduler_.free_ranges(), 998U);
  EXPECT_EQ(scheduler_.drop_removed(10), 2U);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
}

TEST_F(SchedulerTest, WhatRemovedSessionsHeldIsDroppedInSteps) {
  for (uint32_t i = 0; i < 600; ++i) {  // at a few priorities, in the middle of which a step ends
    ASSERT_TRUE(scheduler_.admit(SessionSlot(i % 2), range(uint16_t(i / 200), i, 0, 3)));
  }
  scheduler_.remove_session(SessionSlot(0));
  scheduler_.remove_session(SessionSlot(1));
  EXPECT_TRUE(scheduler_.empty());
  for (uint32_t left = 600; left > 0;) {
    EXPECT_EQ(scheduler_.free_ranges(), 1000 - left);
    const uint32_t dropped = scheduler_.drop_removed(70);
    EXPECT_EQ(dropped, std::min(left, 70U));
    left -= dropped;
    ASSERT_TRUE(scheduler_.admit(SessionSlot(2), range(0, 1, left, 1)));
    EXPECT_EQ(next(), 1) << "others go on";
  }
  EXPECT_EQ(scheduler_.drop_removed(70), 0U);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
}

TEST_F(SchedulerTest, ASessionThatCameBackUnderTheSameNumberIsNew) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 1, 0, 10)));
  EXPECT_EQ(next(), 1);
  scheduler_.block(SessionSlot(0));
  scheduler_.remove_session(SessionSlot(0));
  scheduler_.remove_session(SessionSlot(0));
  EXPECT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 1, 0, 10)));  // of a session that is gone
  EXPECT_TRUE(scheduler_.empty());
  ASSERT_TRUE(scheduler_.add_session(SessionSlot(0), kJob).ok());
  EXPECT_EQ(scheduler_.queued_chunks(SessionSlot(0)), 0U);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 3, 0, 1)));
  EXPECT_EQ(next(), 3);
}

TEST_F(SchedulerTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(scheduler_.add_job(kJob).error().code, Errc::kExists);
  EXPECT_EQ(scheduler_.add_job(JobSlot(4)).error().code, Errc::kLimit);
  EXPECT_EQ(scheduler_.add_job(JobSlot(1), 0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_.add_job(JobSlot(1), Scheduler::kMaxWeight + 1).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_.add_session(SessionSlot(0), kJob).error().code, Errc::kExists);
  EXPECT_EQ(scheduler_.add_session(SessionSlot(64), kJob).error().code, Errc::kLimit);
  EXPECT_EQ(scheduler_.add_session(SessionSlot(5), JobSlot(1)).error().code, Errc::kNotFound);
}

TEST(SchedulerJobs, SharesBytesByWeightWhateverTheChunkSize) {
  Scheduler scheduler({4, 16, 1000, 16384});
  const uint32_t weights[] = {1, 1, 2}, chunk_bytes[] = {1448, 8948, 8948};
  for (uint16_t j = 0; j < 3; ++j) {
    ASSERT_TRUE(scheduler.add_job(JobSlot(j), weights[j]).ok());
    ASSERT_TRUE(scheduler.add_session(SessionSlot(uint32_t{j}), JobSlot(j)).ok());
    ASSERT_TRUE(scheduler.admit(SessionSlot(uint32_t{j}),
                                range(static_cast<uint16_t>(100 * j), j, 0, 1'000'000)));
  }
  uint64_t bytes[3]{};
  ScheduledChunk out;
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(scheduler.next(out));
    bytes[out.job.value] += chunk_bytes[out.job.value];
    scheduler.charge(out.job, chunk_bytes[out.job.value]);
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 1.0, 0.01);
  EXPECT_NEAR(static_cast<double>(bytes[2]) / static_cast<double>(bytes[0]), 2.0, 0.02);
}

// Jobs 0 to n - 1 with a session of the same number each.
class Jobs {
 public:
  Jobs(uint16_t count, uint32_t quantum_bytes) : scheduler({8, 16, 1000, quantum_bytes}) {
    for (uint16_t j = 0; j < count; ++j) {
      EXPECT_TRUE(scheduler.add_job(JobSlot(j)).ok());
      EXPECT_TRUE(scheduler.add_session(SessionSlot(uint32_t{j}), JobSlot(j)).ok());
    }
    bytes.resize(count);
  }
  void admit(uint32_t session, uint32_t chunks) {
    EXPECT_TRUE(scheduler.admit(SessionSlot(session), range(0, session, 0, chunks)));
  }
  // The job that sent.
  uint32_t send(uint32_t chunk_bytes) {
    EXPECT_TRUE(scheduler.next(out));
    scheduler.charge(out.job, chunk_bytes);
    bytes[out.job.value] += chunk_bytes;
    return out.job.value;
  }
  double share(size_t job) const { return double(bytes[job]) / double(bytes[0]); }

  Scheduler scheduler;
  ScheduledChunk out;
  std::vector<uint64_t> bytes;
};

TEST(SchedulerJobs, JainsIndexOfEightJobsWithDifferentChunksIsOne) {
  Jobs jobs(8, 16384);
  for (uint32_t j = 0; j < 8; ++j) jobs.admit(j, 1'000'000);
  for (int i = 0; i < 100'000; ++i) {
    // The chunk's size is known only when the job is.
    ASSERT_TRUE(jobs.scheduler.next(jobs.out));
    const uint32_t chunk_bytes = 600 + 1200 * jobs.out.job.value;
    jobs.scheduler.charge(jobs.out.job, chunk_bytes);
    jobs.bytes[jobs.out.job.value] += chunk_bytes;
  }
  double sum = 0, squares = 0;
  for (uint64_t b : jobs.bytes) {
    sum += double(b);
    squares += double(b) * double(b);
  }
  EXPECT_GT(sum * sum / (8 * squares), 0.9999);
}

TEST(SchedulerJobs, AJobThatWasIdleOrBlockedHasSavedNothingUp) {
  Jobs jobs(3, 4096);
  jobs.admit(0, 100'000);
  jobs.admit(2, 100'000);
  jobs.scheduler.block(SessionSlot(2));
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(jobs.send(1000), 0U);
  jobs.admit(1, 100'000);
  jobs.scheduler.unblock(SessionSlot(2));
  jobs.bytes.assign(3, 0);
  for (int i = 0; i < 3000; ++i) jobs.send(1000);
  EXPECT_NEAR(jobs.share(1), 1, 0.01);
  EXPECT_NEAR(jobs.share(2), 1, 0.01);
}

TEST(SchedulerJobs, AJobThatJoinsWaitsNoMoreThanOneTurnOfEachOther) {
  Jobs jobs(3, 10'000);
  jobs.admit(0, 100'000);
  jobs.admit(1, 100'000);
  for (int repetition = 0; repetition < 100; ++repetition) {
    for (int i = 0; i < repetition % 30; ++i) jobs.send(1000);
    jobs.admit(2, 1);
    int others = 0;
    while (jobs.send(1000) != 2) ++others;
    EXPECT_LE(others, 20);
  }
}

// Between its last chunk and its charge a job may be empty: the charge is to the credit of its
// turn, and what comes before anybody else was asked goes on with the turn.
TEST(SchedulerJobs, AJobFedChunkByChunkHasItsShare) {
  Jobs jobs(2, 10'000);
  jobs.admit(0, 1'000'000);
  jobs.admit(1, 1);
  for (int i = 0; i < 10'000; ++i) {
    if (jobs.send(1000) == 1) jobs.admit(1, 1);
  }
  EXPECT_NEAR(jobs.share(1), 1, 0.01);
}

TEST(SchedulerJobs, AJobBlockedAndUnblockedAllTheTimeKeepsItsPlace) {
  Jobs jobs(3, 10'000);
  for (uint32_t j = 0; j < 3; ++j) jobs.admit(j, 1'000'000);
  for (int i = 0; i < 10'000; ++i) {
    jobs.send(1000);
    jobs.scheduler.block(SessionSlot(2));
    jobs.scheduler.unblock(SessionSlot(2));
  }
  EXPECT_NEAR(jobs.share(1), 1, 0.01);
  EXPECT_NEAR(jobs.share(2), 1, 0.01);
}

TEST(SchedulerJobs, AJobWithABlockedSessionSendsWithTheOthers) {
  Jobs jobs(2, 10'000);
  ASSERT_TRUE(jobs.scheduler.add_session(SessionSlot(9), JobSlot(0)).ok());
  for (uint32_t session : {0U, 1U, 9U}) jobs.admit(session, 100'000);
  jobs.scheduler.block(SessionSlot(0));
  for (int i = 0; i < 1000; ++i) {
    jobs.send(1000);
    EXPECT_NE(jobs.out.session.value, 0U);
  }
  EXPECT_NEAR(jobs.share(1), 1, 0.03);
}

TEST(SchedulerJobs, NeitherASmallQuantumNorAnAbsurdChargeStopsTheRound) {
  Jobs jobs(2, 0);
  jobs.admit(0, 100'000);
  jobs.admit(1, 100'000);
  jobs.send(9000);
  for (int i = 0; i < 1000; ++i) jobs.scheduler.charge(JobSlot(0), ~uint32_t{0});
  for (int i = 0; i < 100; ++i) jobs.send(9000);
  jobs.bytes.assign(2, 0);
  for (int i = 0; i < 10'000; ++i) jobs.send(9000);
  EXPECT_NEAR(jobs.share(1), 1, 0.02);
}

TEST(SchedulerJobs, AJobRemovedInItsTurnLeavesNothingBehind) {
  Jobs jobs(2, 10'000);
  ASSERT_TRUE(jobs.scheduler.add_session(SessionSlot(9), JobSlot(0)).ok());
  for (uint32_t session : {0U, 1U, 9U}) jobs.admit(session, 1000);
  ASSERT_EQ(jobs.send(1000), 0U);
  jobs.scheduler.remove_job(JobSlot(0));
  jobs.scheduler.charge(JobSlot(0), 1000);
  EXPECT_EQ(jobs.scheduler.queued_chunks(JobSlot(0)), 0U);
  EXPECT_EQ(jobs.scheduler.drop_removed(10), 2U);
  EXPECT_EQ(jobs.scheduler.free_ranges(), 999U);
  ASSERT_TRUE(jobs.scheduler.add_job(JobSlot(0)).ok());
  EXPECT_EQ(jobs.send(1000), 1U);
  ASSERT_TRUE(jobs.scheduler.add_session(SessionSlot(0), JobSlot(0)).ok());
  jobs.admit(0, 1000);
  jobs.bytes.assign(2, 0);
  for (int i = 0; i < 1000; ++i) jobs.send(1000);
  EXPECT_NEAR(jobs.share(1), 1, 0.03);
}

}  // namespace
}  // namespace mercury
