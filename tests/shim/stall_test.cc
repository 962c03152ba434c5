// Workers that live and do not push: whoever waits for them has an error, or goes on, in bounded
// time. Over the simulated network.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStallNs = 40 * kSecond;      // far beyond the peer time-out
constexpr uint64_t kBoundNs = kStallNs / 8 * 9;  // docs/reliability.md
constexpr uint64_t kDeliveryNs = kSecond / 10;   // of the news

class StallTest : public testing::Test {
 protected:
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
    job.name = "stall";
    if (asks_) job.terms.stall_timeout_ms = to_ms(kStallNs);
    job_ = job;
    const Status opened = cluster.open_job(job_, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    ASSERT_TRUE(cluster.declare(tensors(), 20 * kSecond).ok());
  }
  void push(uint32_t worker, uint32_t tensor = 4, int32_t value = 1) {
    auto& memory = cluster.program(worker).memory(tensor);
    std::fill_n(reinterpret_cast<int32_t*>(memory.data()), memory.size() / 4, value);
    cluster.program(worker).submit(SubmitOp::kPushPull, tensor, 0, ++cookies_[worker]);
  }
  bool done(uint32_t worker) { return cluster.program(worker).done(cookies_[worker]); }
  Errc status(uint32_t worker) { return cluster.program(worker).status(cookies_[worker]); }
  int32_t sum(uint32_t worker, uint32_t tensor = 4) {
    int32_t first = 0;
    std::memcpy(&first, cluster.program(worker).memory(tensor).data(), sizeof first);
    return first;
  }
  std::string reason(uint32_t worker) {
    const Status status = cluster.worker_host(worker).jobs().job_status(
        cluster.client(worker), cluster.program(worker).slot);
    return status ? "" : status.error().message;
  }
  void expect_named(uint32_t worker, const std::string& tensor, std::vector<uint32_t> missing) {
    const std::string text = reason(worker);
    EXPECT_NE(text.find("tensor " + tensor), std::string::npos) << text;
    for (uint32_t w = 0; w < 3; ++w) {
      const bool named = text.find("worker " + std::to_string(w) + " of 3") != std::string::npos;
      EXPECT_EQ(named, std::find(missing.begin(), missing.end(), w) != missing.end()) << text;
    }
    EXPECT_NE(text.find("stall_timeout_ms"), std::string::npos) << text;
  }

  bool asks_ = true;
  OpenJob job_;
  SimCluster cluster{ClusterConfig::three_workers()};
  uint64_t cookies_[3] = {};
};

TEST_F(StallTest, WhoWaitsHasTheTensorAndTheNames) {
  open();
  for (uint32_t w = 0; w < 3; ++w) push(w);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
  cluster.run([] { return false; }, 2 * kStallNs);  // nobody waits: nothing happens
  push(0);
  ASSERT_FALSE(cluster.run([&] { return done(0); }, kStallNs)) << "not before the limit";
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kBoundNs - kStallNs + kDeliveryNs));
  EXPECT_EQ(status(0), Errc::kMissingMembers);
  expect_named(0, "4 in round 2", {1, 2});
  push(1);  // what comes too late has the reason as well
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kDeliveryNs));
  EXPECT_EQ(status(1), Errc::kMissingMembers);
  EXPECT_EQ(reason(1), reason(0));
}

TEST_F(StallTest, OneServerSeesContributionsAndTheOtherNone) {
  open();
  push(0, 5);
  push(1, 5);
  ASSERT_FALSE(cluster.run([&] { return done(0); }, kStallNs));
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kBoundNs - kStallNs + kDeliveryNs));
  EXPECT_EQ(status(0), Errc::kMissingMembers);
  EXPECT_EQ(status(1), Errc::kMissingMembers);
  expect_named(0, "5 in round 1", {2});
  EXPECT_TRUE(cluster.run([&] { return !reason(2).empty(); }, kDeliveryNs))
      << "who did not push hears of it, too";
}

TEST_F(StallTest, NeverIfNobodyAsksForIt) {
  asks_ = false;
  open();
  push(0);
  push(1);
  EXPECT_FALSE(cluster.run([&] { return done(0); }, 3 * kStallNs));
  push(2);
  EXPECT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
  EXPECT_EQ(status(0), Errc::kOk);
}

// Its host answers for it; it counts as lost all the same, and another takes its place.
TEST_F(StallTest, WithTimeToComeBackItIsWaitedForAsIfLost) {
  OpenJob job;
  job.terms.rejoin_ms = to_ms(30 * kSecond);
  open(job);
  push(0);
  push(1);
  ASSERT_TRUE(cluster.run([&] { return !reason(2).empty(); }, kBoundNs + kDeliveryNs));
  expect_named(2, "4 in round 1", {2});
  EXPECT_FALSE(cluster.run([&] { return done(0) || done(1); }, 20 * kSecond));
  ASSERT_TRUE(cluster.end_program(2, 5 * kSecond));
  cookies_[2] = 0;
  const Status opened = cluster.open_job_on(2, job_, 5 * kSecond);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ASSERT_TRUE(cluster.declare_on(2, tensors(), kSecond).ok());
  EXPECT_FALSE(cluster.run([&] { return done(0) || done(1); }, kStallNs - kSecond))
      << "it has the whole time";
  push(2, 4, 5);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1) && done(2); }, kSecond));
  for (uint32_t w = 0; w < 3; ++w) {
    EXPECT_EQ(status(w), Errc::kOk);
    EXPECT_EQ(sum(w), 7);
  }
  EXPECT_TRUE(cluster.close(10 * kSecond));
}

TEST_F(StallTest, NobodyComesBack) {
  OpenJob job;
  job.terms.rejoin_ms = to_ms(30 * kSecond);
  open(job);
  push(0);
  ASSERT_FALSE(cluster.run([&] { return done(0); }, kStallNs + to_ns(job.terms.rejoin_ms)));
  ASSERT_TRUE(cluster.run([&] { return done(0); }, kBoundNs - kStallNs + kDeliveryNs));
  EXPECT_EQ(status(0), Errc::kMissingMembers);
  const std::string text = reason(0);
  EXPECT_NE(text.find("tensor 4 in round 1"), std::string::npos) << text;
}

TEST_F(StallTest, WithAQuorumTheOthersGoOn) {
  OpenJob job;
  job.terms.quorum = 2;
  job.terms.patience_ms = to_ms(kSecond);
  open(job);
  for (uint32_t round = 1; round <= 2; ++round) {
    push(0);
    push(1);
    ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, 2 * kSecond)) << round;
  }
  push(0);
  push(1);
  ASSERT_FALSE(cluster.run([&] { return done(0); }, kStallNs)) << "round 1's sum is worker 2's";
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kBoundNs - kStallNs + kDeliveryNs));
  EXPECT_EQ(status(0), Errc::kOk);
  EXPECT_EQ(sum(0), 2);
  expect_named(2, "4 in round 3", {2});
  push(0);
  push(1);
  ASSERT_TRUE(cluster.run([&] { return done(0) && done(1); }, kDeliveryNs)) << "not even patience";
  EXPECT_EQ(status(0), Errc::kOk);
}

TEST_F(StallTest, WithoutItsQuorumTheJobFails) {
  OpenJob job;
  job.terms.quorum = 2;
  job.terms.patience_ms = to_ms(kSecond);
  open(job);
  push(1);
  ASSERT_FALSE(cluster.run([&] { return done(1); }, kStallNs));
  ASSERT_TRUE(cluster.run([&] { return done(1); }, kBoundNs - kStallNs + kDeliveryNs));
  EXPECT_EQ(status(1), Errc::kMissingMembers);
  expect_named(1, "4 in round 1", {0, 2});
}

}  // namespace
}  // namespace mercury
