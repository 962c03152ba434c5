// Worker: what is pushed again after a refill, and policies that release partitions under a credit.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include "tests/shim/worker_fixture.h"
#include "transport/base/random.h"

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

TEST_F(WorkerTest, ATensorThatComesToACreditTakesFourSteps) {
  constexpr uint32_t kTensors = 400;
  for (uint32_t i = 1; i < kTensors; ++i) {
    ASSERT_TRUE(worker_.add_tensor(tensor(TensorId(100 + i))).ok());
  }
  const auto passes = [this](const char* policy) {
    worker_.set_policy(kJob, *parse_policy(policy));
    uint32_t count = 0;
    for (JobSlot gone; worker_.has_steps(); ++count) {
      uint32_t looks = 100;
      EXPECT_FALSE(worker_.take_removed(looks, gone));
    }
    return count;
  };
  EXPECT_EQ(passes("p3:partition=1KB,credit=2KB,startup=0"), kTensors * 4 / 100);
  // Nothing waits: they follow, one a step, and then go from the credit that is given up. One more
  // finds nothing left.
  EXPECT_EQ(passes("mercury"), kTensors / 100 + kTensors * 4 / 100 + 1);
}

// Whatever comes between the steps of what policies and refills begin, of which each takes few.
class ReleaseInAnyOrder : public WorkerTest {
 protected:
  static constexpr uint32_t kTensors = 6;
  static TensorId number_of(uint32_t tensor) { return TensorId(5 + tensor); }
  using Times = std::array<std::array<uint32_t, kChunks>, kTensors>;

  // How often each chunk left. Most are acknowledged at once, some later, once or again.
  void take(Random& random, Times& times, Round round) {
    const TensorIndex tensor(static_cast<uint32_t>(random.below(kTensors)));
    const ChunkIndex chunk(static_cast<uint32_t>(random.below(kChunks)));
    if (times[tensor.value][chunk.value] > 0) worker_.on_acked(kJob, {tensor, round, chunk});
    WorkerRange range;
    while (worker_.take_range(range)) {
      const ChunkSpan span = range.range.chunks;
      for (uint32_t i = 0; i < span.count; ++i) {
        ++times[range.range.tensor.value][span.at(i).value];
        if (!random.chance(0.7)) continue;
        worker_.on_acked(kJob, {range.range.tensor, range.range.round, span.at(i)});
      }
    }
  }
  void do_something(Random& random, bool refills) {
    JobSlot gone;
    uint32_t looks = static_cast<uint32_t>(random.below(4));
    switch (random.below(refills ? 5 : 4)) {
      case 0:
        if (pushed_ < kTensors) submit(SubmitOp::kPushPull, 1, number_of(pushed_++));
        break;
      case 1:
        worker_.set_policy(kJob, policies_[random.below(policies_.size())]);
        break;
      case 2:
        worker_.begin_turns();
        EXPECT_FALSE(worker_.take_removed(looks, gone));
        break;
      case 3:
        worker_.begin_turns();
        worker_.release(1);
        break;
      default:
        worker_.refill(kJob);
    }
  }

  const std::array<Policy, 4> policies_ = {
      *parse_policy("mercury"), *parse_policy("wfbp"),
      *parse_policy("p3:partition=1KB,credit=2KB,startup=0"),
      *parse_policy("bytescheduler:partition=2KB,credit=2KB,startup=0")};
  uint32_t pushed_ = 0;
};

TEST_F(ReleaseInAnyOrder, EveryChunkLeavesAndOnceUnlessItIsPushedAgain) {
  for (uint32_t i = 1; i < kTensors; ++i) {
    ASSERT_TRUE(worker_.add_tensor(tensor(number_of(i))).ok());
  }
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const bool refills = random.chance(0.5);
    Times times{};
    for (pushed_ = 0; pushed_ < kTensors || random.chance(0.9);) {
      do_something(random, refills);
      take(random, times, Round(seed));
    }
    worker_.set_policy(kJob, policies_[0]);
    while (worker_.has_steps()) {
      take_step();
      take(random, times, Round(seed));
    }
    for (uint32_t i = 0; i < kTensors; ++i) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const uint32_t left = times[i][chunk];
        ASSERT_TRUE(refills ? left >= 1 : left == 1) << i << ", chunk " << chunk << ": " << left;
        ASSERT_TRUE(deliver(chunk, seed, 5.0F, -1, number_of(i)));
      }
    }
    EXPECT_EQ(completions().size(), kTensors);
  }
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
