// Workers that are replaced, and withdrawn, in jobs of many chunks: all of them are looked at, in
// steps, while others push.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

constexpr uint32_t kNext = 77;  // the incarnation of the next life

class ReplaceTest : public testing::Test {
 protected:
  void make(uint32_t chunks) { bench_.add_tensor(chunks, 1); }
  PushVerdict push(uint32_t worker, uint32_t round, uint32_t chunk, float value,
                   uint32_t incarnation = 0) {
    const Bytes payload = floats({value});
    Contribution c = Bench::contribution(worker, round, chunk, payload);
    if (incarnation != 0) c.incarnation = incarnation;
    return bench_.aggregator.push(c).verdict;
  }
  // True: a worker is replaced.
  bool step(uint32_t most) {
    uint32_t looks = most;
    const bool done = bench_.aggregator.take_replaced(looks, replaced_);
    looked_ += most - looks;
    return done;
  }

  Bench bench_{2};
  ReplacedWorker replaced_;
  uint64_t looked_ = 0;
};

TEST_F(ReplaceTest, NoStepLooksAtMoreChunksThanItIsTold) {
  constexpr uint32_t kMany = 100'000, kEachTime = 1000;
  make(kMany);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  EXPECT_EQ(looked_, 0U) << "nothing is looked at at once";
  uint32_t steps = 1;
  for (; !step(kEachTime); ++steps) ASSERT_LE(looked_, uint64_t{steps} * kEachTime);
  EXPECT_EQ(looked_, kMany + 1) << "each chunk once, and the end";
  EXPECT_EQ(replaced_.worker, Rank(0));
  EXPECT_EQ(replaced_.incarnation, kNext);
  ASSERT_EQ(replaced_.rounds.size(), 1U);
  EXPECT_EQ(replaced_.rounds[0], (TensorRound{1, 1}));
  EXPECT_FALSE(step(kEachTime));
  EXPECT_FALSE(bench_.aggregator.is_replacing());
  EXPECT_EQ(looked_, kMany + 1);
}

// Of four tensors the first and the third have a chunk that is a round ahead.
TEST_F(ReplaceTest, SaysTheLowestRoundOfEachTensorAndThenTheHighestWhereItIsAnother) {
  uint32_t tensor_id = 0;
  for (const uint32_t chunks : {3U, 2U, 2U, 1U}) {
    ASSERT_TRUE(bench_.aggregator.add_tensor(kJob, {.tensor = TensorId(++tensor_id),
                                                    .numel = chunks,
                                                    .chunk_elems = 1,
                                                    .chunk_count = chunks}));
  }
  for (const uint32_t tensor : {1U, 3U}) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      const Bytes payload = floats({1});
      Contribution c = Bench::contribution(worker, 1, 1, payload);
      c.tensor = TensorId(tensor);
      bench_.aggregator.push(c);
    }
  }
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  while (!step(1)) {
  }
  EXPECT_EQ(replaced_.rounds,
            (std::vector<TensorRound>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {3, 2}}));
}

TEST_F(ReplaceTest, BetweenStepsTheLastLifeIsRefusedAndTheNextOneIsNotTakenYet) {
  make(3);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) push(0, 1, chunk, 10);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  ASSERT_FALSE(step(1));
  EXPECT_EQ(push(0, 1, 0, 10), PushVerdict::kBadIncarnation);
  EXPECT_EQ(push(0, 1, 0, 11, kNext), PushVerdict::kSlotBusy);
  EXPECT_EQ(push(0, 1, 2, 11, kNext), PushVerdict::kSlotBusy) << "it is a duplicate there so far";
  EXPECT_EQ(push(1, 1, 0, 20), PushVerdict::kAdded) << "the last life's is gone";
  EXPECT_EQ(push(1, 1, 2, 20), PushVerdict::kCompleted) << "as if it had come before";
  while (!step(1)) {
  }
  EXPECT_EQ(replaced_.rounds[0].round, Round(1)) << "of chunks 0 and 1";
  EXPECT_EQ(bench_.values<float>(1, 2), std::vector<float>{30});
  EXPECT_EQ(push(0, 1, 2, 11, kNext), PushVerdict::kOldRound);
  EXPECT_EQ(push(0, 1, 0, 11, kNext), PushVerdict::kCompleted);
  EXPECT_EQ(bench_.values<float>(1, 0), std::vector<float>{31});
}

TEST_F(ReplaceTest, ALifeThatIsReplacedWhileItReplacesAnotherIsReplacedToo) {
  make(10);
  push(0, 1, 9, 10);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  ASSERT_FALSE(step(3));
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext + 1));
  EXPECT_EQ(push(0, 1, 0, 10, kNext), PushVerdict::kBadIncarnation);
  while (!step(3)) {
  }
  EXPECT_EQ(replaced_.incarnation, kNext);
  EXPECT_EQ(push(0, 1, 0, 10, kNext + 1), PushVerdict::kSlotBusy);
  while (!step(3)) {
  }
  EXPECT_EQ(replaced_.incarnation, kNext + 1);
  EXPECT_EQ(push(0, 1, 9, 12, kNext + 1), PushVerdict::kAdded);
}

TEST_F(ReplaceTest, ATensorThatIsDeclaredMeanwhileIsNotNamed) {
  make(4);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  ASSERT_FALSE(step(1));
  ASSERT_TRUE(bench_.aggregator.add_tensor(
      kJob, {.tensor = 2, .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  while (!step(1)) {
  }
  ASSERT_EQ(replaced_.rounds.size(), 1U);
  EXPECT_EQ(replaced_.rounds[0].tensor, TensorId(1));
}

TEST_F(ReplaceTest, AJobThatIsRemovedMeanwhileIsForgotten) {
  make(1000);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  ASSERT_FALSE(step(1));
  bench_.aggregator.remove_job(kJob);
  EXPECT_FALSE(step(1000));
  EXPECT_FALSE(bench_.aggregator.is_replacing());
}

TEST_F(ReplaceTest, OneJobsReplacementsDoNotKeepAnothersWaiting) {
  constexpr JobSlot kOther{1};
  make(100'000);
  ASSERT_TRUE(bench_.aggregator.add_job(kOther, {.workers = 1}));
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  ASSERT_TRUE(bench_.aggregator.replace(kOther, 0, kNext));
  for (int steps = 0; !step(10); ++steps) ASSERT_LT(steps, 2);
  EXPECT_EQ(replaced_.job, kOther);
}

TEST_F(ReplaceTest, AWorkerThatHasHadALifeIsReplacedNotAdmitted) {
  make(1);
  EXPECT_TRUE(bench_.aggregator.admit(kJob, 0, incarnation_of(0))) << "another session of it";
  EXPECT_EQ(bench_.aggregator.admit(kJob, 0, kNext).error().code, Errc::kExists);
  ASSERT_TRUE(bench_.aggregator.replace(kJob, 0, kNext));
  EXPECT_TRUE(bench_.aggregator.admit(kJob, 0, kNext));
  EXPECT_EQ(push(0, 1, 0, 1, kNext), PushVerdict::kSlotBusy) << "its last life is still there";
}

// With a quorum the withdrawal of one completes what only it was waited for in, in steps too.
TEST(Withdraw, NoStepLooksAtMoreChunksThanItIsTold) {
  constexpr uint32_t kMany = 10'000, kEachTime = 100;
  Aggregator aggregator({[](void*, PayloadPin&) { return false; }});
  ASSERT_TRUE(
      aggregator.add_job(kJob, {.workers = 2, .terms = {.quorum = 1, .patience_ms = 1'000'000}}));
  for (uint16_t w = 0; w < 2; ++w) {
    ASSERT_TRUE(aggregator.admit(kJob, Rank(w), incarnation_of(w)));
  }
  ASSERT_TRUE(aggregator.add_tensor(
      kJob, {.tensor = 1, .numel = kMany, .chunk_elems = 1, .chunk_count = kMany}));
  const Bytes payload = floats({1});
  for (uint32_t chunk = 0; chunk < kMany; ++chunk) {
    ASSERT_EQ(aggregator.push(Bench::contribution(0, 1, chunk, payload)).verdict,
              PushVerdict::kAdded);
  }
  aggregator.withdraw(kJob, 1);
  OverdueChunk due;
  uint32_t completed = 0, steps = 0;
  ReplacedWorker none;
  for (; completed < kMany && steps < 10 * kMany / kEachTime; ++steps) {
    uint32_t looks = kEachTime;
    EXPECT_FALSE(aggregator.take_replaced(looks, none));
    for (looks = kEachTime; aggregator.take_overdue(0, looks, due);) ++completed;
    ASSERT_LE(completed, (steps + 1) * kEachTime);
  }
  EXPECT_EQ(completed, kMany);
}

// Random pushes between steps of any length: a sum holds each worker once, of one of its lives.
TEST(ReplaceRandomly, NoSumHoldsTwoLivesOfAWorkerOrNone) {
  constexpr uint32_t kWorkers = 3, kMany = 40;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    Aggregator aggregator({[](void*, PayloadPin&) { return false; }});
    ASSERT_TRUE(aggregator.add_job(kJob, {.workers = kWorkers}));
    std::vector<uint32_t> lives(kWorkers);
    for (uint16_t w = 0; w < kWorkers; ++w) {
      lives[w] = incarnation_of(w);
      ASSERT_TRUE(aggregator.admit(kJob, Rank(w), lives[w]));
    }
    ASSERT_TRUE(aggregator.add_tensor(kJob, {.tensor = 1,
                                             .numel = kMany,
                                             .dtype = Dtype::kI64,
                                             .chunk_elems = 1,
                                             .chunk_count = kMany}));
    std::vector<uint32_t> round(kMany, 1);
    uint32_t replaced = 0, sums = 0;
    for (uint32_t turn = 0; turn < 20'000; ++turn) {
      const auto w = static_cast<uint16_t>(random() % kWorkers);
      if (random() % 500 == 0) {
        lives[w] += 1000;
        ASSERT_TRUE(aggregator.replace(kJob, Rank(w), lives[w]));
      }
      ReplacedWorker done;
      auto looks = static_cast<uint32_t>(random() % 3);
      if (aggregator.take_replaced(looks, done)) {
        ++replaced;
        ASSERT_GE(done.rounds.front().round.value, *std::min_element(round.begin(), round.end()))
            << "and no chunk's round is lower later";
      }
      // A life's contribution is 1 in the byte of its worker: 2 there would be two lives.
      const auto chunk = static_cast<uint32_t>(random() % kMany);
      const Bytes payload = bytes_of(std::vector<int64_t>{int64_t{1} << (8 * w)});
      Contribution c = Bench::contribution(w, round[chunk], chunk, payload);
      c.incarnation = lives[w];
      if (aggregator.push(c).verdict != PushVerdict::kCompleted) continue;
      ChunkResult out;
      ASSERT_TRUE(aggregator.result(kJob, {0, Round(round[chunk]), ChunkIndex(chunk)}, out));
      int64_t sum = 0;
      std::memcpy(&sum, out.elements.data(), sizeof sum);
      ASSERT_EQ(sum, 0x010101) << "seed " << seed << ", turn " << turn;
      ++round[chunk];
      ++sums;
    }
    EXPECT_GT(replaced, 10U);
    EXPECT_GT(sums, 1000U);
  }
}

}  // namespace
}  // namespace mercury
