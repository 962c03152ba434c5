// Worker: what is pushed again after a refill, and policies that release partitions under a credit.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/shim/worker_fixture.h"

namespace mercury {
namespace {

TEST_F(WorkerTest, ARefillSendsAgainWhatHasNoSumWhateverWasAcknowledged) {
  submit(SubmitOp::kPush, 11);
  ASSERT_EQ(ranges().size(), 2U);
  ChunkKey key{0, 1, 0};
  for (uint32_t chunk = 1; chunk < kChunks; ++chunk) {
    key.chunk = ChunkIndex(chunk);
    worker_.on_acked(kJob, key);
  }
  deliver(3, 1, 5.0F);
  worker_.refill(kJob);
  uint32_t chunks = 0;
  for (const WorkerRange& range : ranges()) {
    chunks += range.range.chunks.count;
    EXPECT_EQ(range.range.priority, 4U);
    EXPECT_EQ(range.range.round, Round(1));
  }
  EXPECT_EQ(chunks, kChunks);
  // An acknowledgement of the first time says nothing any more.
  key.chunk = 0;
  worker_.on_acked(kJob, key);
  key.chunk = 7;
  worker_.on_acked(kJob, key);
  EXPECT_TRUE(completions().empty());
  OutgoingDatagram out;
  EXPECT_FALSE(worker_.prepare(scheduled(1, 3), out)) << "its sum is here";
  EXPECT_TRUE(worker_.prepare(scheduled(1, 7), out));
  EXPECT_TRUE(worker_.on_lost(kJob, key));
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) deliver(chunk, 1, 5.0F);
  ASSERT_EQ(completions().size(), 1U) << "the push";

  submit(SubmitOp::kPull, 12);
  ASSERT_EQ(completions().size(), 1U);
  worker_.refill(kJob);
  EXPECT_TRUE(ranges().empty()) << "nothing is under way";
  submit(SubmitOp::kPush, 13);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    worker_.on_acked(kJob, {0, 2, ChunkIndex(chunk)});
  }
  EXPECT_EQ(completions().size(), 1U) << "the next round is acknowledged as ever";
}

// Nor does it wait for its sums where its acknowledgements would do.
TEST_F(WorkerTest, ATensorThatIsDeclaredAfterARefillIsNotPushedAgain) {
  worker_.refill(kJob);
  EXPECT_TRUE(ranges().empty());
  ASSERT_TRUE(worker_.add_tensor(tensor(6)).ok());
  submit(SubmitOp::kPush, 1, 6);
  EXPECT_EQ(ranges().size(), 2U);
  command::AddWorkerJob other;
  other.job = JobSlot(4);
  ASSERT_TRUE(worker_.add_job(other).ok());
  worker_.refill(other.job);
  EXPECT_TRUE(ranges().empty()) << "what another job takes steps for is not its own";
}

// Under a quorum, or where an earlier life has contributed.
TEST_F(WorkerTest, SumsMayBeHereBeforeTheirPartitionsAreReleased) {
  // Partitions of 4 chunks, two at a time.
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=2KB,startup=0"));
  ASSERT_TRUE(worker_.add_tensor(tensor(6)).ok());
  for (uint32_t round = 1; round <= 100; ++round) {
    submit(SubmitOp::kPushPull, round);
    EXPECT_EQ(chunks_released(), 8U) << "round " << round;
    for (uint32_t chunk = kChunks; chunk-- > 0;) EXPECT_TRUE(deliver(chunk, round, 5.0F));
    ASSERT_EQ(completions().size(), 1U);
    EXPECT_EQ(chunks_released(), 0U) << "round " << round;
  }
  // A part of them: what is here is not waited for.
  submit(SubmitOp::kPushPull, 1001);
  EXPECT_EQ(chunks_released(), 8U);
  for (uint32_t chunk = 8; chunk < kChunks - 1; ++chunk) deliver(chunk, 101, 5.0F);
  for (uint32_t chunk = 0; chunk < 8; ++chunk) worker_.on_acked(kJob, {0, 101, ChunkIndex(chunk)});
  EXPECT_EQ(chunks_released(), 2U) << "those of a shard that has one without its sum";
  worker_.on_acked(kJob, {0, 101, ChunkIndex(kChunks - 1)});
  submit(SubmitOp::kPushPull, 1002, 6);
  EXPECT_EQ(chunks_released(), 8U) << "the whole credit is there for the next tensor";
}

// Its steps come later than the refill, and what is pushed in between is pushed again, too: only
// its sums are waited for.
TEST_F(WorkerTest, WhatIsPushedBeforeTheStepsOfARefillHoldsNoCredit) {
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=2KB,startup=0"));
  ASSERT_TRUE(worker_.add_tensor(tensor(6)).ok());
  worker_.refill(kJob);
  submit(SubmitOp::kPushPull, 1);
  worker_.release(1);
  EXPECT_GE(ranges().size(), 2U);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
    worker_.on_acked(kJob, {0, 1, ChunkIndex(chunk)});
  submit(SubmitOp::kPushPull, 2, 6);
  EXPECT_EQ(chunks_released(), 8U) << "all the credit is the next tensor's";
}

TEST_F(WorkerTest, WhatARoundDidNotPushIsNotPushedInTheNext) {
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=2KB,startup=0"));
  submit(SubmitOp::kPushPull, 1);
  worker_.set_policy(kJob, *parse_policy("mercury"));  // lets go of what waits
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) deliver(chunk, 1, 5.0F);
  submit(SubmitOp::kPushPull, 2);
  uint32_t chunks = 0;
  for (const WorkerRange& range : ranges()) chunks += range.range.chunks.count;
  EXPECT_EQ(chunks, kChunks);
}

TEST_F(WorkerTest, WhatWaitsAsPoliciesChangeOneAfterAnotherGoesOnce) {
  for (const TensorId number : {TensorId(6), TensorId(7)}) {
    ASSERT_TRUE(worker_.add_tensor(tensor(number)).ok());
  }
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=2KB,startup=0"));
  submit(SubmitOp::kPushPull, 1, 5);
  submit(SubmitOp::kPushPull, 2, 6);
  worker_.set_policy(kJob, *parse_policy("p3:partition=2KB,credit=2KB,startup=0"));
  submit(SubmitOp::kPushPull, 3, 7);
  worker_.set_policy(kJob, *parse_policy("mercury"));
  std::map<std::pair<uint32_t, uint32_t>, int> times;  // of each chunk of each tensor
  for (const WorkerRange& range : ranges()) {
    for (uint32_t i = 0; i < range.range.chunks.count; ++i) {
      ++times[{range.range.tensor.value, range.range.chunks.at(i).value}];
    }
  }
  EXPECT_EQ(times.size(), 3 * kChunks);
  for (const auto& [chunk, count] : times)
    EXPECT_EQ(count, 1) << chunk.first << "," << chunk.second;
  EXPECT_FALSE(worker_.has_steps());
}

TEST_F(WorkerTest, AcknowledgementsOfWhatAnOlderCreditReleasedGiveNoneBack) {
  ASSERT_TRUE(worker_.add_tensor(tensor(6)).ok());
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=2KB,startup=0"));
  submit(SubmitOp::kPushPull, 1);
  EXPECT_EQ(chunks_released(), 8U);
  worker_.set_policy(kJob, *parse_policy("p3:partition=1KB,credit=1KB,startup=0"));
  submit(SubmitOp::kPushPull, 2, 6);
  EXPECT_GE(ranges().size(), 2U) << "what waited of the first";
  EXPECT_EQ(chunks_released(), 4U);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
    worker_.on_acked(kJob, {0, 1, ChunkIndex(chunk)});
  EXPECT_EQ(chunks_released(), 0U);
  uint32_t more = 0;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    worker_.on_acked(kJob, {1, 1, ChunkIndex(chunk)});
    more += chunks_released();
  }
  EXPECT_GT(more, 0U) << "but those of its own do";
}
}  // namespace
}  // namespace mercury
