// Jobs that go on without slow and lost workers, over the simulated network.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPatienceNs = 50'000'000;

class QuorumTest : public testing::Test {
 protected:
  virtual OpenJob job() const {
    OpenJob open;
    open.name = "quorum";
    open.terms.quorum = 2;
    open.terms.patience_ms = to_ms(kPatienceNs);
    return open;
  }
  static std::vector<TensorDeclaration> tensors() {
    TensorDeclaration t;
    t.tensor = 4;
    t.numel = 20'000;
    t.dtype = Dtype::kI32;
    return {t};
  }
  void SetUp() override {
    const Status opened = cluster.open_job(job(), 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ASSERT_TRUE(cluster.declare(tensors(), 20 * kSecond).ok());
  }
  int32_t* data(uint32_t worker) {
    return reinterpret_cast<int32_t*>(cluster.program(worker).memory(4).data());
  }
  // Worker w contributes 10^w * round to every element.
  static int32_t value(uint32_t worker, uint32_t round) {
    return (worker == 0 ? 1 : worker == 1 ? 100 : 10000) * static_cast<int32_t>(round);
  }
  void push(uint32_t worker, uint32_t round) {
    std::fill_n(data(worker), 20'000, value(worker, round));
    cluster.program(worker).submit(SubmitOp::kPushPull, 4, 0, ++cookies_[worker]);
  }
  bool done(uint32_t worker) { return cluster.program(worker).done(cookies_[worker]); }
  void expect_sum(uint32_t worker, int32_t sum, uint64_t absent) {
    ASSERT_TRUE(done(worker));
    EXPECT_EQ(cluster.program(worker).status(cookies_[worker]), Errc::kOk);
    for (size_t i = 0; i < 20'000; ++i) ASSERT_EQ(data(worker)[i], sum) << "element " << i;
    EXPECT_EQ(cluster.program(worker).absent(4).in_some[0], absent);
    EXPECT_EQ(cluster.program(worker).absent(4).in_all[0], absent);
  }

  SimCluster cluster{ClusterConfig::three_workers()};
  uint64_t cookies_[3] = {};
};

TEST_F(QuorumTest, EverybodyInTimeIsInTheSum) {
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t w = 0; w < 3; ++w) push(w, round);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
    for (uint32_t w = 0; w < 3; ++w) {
      expect_sum(w, value(0, round) + value(1, round) + value(2, round), 0);
    }
  }
  EXPECT_EQ(cluster.total(Counter::kQuorumResults), 0U);
  EXPECT_TRUE(cluster.close(10 * kSecond));
}

TEST_F(QuorumTest, ASlowWorkerIsLeftOutAndGetsTheSumOfTheOthers) {
  for (uint32_t round = 1; round <= 2; ++round) {
    push(0, round);
    push(1, round);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kSecond)) << round;
    for (uint32_t w = 0; w < 2; ++w) expect_sum(w, value(0, round) + value(1, round), 4);
  }
  push(0, 3);
  push(1, 3);
  EXPECT_FALSE(cluster.run([&] { return done(0) || done(1); }, kSecond))
      << "worker 2 may still need round 1's sums";
  push(2, 1);
  ASSERT_TRUE(cluster.run([&] { return done(2); }, kSecond));
  expect_sum(2, value(0, 1) + value(1, 1), 4);
  push(2, 2);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, 3 * kSecond));
  expect_sum(2, value(0, 2) + value(1, 2), 4);
  push(2, 3);  // the others' round 3 is complete, or takes it in
  ASSERT_TRUE(cluster.run([&] { return done(2); }, kSecond));
  EXPECT_EQ(std::memcmp(data(0), data(2), 80'000), 0);
  EXPECT_EQ(std::memcmp(data(0), data(1), 80'000), 0);
  EXPECT_TRUE(cluster.close(10 * kSecond));
  EXPECT_GT(cluster.total(Counter::kQuorumResults), 0U);
}

TEST_F(QuorumTest, WaitingForASlowWorkerIsNotSilence) {
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round);
    push(1, round);
    cluster.run([&] { return done(0) && done(1); }, kSecond);
  }
  ASSERT_FALSE(done(0) || done(1)) << "worker 2 may still need round 1's sums";
  cluster.run([] { return false; }, 20 * kSecond);  // ten times the peer time-out
  for (uint32_t round = 1; round <= 3; ++round) {
    push(2, round);
    ASSERT_TRUE(cluster.run([&] { return done(2); }, 5 * kSecond)) << round;
  }
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, 5 * kSecond));
  for (uint32_t w = 0; w < 3; ++w) {
    EXPECT_EQ(cluster.program(w).status(cookies_[w]), Errc::kOk);
    EXPECT_EQ(std::memcmp(data(w), data(2), 80'000), 0);
  }
  EXPECT_TRUE(cluster.close(10 * kSecond));
}

// What is forwarded as a whole may have been completed by everybody in one part and by time in
// another: the slow worker's contribution ends between.
class QuorumForwardTest : public QuorumTest, public testing::WithParamInterface<const char*> {
 protected:
  OpenJob job() const override {
    OpenJob open = QuorumTest::job();
    open.terms.policy = GetParam();
    return open;
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, QuorumForwardTest,
                         testing::Values("mercury:forward=tensor", "wfbp", "p3:partition=8KB",
                                         "byteps:partition=20KB"));

TEST_P(QuorumForwardTest, CountsWhatTimeCompleted) {
  for (uint32_t round = 1; round <= 4; ++round) {
    push(0, round);
    push(1, round);
    if (round % 2 == 0) {
      ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kSecond)) << round;
      expect_sum(0, value(0, round) + value(1, round), 4);
    }
    push(2, round);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond)) << round;
    const int32_t sum = value(0, round) + value(1, round) + (round % 2 == 0 ? 0 : value(2, round));
    for (uint32_t w = 0; w < 3; ++w) expect_sum(w, sum, round % 2 == 0 ? 4 : 0);
  }
  push(0, 5);
  push(1, 5);
  cluster.run([] { return false; }, kPatienceNs - 100'000);
  push(2, 5);  // so late that it is in some chunks alone
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
  for (uint32_t w = 0; w < 3; ++w) {
    for (size_t i = 0; i < 20'000; ++i) {
      const int32_t of_two = value(0, 5) + value(1, 5);
      ASSERT_TRUE(data(w)[i] == of_two || data(w)[i] == of_two + value(2, 5)) << i;
      ASSERT_EQ(data(w)[i], data(0)[i]) << i;
    }
    EXPECT_EQ(cluster.program(w).absent(4).in_some[0], cluster.program(0).absent(4).in_some[0]);
    EXPECT_EQ(cluster.program(w).absent(4).in_all[0], cluster.program(0).absent(4).in_all[0]);
  }
  EXPECT_TRUE(cluster.close(10 * kSecond));
}

TEST_F(QuorumTest, ALostHostIsLeftOutAndComesBack) {
  for (uint32_t w = 0; w < 3; ++w) push(w, 1);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
  cluster.crash_host(2);
  for (uint32_t round = 2; round <= 6; ++round) {
    push(0, round);
    push(1, round);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, 4 * kSecond)) << round;
    expect_sum(0, value(0, round) + value(1, round), 4);
  }
  cluster.start_host(2);
  cookies_[2] = 0;
  const Status opened = cluster.open_job_on(2, job(), 20 * kSecond);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ASSERT_TRUE(cluster.declare_on(2, tensors(), kSecond).ok());
  const uint32_t round = cluster.worker_host(2)
                             .jobs()
                             .first_round(cluster.client(2), cluster.program(2).slot, 4)
                             .value;
  EXPECT_EQ(round, 7U);
  for (uint32_t w = 0; w < 3; ++w) push(w, round);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, 3 * kSecond));
  for (uint32_t w = 0; w < 3; ++w) {
    expect_sum(w, value(0, round) + value(1, round) + value(2, round), 0);
  }
  EXPECT_TRUE(cluster.close(10 * kSecond));
  EXPECT_GT(cluster.total(Counter::kQuorumResults), 0U);
}

TEST_F(QuorumTest, WithoutItsQuorumTheJobFailsByName) {
  push(0, 1);
  cluster.crash_host(1);
  cluster.crash_host(2);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, 4 * kSecond));
  EXPECT_EQ(cluster.program(0).status(cookies_[0]), Errc::kPeerLost);
}

TEST_F(QuorumTest, WhoLeavesInOrderDoesNotEndItForTheOthers) {
  bool left = false;
  cluster.worker_host(1).jobs().close_job(cluster.client(1), cluster.program(1).slot,
                                          cluster.now_ns(), [&left] { left = true; });
  ASSERT_TRUE(cluster.run([&left] { return left; }, kSecond));
  for (uint32_t round = 1; round <= 20; ++round) {  // past any grace
    push(0, round);
    push(2, round);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(2); }, kSecond)) << round;
    expect_sum(0, value(0, round) + value(2, round), 2);
    cluster.run([] { return false; }, kSecond / 2);
  }
}

}  // namespace
}  // namespace mercury
