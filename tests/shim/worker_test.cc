#include "shim/exchange/worker/worker.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <vector>

#include "tests/shim/worker_fixture.h"

namespace mercury {
namespace {

TEST_F(WorkerTest, PushPullGoesOutOnceAndEndsWhenEverySumIsHere) {
  submit(SubmitOp::kPushPull, 99);
  const auto out = ranges();
  ASSERT_EQ(out.size(), 2U);
  uint32_t chunks = 0;
  for (const WorkerRange& range : out) chunks += range.range.chunks.count;
  EXPECT_EQ(chunks, kChunks);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    EXPECT_TRUE(completions().empty());
    EXPECT_TRUE(deliver(chunk, 1, 5.0F));
  }
  const auto done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 99U);
  EXPECT_EQ(done[0].status, Errc::kOk);
  EXPECT_EQ(done[0].round, Round(1));
  EXPECT_EQ(done[0].job, 3U);
  EXPECT_EQ(memory_, std::vector<float>(1000, 5.0F));
}

// In turn, as all begin at the same time; in whatever order the sessions to servers have opened.
TEST_F(WorkerTest, EachWorkerBeginsWithAnotherServer) {
  constexpr uint16_t kWorkers = 3, kShards = 6;
  for (uint16_t rank = 0; rank < kWorkers; ++rank) {
    command::AddWorkerJob job;
    job.job = JobSlot(static_cast<uint16_t>(20 + rank));
    job.rank = Rank(rank);
    job.workers = kWorkers;
    job.shards = kShards;
    job.channel = channel_;
    job.client_job = 20U + rank;
    ASSERT_TRUE(worker_.add_job(job).ok());
    for (const uint16_t shard : std::initializer_list<uint16_t>{4, 0, 5, 2, 1, 3}) {
      ASSERT_TRUE(worker_.bind_shard(job.job, Shard(shard), SessionSlot(30U + shard)).ok());
    }
    command::AddTensor spec = tensor(5);
    spec.job = job.job;
    ASSERT_TRUE(worker_.add_tensor(spec).ok());
    submit(SubmitOp::kPushPull, 1, 5, job.client_job);
    const auto out = ranges();
    ASSERT_EQ(out.size(), kShards);
    for (uint16_t turn = 0; turn < kShards; ++turn) {
      EXPECT_EQ(out[turn].session.value, 30U + (2 * rank + turn) % kShards) << "rank " << rank;
    }
  }
}

TEST_F(WorkerTest, PreparesTheChunkOfTheRightBytes) {
  submit(SubmitOp::kPushPull, 1);
  OutgoingDatagram out;
  ASSERT_TRUE(worker_.prepare(scheduled(1, ChunkIndex(kChunks - 1)), out));
  EXPECT_EQ(out.payload.size(), (1000U - 64 * (kChunks - 1)) * 4);
  EXPECT_EQ(out.payload.data(), reinterpret_cast<std::byte*>(memory_.data() + 64 * (kChunks - 1)));
  EXPECT_EQ(ChunkHeader::of(out.header).tensor, TensorId(5));
  EXPECT_EQ(ChunkHeader::of(out.header).sender, 1U);
  EXPECT_EQ(ChunkHeader::of(out.header).incarnation, 7U);
  EXPECT_FALSE(worker_.prepare(scheduled(2, 0), out)) << "another round";
}

// Worker 1 of 2 has elements 500 to 999: chunk 7 begins before them.
TEST_F(WorkerTest, OfAScatteredSumTheElementsOfItsPartAreNeededAlone) {
  submit(SubmitOp::kScatter, 99);
  OutgoingDatagram out;
  ASSERT_TRUE(worker_.prepare(scheduled(1, 0), out));
  EXPECT_EQ(out.header.flags, kFlagInPart);
  EXPECT_EQ(out.payload.size(), kChunkBytes) << "all is pushed";
  EXPECT_TRUE(deliver_nothing(7));
  EXPECT_EQ(counters_.get(Counter::kDropChunkRange), 1U) << "some of it is in its part";
  EXPECT_TRUE(deliver_nothing(0, kFlagPartial));
  EXPECT_EQ(counters_.get(Counter::kDropResultUnexpected), 1U) << "of a quorum that there is not";
  for (uint32_t chunk = 0; chunk < 6; ++chunk) EXPECT_TRUE(deliver_nothing(chunk));
  EXPECT_TRUE(deliver(6, 1, 5.0F)) << "all, since another worker wants all";
  for (uint32_t chunk = 7; chunk < kChunks; ++chunk) {
    EXPECT_TRUE(completions().empty());
    EXPECT_TRUE(deliver(chunk, 1, 5.0F));
  }
  const auto done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].status, Errc::kOk);
  EXPECT_EQ(memory_[0], 1.0F);
  EXPECT_EQ(std::vector<float>(memory_.begin() + 500, memory_.end()),
            std::vector<float>(500, 5.0F));
}

TEST_F(WorkerTest, WhoWantsAllOfASumTakesNoneWithoutElements) {
  submit(SubmitOp::kPushPull, 99);
  EXPECT_TRUE(deliver_nothing(0));
  EXPECT_EQ(counters_.get(Counter::kDropChunkRange), 1U);
  EXPECT_EQ(counters_.get(Counter::kResultChunks), 0U);
}

TEST_F(WorkerTest, DuplicateAndForeignSumsChangeNothing) {
  submit(SubmitOp::kPushPull, 1);
  EXPECT_TRUE(deliver(0, 1, 5.0F));
  EXPECT_TRUE(deliver(0, 1, 6.0F));
  EXPECT_EQ(memory_[0], 5.0F);
  EXPECT_TRUE(deliver(1, 2, 7.0F));
  EXPECT_EQ(memory_[64], 1.0F);
  EXPECT_EQ(counters_.get(Counter::kDropResultUnexpected), 2U);
}

// A server's share is computed once for sums of one tensor that follow each other, and anew for
// another's.
TEST_F(WorkerTest, OfTensorsThatTakeTurnsEachHasItsOwnShare) {
  command::AddTensor other = tensor(6);
  other.first_shard = 1;
  ASSERT_TRUE(worker_.add_tensor(other).ok());
  submit(SubmitOp::kPushPull, 1);
  submit(SubmitOp::kPushPull, 2, 6);
  std::vector<float> sum(64, 9.0F);
  test::ChunkFrame header;
  header.type = kResultFrame;
  header.round = 1;
  header.payload_crc = wire::crc32c(std::as_bytes(std::span(sum)));
  Worker::Share share{0};
  uint32_t next = 0;
  for (const TensorId number : {TensorId(5), TensorId(6), TensorId(5)}) {
    const ShardPlan plan(number == TensorId(6) ? Shard(1) : Shard(0), kChunks, 2);
    header.tensor = number;
    header.chunk = ChunkIndex(plan.span(1).first.value + next);
    worker_.on_result(kJob, share, header, std::as_bytes(std::span(sum)));
    header.chunk = ChunkIndex(plan.span(0).first.value + next++);
    worker_.on_result(kJob, share, header, std::as_bytes(std::span(sum)));
  }
  EXPECT_EQ(counters_.get(Counter::kDropChunkRange), 3U);
  EXPECT_EQ(counters_.get(Counter::kResultChunks), 3U);
}

TEST_F(WorkerTest, ASumFromTheWrongServerIsRefused) {
  submit(SubmitOp::kPushPull, 1);
  std::vector<float> sum(64, 9.0F);
  test::ChunkFrame header;
  header.type = kResultFrame;
  header.round = 1;
  header.tensor = 5;
  header.chunk = ShardPlan(0, kChunks, 2).span(0).first;
  header.payload_crc = wire::crc32c(std::as_bytes(std::span(sum)));
  Worker::Share of_another{1};
  worker_.on_result(kJob, of_another, header, std::as_bytes(std::span(sum)));
  EXPECT_EQ(memory_[header.chunk.value * 64], 1.0F);
  EXPECT_EQ(counters_.get(Counter::kDropChunkRange), 1U);
}

TEST_F(WorkerTest, ACorruptSumIsNotTakenAndItsRepetitionHeals) {
  submit(SubmitOp::kPushPull, 1);
  EXPECT_FALSE(deliver(3, 1, 5.0F, 17));
  EXPECT_TRUE(deliver(3, 1, 5.0F));
  EXPECT_EQ(memory_[3 * 64 + 4], 5.0F);
  EXPECT_EQ(counters_.get(Counter::kDropPayloadCrc), 1U);
}

TEST_F(WorkerTest, APushEndsByAcknowledgementsAndItsPullBySums) {
  submit(SubmitOp::kPush, 11);
  ChunkKey key{0, 1, 0};
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    EXPECT_TRUE(completions().empty());
    key.chunk = ChunkIndex(chunk);
    worker_.on_acked(kJob, key);
    worker_.on_acked(kJob, key);  // again changes nothing
  }
  auto done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 11U);
  submit(SubmitOp::kPull, 12);
  submit(SubmitOp::kPull, 13);  // one pull a push
  done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 13U);
  EXPECT_EQ(done[0].status, Errc::kInvalidArgument);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) deliver(chunk, 1, 2.0F);
  done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 12U);
}

TEST_F(WorkerTest, ALostChunkIsSentAgainUnlessItsSumIsHere) {
  submit(SubmitOp::kPushPull, 1);
  EXPECT_TRUE(worker_.on_lost(kJob, {0, 1, 6}));
  deliver(6, 1, 5.0F);
  EXPECT_FALSE(worker_.on_lost(kJob, {0, 1, 6}));
  EXPECT_FALSE(worker_.on_lost(kJob, {1, 1, 6})) << "no such tensor";
}

TEST_F(WorkerTest, ALateWorkerBeginsInTheRoundThatItIsTold) {
  command::AddTensor late = tensor(6);
  late.first_round = 0;  // the round after 2^32 - 1
  ASSERT_TRUE(worker_.add_tensor(late).ok());
  submit(SubmitOp::kPushPull, 1, 6);
  EXPECT_EQ(ranges().front().range.round, Round(0));
}

TEST_F(WorkerTest, RefusesWhatCannotBe) {
  submit(SubmitOp::kPushPull, 1, 6);     // no such tensor
  submit(SubmitOp::kPushPull, 2, 5, 4);  // no such job
  submit(SubmitOp::kPull, 3);            // nothing pushed
  submit(SubmitOp::kPushPull, 4);
  submit(SubmitOp::kPushPull, 5);  // the round is not over
  const auto done = completions();
  ASSERT_EQ(done.size(), 4U);
  EXPECT_EQ(done[0].status, Errc::kNotFound);
  EXPECT_EQ(done[1].status, Errc::kClosed);
  EXPECT_EQ(done[2].status, Errc::kInvalidArgument);
  EXPECT_EQ(done[3].status, Errc::kBusy);
}

TEST_F(WorkerTest, WhatConcernsAllTensorsIsDoneInSteps) {
  constexpr uint32_t kTensors = 1000;
  for (uint32_t i = 0; i < kTensors; ++i) {
    ASSERT_TRUE(worker_.add_tensor(tensor(TensorId(100 + i))).ok());
    submit(SubmitOp::kPushPull, 1 + i, TensorId(100 + i));
  }
  const auto waiting = [this] {
    WorkerRange range;
    uint32_t count = 0;
    while (worker_.take_range(range)) count += worker_.is_wanted(range);
    WorkerCompletion done;
    while (worker_.take_completion(done)) ++count;
    return count;
  };
  EXPECT_EQ(waiting(), 2 * kTensors);
  JobSlot gone;
  const auto in_steps = [&](uint32_t most) {
    uint32_t found = 0, all = 0;
    for (bool removed = false; worker_.has_steps() && !removed; all += found) {
      uint32_t looks = 100;
      removed = worker_.take_removed(looks, gone);
      found = waiting();
      EXPECT_LE(found, most);
    }
    return all;
  };
  worker_.refill(kJob);
  EXPECT_EQ(in_steps(200), 2 * kTensors) << "for two shards";
  worker_.fail_job(kJob, Errc::kPeerLost);
  EXPECT_EQ(waiting(), 0U) << "not at once";
  submit(SubmitOp::kPull, 7777, TensorId(100 + kTensors - 1));
  EXPECT_EQ(waiting(), 2U) << "but before another of the same tensor";
  EXPECT_EQ(in_steps(100), kTensors - 1);
  worker_.remove_job(kJob, Errc::kClosed);
  uint32_t steps = 0;
  for (uint32_t looks = 0; !worker_.take_removed(looks, gone); looks = 160, ++steps) {
  }
  EXPECT_GE(steps, kTensors / 10);
  EXPECT_EQ(gone, kJob);
  EXPECT_FALSE(worker_.has_job(kJob));
  EXPECT_FALSE(worker_.has_steps());
}

// The sessions' places may be another job's when the ranges' turn comes.
TEST_F(WorkerTest, RangesOfAJobThatIsGoneAreNotWanted) {
  submit(SubmitOp::kPushPull, 1);
  WorkerRange range;
  ASSERT_TRUE(worker_.take_range(range));
  EXPECT_TRUE(worker_.is_wanted(range));
  worker_.hold_up(range);
  EXPECT_TRUE(worker_.holds_up_any());
  worker_.remove_job(kJob, Errc::kClosed);
  completions();
  SetUp();
  EXPECT_FALSE(worker_.is_wanted(range));
  EXPECT_FALSE(worker_.holds_up_any()) << "it has gone with its job";
  const auto left = ranges();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_FALSE(worker_.is_wanted(left[0]));
}

TEST_F(WorkerTest, AFailedJobEndsWhatWaitsAndWhatComes) {
  submit(SubmitOp::kPushPull, 1);
  worker_.fail_job(kJob, Errc::kPeerLost);
  worker_.fail_job(kJob, Errc::kPeerLeft);  // the first reason stays
  submit(SubmitOp::kPushPull, 2);
  const auto done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kPeerLost);
  EXPECT_EQ(done[1].status, Errc::kPeerLost);
  EXPECT_TRUE(deliver(0, 1, 5.0F));
  EXPECT_EQ(memory_[0], 1.0F) << "the program has its memory back";
}

// Peers that have their sums may leave while a slow program has not taken its own yet.
TEST_F(WorkerTest, ASumThatWasThereBeforeTheJobEndedIsPulledOnceMore) {
  submit(SubmitOp::kPush, 1);
  ranges();
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) ASSERT_TRUE(deliver(chunk, 1, 5.0F));
  EXPECT_EQ(completions().size(), 1U);  // the push
  worker_.fail_job(kJob, Errc::kPeerLeft);
  submit(SubmitOp::kPull, 2);
  submit(SubmitOp::kPull, 3);
  const auto done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kOk);
  EXPECT_EQ(done[0].round, Round(1));
  EXPECT_EQ(done[1].status, Errc::kPeerLeft) << "a sum is pulled once";
}

TEST_F(WorkerTest, ASumThatWasNotCompleteWhenTheJobEndedIsNotPulled) {
  submit(SubmitOp::kPush, 1);
  ranges();
  ASSERT_TRUE(deliver(0, 1, 5.0F));
  worker_.fail_job(kJob, Errc::kPeerLeft);
  submit(SubmitOp::kPull, 2);
  const auto done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kPeerLeft);
  EXPECT_EQ(done[1].status, Errc::kPeerLeft);
}

// A sanitizer's allocator tells nothing here: then nothing grows.
TEST_F(WorkerTest, RoundsThatWillNotBeCompleteEndAndNothingElse) {
  ASSERT_TRUE(worker_.add_tensor(tensor(6)).ok());
  submit(SubmitOp::kPush, 1);
  submit(SubmitOp::kPushPull, 2, 6);
  ranges();
  worker_.fail_rounds({kJob, {5, 2}, Errc::kPeerLeft});
  worker_.fail_rounds({kJob, {77, 1}, Errc::kPeerLeft});  // no tensor of the job
  EXPECT_TRUE(completions().empty()) << "round 1 goes on";
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) ASSERT_TRUE(deliver(chunk, 1, 5.0F));
  submit(SubmitOp::kPull, 3);
  auto done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kOk);
  EXPECT_EQ(done[1].status, Errc::kOk);
  submit(SubmitOp::kPush, 4);
  submit(SubmitOp::kPull, 5);
  done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kPeerLeft);
  EXPECT_EQ(done[0].round, Round(2));
  EXPECT_EQ(done[1].status, Errc::kPeerLeft);
  EXPECT_TRUE(ranges().empty());
  // Tensor 6 waits still.
  worker_.fail_rounds({kJob, {6, 1}, Errc::kPeerLeft});
  done = completions();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 2U);
  EXPECT_EQ(done[0].status, Errc::kPeerLeft);
}

TEST_F(WorkerTest, ARoundThatWillNotBeCompleteIsNotSentOrWrittenAnyMore) {
  submit(SubmitOp::kPush, 1);
  ranges();
  OutgoingDatagram out;
  ASSERT_TRUE(worker_.prepare(scheduled(1, 0), out));
  worker_.fail_rounds({kJob, {5, 1}, Errc::kPeerLeft});
  submit(SubmitOp::kPull, 2);
  const auto done = completions();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, Errc::kPeerLeft);
  EXPECT_EQ(done[1].status, Errc::kPeerLeft);
  EXPECT_FALSE(worker_.prepare(scheduled(1, 0), out));
  EXPECT_FALSE(worker_.on_lost(kJob, {0, 1, 0}));
  EXPECT_TRUE(deliver(0, 1, 5.0F)) << "acknowledged";
  EXPECT_EQ(memory_[0], 1.0F) << "the program has its memory back";
}

TEST_F(WorkerTest, JobsThatComeAndGoLeaveNoMemory) {
  const auto come_and_go = [this] {
    command::AddWorkerJob job;
    job.job = JobSlot(4);
    job.workers = 1;
    job.shards = 2;
    job.channel = channel_;
    job.client_job = 9;
    ASSERT_TRUE(worker_.add_job(job).ok());
    for (uint16_t shard = 0; shard < 2; ++shard) {
      ASSERT_TRUE(worker_.bind_shard(job.job, Shard(shard), SessionSlot(20u + shard)).ok());
    }
    for (uint32_t number = 0; number < 300; ++number) {
      command::AddTensor spec = tensor(TensorId(number));
      spec.job = job.job;
      ASSERT_TRUE(worker_.add_tensor(spec).ok());
      submit(SubmitOp::kPushPull, number + 1, TensorId(number), 9);
    }
    worker_.remove_job(job.job, Errc::kClosed);
    completions();
    ranges();
  };
  come_and_go();
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  for (int i = 0; i < 300; ++i) come_and_go();
  // What malloc keeps at hand for the thread counts as used: less than 16 bytes a job.
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + 4096);
}

TEST_F(WorkerTest, WhatWasTakenIsNotTakenAgainWhenAnotherJobGoes) {
  submit(SubmitOp::kPushPull, 1);
  WorkerRange range;
  ASSERT_TRUE(worker_.take_range(range));
  command::AddWorkerJob other;
  other.job = JobSlot(4);
  other.workers = other.shards = 1;
  other.channel = channel_;
  other.client_job = 9;
  ASSERT_TRUE(worker_.add_job(other).ok());
  worker_.remove_job(other.job, Errc::kClosed);
  EXPECT_EQ(ranges().size(), 1U);  // the tensor's other shard
}

}  // namespace
}  // namespace mercury
