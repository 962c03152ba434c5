// Workers that leave while others go on: what needs nothing more of them is complete, and whoever
// waits for their part hears of it as fast as the news travels. Over the simulated network.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kOneWayNs = kMillisecond;
// The leaver tells the coordinator, it the servers, a server it, and it the workers. A push that
// comes later has its own way to the server instead of the first two. A fifth is for what the
// engines do.
constexpr uint64_t kNewsNs = 5 * kOneWayNs;
// Beyond any limit: whoever is not told waits for ever.
constexpr uint64_t kForEverNs = 3600 * kSecond;

class LeavingTest : public testing::Test {
 protected:
  static ClusterConfig config() {
    ClusterConfig config = ClusterConfig::three_workers();
    config.link.delay_ns = kOneWayNs / 2;  // to the switch, and from it
    return config;
  }
  // Tensor 4 has chunks on both servers, tensor 5 one chunk, so on one of them only.
  static std::vector<TensorDeclaration> tensors() {
    TensorDeclaration large;
    large.tensor = 4;
    large.numel = 20'000;
    large.dtype = Dtype::kI32;
    TensorDeclaration small = large;
    small.tensor = 5;
    small.numel = 10;
    return {large, small};
  }
  void open(OpenJob job = {}) {
    job.name = "leaving";
    const Status opened = cluster.open_job(job, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ASSERT_TRUE(cluster.declare(tensors(), 20 * kSecond).ok());
  }
  void submit(uint32_t worker, SubmitOp op, uint32_t tensor = 4, int32_t value = 1) {
    auto& memory = cluster.program(worker).memory(tensor);
    std::fill_n(reinterpret_cast<int32_t*>(memory.data()), memory.size() / 4, value);
    cluster.program(worker).submit(op, tensor, 0, ++cookies_[worker]);
  }
  void push(uint32_t worker, uint32_t tensor = 4, int32_t value = 1) {
    submit(worker, SubmitOp::kPushPull, tensor, value);
  }
  bool done(uint32_t worker) { return cluster.program(worker).done(cookies_[worker]); }
  Errc status(uint32_t worker) { return cluster.program(worker).status(cookies_[worker]); }
  void exchange(std::vector<uint32_t> workers, uint32_t tensor = 4) {
    for (const uint32_t w : workers) push(w, tensor);
    ASSERT_TRUE(cluster.run(
        [&] {
          return std::all_of(workers.begin(), workers.end(), [&](auto w) { return done(w); });
        },
        kSecond));
    for (const uint32_t w : workers) ASSERT_EQ(status(w), Errc::kOk);
  }
  // The program calls, and does not wait: its host goes on.
  void leave(uint32_t worker) {
    cluster.worker_host(worker).jobs().close_job(
        cluster.client(worker), cluster.program(worker).slot, cluster.now_ns(), [] {});
  }
  std::string reason(uint32_t worker) {
    const Status status = cluster.worker_host(worker).jobs().job_status(
        cluster.client(worker), cluster.program(worker).slot);
    return status ? "" : status.error().message;
  }
  void expect_told(uint32_t worker, uint32_t leaver, const std::string& what) {
    ASSERT_TRUE(done(worker));
    EXPECT_EQ(status(worker), Errc::kPeerLeft);
    const std::string text = reason(worker);
    EXPECT_TRUE(text.starts_with("worker " + std::to_string(leaver) + " of 3 (")) << text;
    EXPECT_NE(text.find(") left the job while tensor " + what), std::string::npos) << text;
  }
  int32_t sum(uint32_t worker, uint32_t tensor = 4) {
    int32_t first = 0;
    std::memcpy(&first, cluster.program(worker).memory(tensor).data(), sizeof first);
    return first;
  }

  SimCluster cluster{config()};
  uint64_t cookies_[3] = {};
};

TEST_F(LeavingTest, WhoWaitsHearsOfItInTwoRoundTrips) {
  open();
  exchange({0, 1, 2});
  push(0);
  push(1);
  ASSERT_FALSE(cluster.run([&] { return done(0) || done(1); }, kSecond));
  leave(2);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kNewsNs));
  expect_told(0, 2, "4 waits for it in round 2");
  expect_told(1, 2, "4 waits for it in round 2");
  EXPECT_TRUE(cluster.close(kSecond));
}

TEST_F(LeavingTest, WhoBeginsARoundLaterHearsOfItAsSoon) {
  open();
  exchange({0, 1, 2});
  leave(2);
  ASSERT_FALSE(cluster.run([&] { return !reason(0).empty() || !reason(1).empty(); }, 600 * kSecond))
      << "nobody waits";
  push(0, 5);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  expect_told(0, 2, "5 waits for it in round 1");
  cluster.run([] { return false; }, kNewsNs);
  push(1, 5);  // which is known already
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kMillisecond / 10));
  expect_told(1, 2, "5 waits for it in round 1");
  push(1);
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kNewsNs));
  EXPECT_EQ(status(1), Errc::kPeerLeft);
  EXPECT_TRUE(cluster.close(kSecond));
}

TEST_F(LeavingTest, NobodyWaitsAndTheJobEndsInOrder) {
  open();
  for (uint32_t w = 0; w < 3; ++w) {
    if (w == 0) exchange({0, 1, 2});
    leave(w);
    cluster.run([] { return false; }, 100 * kSecond);
    for (uint32_t other = w + 1; other < 3; ++other) EXPECT_EQ(reason(other), "");
  }
  EXPECT_TRUE(cluster.run([&] { return cluster.server_host(0).jobs().idle(); }, 10 * kSecond));
}

// It has pushed all of its last round, and goes before the others have begun it.
TEST_F(LeavingTest, WhatItHasContributedToIsComplete) {
  open();
  exchange({0, 1, 2});
  submit(2, SubmitOp::kPush, 4, 100);
  ASSERT_TRUE(cluster.run([&] { return done(2); }, kSecond));
  leave(2);
  cluster.run([] { return false; }, 100 * kSecond);
  push(0);
  cluster.run([] { return false; }, 100 * kSecond);
  push(1);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kSecond));
  for (const uint32_t w : {0U, 1U}) {
    EXPECT_EQ(status(w), Errc::kOk);
    EXPECT_EQ(sum(w), 102);
    EXPECT_EQ(reason(w), "");
  }
  push(0);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  expect_told(0, 2, "4 waits for it in round 3");
}

// Its last round is complete for worker 0, which waits for another; worker 1 is still in it.
TEST_F(LeavingTest, WhoIsBehindGetsTheLastSumAfterOthersWereTold) {
  open();
  push(0);
  push(2, 4, 10);
  submit(1, SubmitOp::kPush);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(2); }, kSecond));
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kSecond));
  push(0);
  leave(2);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  expect_told(0, 2, "4 waits for it in round 2");
  cluster.run([] { return false; }, 100 * kSecond);
  cluster.program(1).submit(SubmitOp::kPull, 4, 0, ++cookies_[1]);
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kSecond));
  EXPECT_EQ(status(1), Errc::kOk);
  EXPECT_EQ(sum(1), 12);
  push(1, 5);
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kNewsNs));
  expect_told(1, 2, "4 waits for it in round 2");  // as it heard first
}

TEST_F(LeavingTest, AmidItsOwnPushItEndsTheRoundForAll) {
  open();
  for (uint32_t w = 0; w < 3; ++w) push(w);
  leave(2);  // before a chunk of it has left
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, 2 * kNewsNs));
  expect_told(0, 2, "4 waits for it in round 1");
  expect_told(1, 2, "4 waits for it in round 1");
}

TEST_F(LeavingTest, ATensorThatIsDeclaredLaterFailsAsOften) {
  open();
  leave(2);
  cluster.run([] { return false; }, kSecond);
  TensorDeclaration late = tensors().back();
  late.tensor = 6;
  ASSERT_TRUE(cluster.declare_on(0, {late}, kSecond).ok());
  push(0, 6);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  expect_told(0, 2, "6 waits for it in round 1");
  EXPECT_NE(reason(0).find("; it had not declared tensor 6"), std::string::npos) << reason(0);
}

TEST_F(LeavingTest, ARefusedDeclarationIsNamedWhenItsProgramGoes) {
  open();
  TensorDeclaration right = tensors().back();
  right.tensor = 7;
  TensorDeclaration wrong = right;
  wrong.numel = 11;
  ASSERT_TRUE(cluster.declare_on(0, {right}, kSecond).ok());
  ASSERT_TRUE(cluster.declare_on(1, {right}, kSecond).ok());
  const Status refused = cluster.declare_on(2, {wrong}, kSecond);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kTensorMismatch);
  push(0, 7);
  push(1, 7);
  ASSERT_FALSE(cluster.run([&] { return done(0) || done(1); }, 60 * kSecond))
      << "it may declare it rightly";
  leave(2);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kNewsNs));
  for (const uint32_t w : {0U, 1U}) {
    expect_told(w, 2,
                "7 waits for it in round 1; its declaration was refused: tensor 7 is "
                "declared by worker 2 as 11 x i32, sum, by worker 0 as 10 x i32, sum");
  }
}

TEST_F(LeavingTest, ARefusedDeclarationIsNamedWhenItsProgramIsKilled) {
  open();
  TensorDeclaration wrong = tensors().back();
  wrong.tensor = 7;
  ASSERT_TRUE(cluster.declare_on(0, {wrong}, kSecond).ok());
  wrong.numel = 11;
  ASSERT_FALSE(cluster.declare_on(2, {wrong}, kSecond).ok());
  push(0, 7);
  ASSERT_TRUE(cluster.end_program(2, kSecond));
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  EXPECT_EQ(status(0), Errc::kPeerLeft);
  EXPECT_NE(reason(0).find("its program ended; its declaration was refused: tensor 7 is declared"),
            std::string::npos)
      << reason(0);
}

// Two are enough, and then there is one.
TEST_F(LeavingTest, WithAQuorumWhatTheRestCanDoAloneIsComplete) {
  OpenJob job;
  job.terms.quorum = 2;
  job.terms.patience_ms = to_ms(50 * kMillisecond);
  open(job);
  exchange({0, 1, 2});
  leave(2);
  cluster.run([] { return false; }, kSecond);
  exchange({0, 1});
  push(0);
  submit(1, SubmitOp::kPush);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kSecond));
  leave(1);
  cluster.run([] { return false; }, 100 * kSecond);
  EXPECT_EQ(reason(0), "");
  push(0);
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kNewsNs));
  expect_told(0, 1, "4 waits for it in round 4");
}

// A worker that lives, in a job that is ending.
TEST_F(LeavingTest, WhoStallsIsWaitedForNoLongerThanEver) {
  OpenJob job;
  job.terms.stall_timeout_ms = to_ms(40 * kSecond);
  open(job);
  submit(2, SubmitOp::kPush);
  ASSERT_TRUE(cluster.run([&] { return done(2); }, kSecond));
  leave(2);
  push(0);
  ASSERT_FALSE(cluster.run([&] { return done(0); }, to_ns(job.terms.stall_timeout_ms)));
  ASSERT_TRUE(
      cluster.run([&] { return done(0); }, to_ns(job.terms.stall_timeout_ms) / 8 + kSecond));
  EXPECT_EQ(status(0), Errc::kMissingMembers);
  EXPECT_NE(reason(0).find("worker 1 of 3"), std::string::npos) << reason(0);
}

TEST(LeavingSeeds, WhateverIsLostOnTheWayTheNewsArrives) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ClusterConfig config = ClusterConfig::three_workers();
    config.seed = seed;
    config.link.faults.loss = 0.2;
    SimCluster cluster(config);
    OpenJob job;
    job.name = "leaving";
    ASSERT_TRUE(cluster.open_job(job, 60 * kSecond).ok()) << seed;
    TensorDeclaration tensor;
    tensor.tensor = 4;
    tensor.numel = 20'000;
    tensor.dtype = Dtype::kI32;
    ASSERT_TRUE(cluster.declare({tensor}, 60 * kSecond).ok()) << seed;
    for (uint32_t w = 0; w < 3; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 4, 0, 1);
    cluster.run([] { return false; }, seed * kMillisecond / 10);  // somewhere in the exchange
    cluster.worker_host(2).jobs().close_job(cluster.client(2), cluster.program(2).slot,
                                            cluster.now_ns(), [] {});
    for (const uint32_t w : {0U, 1U}) {
      ASSERT_TRUE(cluster.run([&] { return cluster.program(w).done(1); }, kForEverNs)) << seed;
      const Errc first = cluster.program(w).status(1);
      ASSERT_TRUE(first == Errc::kOk || first == Errc::kPeerLeft) << seed;
      if (first != Errc::kOk) continue;
      cluster.program(w).submit(SubmitOp::kPushPull, 4, 0, 2);
      ASSERT_TRUE(cluster.run([&] { return cluster.program(w).done(2); }, 10 * kSecond)) << seed;
      ASSERT_EQ(cluster.program(w).status(2), Errc::kPeerLeft) << seed;
    }
    ASSERT_TRUE(cluster.close(60 * kSecond)) << seed;
  }
}

}  // namespace
}  // namespace mercury
