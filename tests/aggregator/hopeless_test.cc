// Rounds that those who have left would have to be in.
#include <gtest/gtest.h>

#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

class HopelessTest : public testing::Test {
 protected:
  void make(uint16_t workers, uint16_t quorum = 0, bool deterministic = false) {
    ASSERT_TRUE(aggregator_.add_job(kJob, {.workers = workers,
                                           .terms = {.deterministic = deterministic,
                                                     .quorum = quorum,
                                                     .patience_ms = quorum > 0 ? 1U : 0U}}));
    for (uint16_t w = 0; w < workers; ++w) {
      ASSERT_TRUE(aggregator_.admit(kJob, Rank(w), incarnation_of(w)));
    }
    for (uint32_t tensor : {1, 2}) {
      ASSERT_TRUE(aggregator_.add_tensor(
          kJob, {.tensor = TensorId(tensor), .numel = 40, .chunk_elems = 10, .chunk_count = 4}));
    }
  }
  PushVerdict push(uint32_t worker, uint32_t round, uint32_t chunk, uint32_t tensor = 1) {
    const Bytes elements = floats(std::vector<float>(10, 1));
    Contribution c = Bench::contribution(worker, round, chunk, elements);
    c.tensor = TensorId(tensor);
    return aggregator_.push(c).verdict;
  }
  void leave(Rank worker) {
    aggregator_.withdraw(kJob, worker);
    aggregator_.end_admission(kJob);
  }
  // Looks in steps, as an engine does, until nothing is left to look at.
  bool found() {
    for (int step = 0; aggregator_.seeks_hopeless(); ++step) {
      if (step == 1000) ADD_FAILURE() << "it never ends";
      uint32_t looks = 3;
      if (aggregator_.take_hopeless(looks, hopeless_)) return true;
    }
    return false;
  }
  void expect_found(uint32_t tensor, uint32_t round, WorkerSet missing) {
    ASSERT_TRUE(found());
    EXPECT_EQ(hopeless_.job.value, kJob.value);
    EXPECT_EQ(hopeless_.at, (TensorRound{TensorId(tensor), Round(round)}));
    EXPECT_EQ(hopeless_.missing, missing);
  }

  HopelessRound hopeless_;
  Aggregator aggregator_{PortMemory{[](void*, PayloadPin&) { return false; }}};
};

TEST_F(HopelessTest, WhatIsOpenWhenOneLeavesAndWhatIsOpenedLater) {
  make(3);
  push(0, 1, 2, 2);
  EXPECT_FALSE(aggregator_.seeks_hopeless()) << "nobody has left";
  leave(1);
  expect_found(2, 1, {0b010});
  EXPECT_FALSE(found()) << "once";
  push(2, 1, 2, 2);
  push(0, 1, 3, 2);
  EXPECT_FALSE(found()) << "of a tensor";
  push(2, 1, 0, 1);
  expect_found(1, 1, {0b010});
  EXPECT_FALSE(found());
}

TEST_F(HopelessTest, ARoundThatItIsInIsNot) {
  make(3, 0, true);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) push(1, 1, chunk);
  leave(1);
  EXPECT_FALSE(found());
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(push(2, 1, chunk), PushVerdict::kAdded);
    EXPECT_FALSE(found());
    EXPECT_EQ(push(0, 1, chunk), PushVerdict::kCompleted);
    EXPECT_FALSE(found());
  }
  push(0, 2, 3);
  expect_found(1, 2, {0b010});
}

// It has left amid its push: chunk 0 has its part of round 1, chunk 1 has not.
TEST_F(HopelessTest, ALowerRoundOfTheSameTensorIsNamedAgain) {
  make(2);
  push(1, 1, 0);
  EXPECT_EQ(push(0, 1, 0), PushVerdict::kCompleted);
  leave(1);
  push(0, 2, 0);
  expect_found(1, 2, {0b10});
  push(0, 1, 1);
  expect_found(1, 1, {0b10});
  push(0, 1, 2);
  EXPECT_FALSE(found());
}

TEST_F(HopelessTest, EveryOneThatLeavesIsLookedFor) {
  make(70);
  for (uint32_t w = 0; w < 70; ++w) {
    if (w != 69) push(w, 1, 1, 1);
  }
  push(0, 1, 0, 2);
  leave(3);
  expect_found(2, 1, {0b1000, 0});
  EXPECT_FALSE(found()) << "tensor 1 has the part of worker 3";
  leave(69);
  expect_found(1, 1, {0, 0b100000});
  EXPECT_FALSE(found());
}

TEST_F(HopelessTest, WithAQuorumWhatTheOthersCannotCompleteAlone) {
  make(4, 2);
  leave(3);
  leave(2);
  push(0, 1, 0);
  EXPECT_FALSE(found()) << "two are there";
  leave(1);
  expect_found(1, 1, {0b1110});
}

TEST_F(HopelessTest, AJobThatIsRemovedIsNotLookedAt) {
  make(2);
  push(0, 1, 0);
  leave(1);
  aggregator_.remove_job(kJob);
  EXPECT_FALSE(found());
  make(2);
  push(0, 1, 0);
  EXPECT_FALSE(found()) << "nobody has left this one";
}

}  // namespace
}  // namespace mercury
