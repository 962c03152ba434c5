// Rows: what a worker of many servers has begun, and finishes before what is more urgent.
#include <gtest/gtest.h>

#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/policy.h"
#include "tests/shim/worker_fixture.h"

namespace mercury {
namespace {

// A job on one engine, and tensors 5, 6 and 7. What is sent is of tensor 5, and of priority 9.
class WorkerRowsTest : public WorkerTest {
 protected:
  struct Shape {
    uint32_t chunks = 80;  // of each tensor
    uint16_t shards = 32;
    uint16_t server_lanes = 1;
    const char* policy = "mercury";
  };
  void open(const Shape& shape) {
    shape_ = shape;
    command::AddWorkerJob job;
    job.job = slot_ = JobSlot(static_cast<uint16_t>(++client_job_));
    job.workers = 2;
    job.shards = shape.shards;
    job.server_lanes = shape.server_lanes;
    job.channel = channel_;
    job.client_job = client_job_;
    ASSERT_TRUE(worker_.add_job(job).ok());
    for (uint16_t shard = 0; shard < shape.shards; ++shard) {
      ASSERT_TRUE(worker_.bind_shard(slot_, Shard(shard), SessionSlot(30U + shard)).ok());
    }
    worker_.set_policy(slot_, *parse_policy(shape.policy));
    memory_.resize(size_t{64} * shape.chunks);
    for (const uint32_t number : {5U, 6U, 7U}) {
      command::AddTensor spec = tensor(TensorId(number));
      spec.job = slot_;
      spec.numel = memory_.size();
      spec.data = reinterpret_cast<std::byte*>(memory_.data());
      ASSERT_TRUE(worker_.add_tensor(spec).ok());
    }
  }
  // How many chunks are to be finished before a push.
  uint32_t rest_before(uint32_t number, uint16_t priority) {
    submit_push(number, priority);
    row_ = WorkerRow();
    if (worker_.take_row(row_)) {
      EXPECT_EQ(row_.job, slot_);
      EXPECT_FALSE(worker_.take_row(row_));
    }
    return row_.rest;
  }
  void submit_push(uint32_t number, uint16_t priority) {
    worker_.submit(channel_,
                   {SubmitOp::kPushPull, priority, client_job_, TensorId(number), number});
  }
  ChunkSpan span_of(uint32_t shard) const {
    return ShardPlan(Shard(0), shape_.chunks, shape_.shards)
        .span(Shard(static_cast<uint16_t>(shard)));
  }
  bool send_one(uint32_t shard, uint32_t row, bool retransmit = false, TensorIndex index = 0) {
    OutgoingDatagram out;
    return worker_.prepare(
        {SessionSlot(30U + shard), slot_, {index, 1, span_of(shard).at(row)}, 9, retransmit}, out);
  }
  // One to each shard, in turn.
  void send(uint32_t count, bool retransmit = false) {
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(send_one(i % shape_.shards, i / shape_.shards, retransmit)) << i;
    }
  }

  Shape shape_;
  JobSlot slot_;
  uint32_t client_job_ = 20;
  WorkerRow row_;
};

// Two rows of 32 chunks and a half are begun when something more urgent comes.
TEST_F(WorkerRowsTest, ARowOfWhichHalfIsSentIsFinishedBeforeWhatIsMoreUrgent) {
  const auto unfinished = [&](uint32_t sent, uint16_t priority, uint32_t again = 0) {
    open({});
    EXPECT_EQ(rest_before(5, 9), 0U);
    send(sent);
    send(again, true);
    return rest_before(6, priority);
  };
  EXPECT_EQ(unfinished(0, 2), 0U) << "nothing is begun";
  EXPECT_EQ(unfinished(47, 2), 0U) << "less than half of a row is";
  EXPECT_EQ(unfinished(47, 2, 4), 0U) << "what is sent again is of no row";
  EXPECT_EQ(unfinished(48, 2), 16U);
  EXPECT_EQ(unfinished(63, 2), 1U);
  EXPECT_EQ(unfinished(64, 2), 0U) << "a row is through";
  EXPECT_EQ(unfinished(71, 2), 0U) << "less than half of the last row is";
  EXPECT_EQ(unfinished(72, 2), 8U);
  EXPECT_EQ(unfinished(80, 2), 0U) << "all is sent";
  EXPECT_EQ(unfinished(63, 9), 0U) << "no more urgent";
  EXPECT_EQ(unfinished(63, 12), 0U) << "less urgent";
}

// For all that is pushed in a pass; and again where some could not go then.
TEST_F(WorkerRowsTest, ARowIsFinishedOnceInAPass) {
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(20);
  submit_push(6, 2);
  EXPECT_EQ(rest_before(7, 1), 12U);
  ASSERT_TRUE(send_one(20, 0));
  EXPECT_EQ(rest_before(7, 1), 0U) << "it is being pushed already";
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(20);
  EXPECT_EQ(rest_before(6, 2), 12U);
  ASSERT_TRUE(send_one(20, 0));
  EXPECT_EQ(rest_before(7, 1), 11U);
}

TEST_F(WorkerRowsTest, ARowIsAChunkToEachShard) {
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(50);
  EXPECT_EQ(rest_before(6, 2), 14U);
  WorkerRange range;
  for (uint32_t turn = 0; turn < shape_.shards; ++turn) {
    ASSERT_TRUE(worker_.range_of_row(row_, turn, range));
    EXPECT_EQ(range.session.value, 30U + turn);  // rank 0 begins with the first
    EXPECT_EQ(range.range.priority, 9U);
    EXPECT_EQ(range.range.round, Round(1));
    EXPECT_EQ(range.range.chunks.first, span_of(turn).at(1));
    EXPECT_EQ(range.range.chunks.count, 1U);
    EXPECT_TRUE(worker_.is_wanted(range));
  }
  EXPECT_FALSE(worker_.range_of_row(row_, shape_.shards, range));
}

TEST_F(WorkerRowsTest, TheLastRowIsOfThoseThatHaveOneMore) {
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(75);
  EXPECT_EQ(rest_before(6, 2), 5U);
  WorkerRange range;
  for (uint32_t turn = 0; turn < shape_.shards; ++turn) {
    ASSERT_TRUE(worker_.range_of_row(row_, turn, range));
    EXPECT_EQ(range.range.chunks.count, turn < 16 ? 1U : 0U);
  }
}

// One waits for credit all the time: the others' rows go on.
TEST_F(WorkerRowsTest, AServerThatIsBehindIsOfNoRowInFrontOfIt) {
  open({32 * 20});
  EXPECT_EQ(rest_before(5, 9), 0U);
  for (uint32_t row = 0; row < 18; ++row) {
    for (uint32_t shard = 0; shard < (row < 17 ? 31U : 20U); ++shard) {
      ASSERT_TRUE(send_one(shard, row));
    }
  }
  ASSERT_TRUE(send_one(31, 0));
  EXPECT_EQ(rest_before(6, 2), 12U);
  EXPECT_EQ(row_.row, 17U);
}

TEST_F(WorkerRowsTest, AChunkThatNobodyNeedsAnyMoreIsOfItsRow) {
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(30);
  worker_.on_acked(slot_, {0, 1, span_of(30).first});
  EXPECT_FALSE(send_one(30, 0));
  EXPECT_EQ(rest_before(6, 2), 1U);
}

TEST_F(WorkerRowsTest, WhatIsSentAgainHidesNoRowOfAnotherTensor) {
  open({});
  EXPECT_EQ(rest_before(6, 9), 0U);
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(20);
  EXPECT_TRUE(send_one(0, 0, true, 1));
  EXPECT_EQ(rest_before(7, 2), 12U);
}

TEST_F(WorkerRowsTest, ARoundThatHasFailedHasNoRow) {
  open({});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(50);
  command::FailRounds failure;
  failure.job = slot_;
  failure.from = {TensorId(5), Round(1)};
  failure.code = Errc::kPeerLeft;
  worker_.fail_rounds(failure);
  EXPECT_EQ(rest_before(6, 2), 0U);
}

TEST_F(WorkerRowsTest, PoliciesThatSendByTheFrameHaveThem) {
  const auto finishes = [&](const char* policy) {
    open({80, 32, 1, policy});
    EXPECT_EQ(rest_before(5, 9), 0U);
    send(20);
    return rest_before(6, 2) > 0;
  };
  EXPECT_TRUE(finishes("mercury"));
  EXPECT_TRUE(finishes("mercury:answers=fifo,grants=even"));
  EXPECT_FALSE(finishes("mercury:unit=30KB"));
  EXPECT_FALSE(finishes("mercury:place=key"));
  EXPECT_FALSE(finishes("mercury-fifo"));
}

// A server's engines share its link.
TEST_F(WorkerRowsTest, TheyAreOfThirtyTwoServersOrMore) {
  open({80, 32, 2});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(20);
  EXPECT_EQ(rest_before(6, 2), 0U);
  open({160, 64, 2});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(40);
  EXPECT_EQ(rest_before(6, 2), 24U);
  open({32, 64, 2});
  EXPECT_EQ(rest_before(5, 9), 0U);
  send(20);
  EXPECT_EQ(rest_before(6, 2), 0U) << "to sixteen";
}

}  // namespace
}  // namespace mercury
