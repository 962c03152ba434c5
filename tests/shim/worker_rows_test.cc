// Rows: what a worker of many servers has begun, and finishes before what is more urgent.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "scheduler/policy.h"
#include "tests/shim/worker_fixture.h"

namespace mercury {
namespace {

// A job of 32 shards on one engine, and tensors 5, 6 and 7.
class WorkerRowsTest : public WorkerTest {
 protected:
  static constexpr uint16_t kShards = 32;

  void open(uint32_t chunks, uint16_t server_lanes = 1, const char* policy = "mercury") {
    command::AddWorkerJob job;
    job.job = slot_ = JobSlot(static_cast<uint16_t>(++client_job_));
    job.workers = 2;
    job.shards = kShards;
    job.server_lanes = server_lanes;
    job.channel = channel_;
    job.client_job = client_job_;
    ASSERT_TRUE(worker_.add_job(job).ok());
    for (uint16_t shard = 0; shard < kShards; ++shard) {
      ASSERT_TRUE(worker_.bind_shard(slot_, Shard(shard), SessionSlot(30U + shard)).ok());
    }
    worker_.set_policy(slot_, *parse_policy(policy));
    for (const uint32_t number : {5U, 6U, 7U}) {
      command::AddTensor spec = tensor(TensorId(number));
      spec.job = slot_;
      spec.numel = size_t{64} * chunks;
      memory_.resize(spec.numel);
      spec.data = reinterpret_cast<std::byte*>(memory_.data());
      ASSERT_TRUE(worker_.add_tensor(spec).ok());
    }
  }
  // How many chunks are to be finished before a push.
  uint32_t rest_before(uint32_t number, uint16_t priority) {
    worker_.submit(channel_,
                   {SubmitOp::kPushPull, priority, client_job_, TensorId(number), number});
    row_ = WorkerRow();
    if (worker_.take_row(row_)) {
      EXPECT_EQ(row_.job, slot_);
      EXPECT_FALSE(worker_.take_row(row_));
    }
    return row_.rest;
  }
  // Chunks of tensor 5, of priority 9.
  void send(uint32_t from, uint32_t count, bool retransmit = false) {
    OutgoingDatagram out;
    for (uint32_t chunk = from; chunk < from + count; ++chunk) {
      EXPECT_TRUE(
          worker_.prepare({SessionSlot(30), slot_, {0, 1, ChunkIndex(chunk)}, 9, retransmit}, out));
    }
  }

  JobSlot slot_;
  uint32_t client_job_ = 20;
  WorkerRow row_;
};

// Two rows of 32 chunks and a half are begun when something more urgent comes.
TEST_F(WorkerRowsTest, ARowOfWhichHalfIsSentIsFinishedBeforeWhatIsMoreUrgent) {
  constexpr uint32_t kOwn = 80;
  const auto unfinished = [&](uint32_t sent, uint16_t priority, uint32_t again = 0) {
    open(kOwn);
    EXPECT_EQ(rest_before(5, 9), 0U);
    send(0, sent);
    send(0, again, true);
    const uint32_t rest = rest_before(6, priority);
    EXPECT_EQ(rest_before(7, priority), 0U) << "what is to be finished is said once";
    return rest;
  };
  EXPECT_EQ(unfinished(0, 2), 0U) << "nothing is begun";
  EXPECT_EQ(unfinished(47, 2), 0U) << "less than half of a row is";
  EXPECT_EQ(unfinished(47, 2, 4), 0U) << "what is sent again is of no row";
  EXPECT_EQ(unfinished(48, 2), 16U);
  EXPECT_EQ(unfinished(63, 2), 1U);
  EXPECT_EQ(unfinished(64, 2), 0U) << "a row is through";
  EXPECT_EQ(unfinished(71, 2), 0U) << "less than half of the last row is";
  EXPECT_EQ(unfinished(72, 2), 8U);
  EXPECT_EQ(unfinished(kOwn, 2), 0U) << "all is sent";
  EXPECT_EQ(unfinished(63, 9), 0U) << "no more urgent";
  EXPECT_EQ(unfinished(63, 12), 0U) << "less urgent";
}

TEST_F(WorkerRowsTest, ARowIsAChunkOfEachServer) {
  open(80);
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(0, 50);
  EXPECT_EQ(rest_before(6, 2), 14U);
  WorkerRange range;
  for (uint32_t turn = 0; turn < kShards; ++turn) {
    ASSERT_TRUE(worker_.range_of_row(row_, turn, range));
    EXPECT_EQ(range.session.value, 30U + turn);  // rank 0 begins with the first
    EXPECT_EQ(range.range.priority, 9U);
    EXPECT_EQ(range.range.round, Round(1));
    EXPECT_EQ(range.range.chunks.count, 2U) << "two rows are begun";
    EXPECT_TRUE(worker_.is_wanted(range));
  }
  EXPECT_FALSE(worker_.range_of_row(row_, kShards, range));
}

TEST_F(WorkerRowsTest, AChunkThatNobodyNeedsAnyMoreIsOfItsRow) {
  open(80);
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(0, 30);
  worker_.on_acked(slot_, {0, 1, ChunkIndex(30)});
  OutgoingDatagram out;
  EXPECT_FALSE(worker_.prepare({SessionSlot(30), slot_, {0, 1, ChunkIndex(30)}, 9, false}, out));
  EXPECT_EQ(rest_before(6, 2), 1U);
}

TEST_F(WorkerRowsTest, WhatIsSentAgainHidesNoRowOfAnotherTensor) {
  open(80);
  EXPECT_EQ(rest_before(6, 9), 0U);
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(0, 20);
  OutgoingDatagram out;
  EXPECT_TRUE(worker_.prepare({SessionSlot(30), slot_, {1, 1, ChunkIndex(0)}, 9, true}, out));
  EXPECT_EQ(rest_before(7, 2), 12U);
}

// The next round begins with none; nor is anything finished for what sends nothing from here.
TEST_F(WorkerRowsTest, ARoundThatIsOverHasNoRow) {
  open(80);
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(0, 50);
  command::FailRounds failure;
  failure.job = slot_;
  failure.from = {TensorId(5), Round(1)};
  failure.code = Errc::kPeerLeft;
  worker_.fail_rounds(failure);
  EXPECT_EQ(rest_before(6, 2), 0U);
}

// And of one server's lanes each is a part of its link.
TEST_F(WorkerRowsTest, ThereAreRowsOfManyServersAndOfPoliciesThatSendByTheChunk) {
  const auto finishes = [&](const char* policy, uint16_t server_lanes = 1) {
    open(80, server_lanes, policy);
    EXPECT_EQ(rest_before(5, 9), 0U);
    send(0, 20);
    return rest_before(6, 2) > 0;
  };
  EXPECT_TRUE(finishes("mercury"));
  EXPECT_TRUE(finishes("mercury:answers=fifo,grants=even"));
  EXPECT_FALSE(finishes("mercury:unit=30KB"));
  EXPECT_FALSE(finishes("mercury:place=key"));
  EXPECT_FALSE(finishes("mercury-fifo"));
  EXPECT_FALSE(finishes("mercury", 2));
}

}  // namespace
}  // namespace mercury
