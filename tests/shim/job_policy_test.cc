// The knobs of a job's policy on the whole stack over the simulated network: every sum stays exact
// under each of them, and while they change.
#include <gtest/gtest.h>

#include <array>

#include "tests/shim/sim_cluster.h"
#include "transport/base/random.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Small partitions, so that small tensors have many.
constexpr std::array kPolicies = {
    "mercury",
    "mercury-fifo",
    "wfbp",
    "mercury:forward=tensor",
    "p3:partition=10KB,credit=10KB,startup=20us",
    "bytescheduler:partition=20KB,credit=100KB,startup=0",
    "byteps:partition=9KB,credit=36KB,startup=5us,order=fifo,forward=chunk",
    "bytescheduler:partition=1MB,credit=1MB,startup=100us,forward=tensor",
    "mercury:answers=fifo,grants=even",
    "mercury:answers=fifo,grants=even,unit=30KB",
    "mercury:unit=9KB,forward=tensor",
    "mercury-fifo:unit=100KB",
};
// These stay where they were placed.
constexpr std::array kPlacing = {"wfbp:place=key", "mercury:place=key",
                                 "mercury:place=key,unit=30KB,answers=fifo"};

std::vector<TensorDeclaration> tensors() {
  std::vector<TensorDeclaration> all;
  for (const uint64_t numel : {1, 40'000, 700, 25'001}) {
    TensorDeclaration declaration;
    declaration.tensor = TensorId(static_cast<uint32_t>(all.size()));
    declaration.numel = numel;
    declaration.dtype = Dtype::kI32;
    declaration.priority = static_cast<uint16_t>(all.size() * 100);
    all.push_back(declaration);
  }
  return all;
}

int32_t element(uint32_t worker, uint64_t round, size_t i) {
  return static_cast<int32_t>((worker + 1) * 1000 + round * 7 + i * (worker + 3));
}

class JobPolicy : public testing::Test {
 protected:
  void start(const ClusterConfig& config, const std::string& policy) {
    config_ = config;
    cluster_ = std::make_unique<SimCluster>(config);
    OpenJob open;
    open.name = "policies";
    open.terms.policy = policy;
    const Status opened = cluster_->open_job(open, 20 * kSecond);
    ASSERT_TRUE(opened) << opened.error().message;
    const Status declared = cluster_->declare(tensors_, 20 * kSecond);
    ASSERT_TRUE(declared) << declared.error().message;
  }
  void push(uint64_t round) {
    for (uint32_t w = 0; w < config_.workers; ++w) {
      for (const TensorDeclaration& t : tensors_) {
        auto* data = reinterpret_cast<int32_t*>(cluster_->program(w).memory(t.tensor.value).data());
        for (size_t i = 0; i < t.numel; ++i) data[i] = element(w, round, i);
        cluster_->program(w).submit(SubmitOp::kPushPull, t.tensor.value, t.priority,
                                    cookie(round, t.tensor.value));
      }
    }
  }
  bool done(uint64_t round) {
    for (uint32_t w = 0; w < config_.workers; ++w) {
      for (const TensorDeclaration& t : tensors_) {
        if (!cluster_->program(w).done(cookie(round, t.tensor.value))) return false;
      }
    }
    return true;
  }
  void expect_sums(uint64_t round, const std::string& what) {
    for (uint32_t w = 0; w < config_.workers; ++w) {
      for (const TensorDeclaration& t : tensors_) {
        ASSERT_EQ(cluster_->program(w).status(cookie(round, t.tensor.value)), Errc::kOk) << what;
        const auto* data =
            reinterpret_cast<int32_t*>(cluster_->program(w).memory(t.tensor.value).data());
        for (size_t i = 0; i < t.numel; ++i) {
          int32_t sum = 0;
          for (uint32_t v = 0; v < config_.workers; ++v) sum += element(v, round, i);
          ASSERT_EQ(data[i], sum) << what << " round " << round << " worker " << w << " tensor "
                                  << t.tensor.value << " element " << i;
        }
      }
    }
  }
  static uint64_t cookie(uint64_t round, uint32_t tensor) { return round * 1000 + tensor + 1; }

  std::vector<TensorDeclaration> tensors_ = tensors();
  ClusterConfig config_;
  std::unique_ptr<SimCluster> cluster_;
};

TEST_F(JobPolicy, KeepsSumsExactUnderLoss) {
  for (const char* policy : kPolicies) {
    ClusterConfig config;
    config.workers = 3;
    config.worker_lanes = 2;
    config.server_lanes = 2;
    config.link.faults.loss = 0.01;
    ASSERT_NO_FATAL_FAILURE(start(config, policy));
    for (uint64_t round = 1; round <= 2; ++round) {
      push(round);
      ASSERT_TRUE(cluster_->run([&] { return done(round); }, 60 * kSecond)) << policy << " hangs";
      ASSERT_NO_FATAL_FAILURE(expect_sums(round, policy));
    }
    ASSERT_TRUE(cluster_->close(30 * kSecond)) << policy;
  }
}

TEST_F(JobPolicy, KeepsEachTensorWhereItWasPlaced) {
  for (const char* policy : kPlacing) {
    ClusterConfig config;
    config.workers = 3;
    config.servers = 3;
    config.worker_lanes = 2;
    config.link.faults.loss = 0.01;
    ASSERT_NO_FATAL_FAILURE(start(config, policy));
    for (uint64_t round = 1; round <= 4; ++round) {
      push(round);
      ASSERT_TRUE(cluster_->run([&] { return done(round); }, 60 * kSecond)) << policy << " hangs";
      ASSERT_NO_FATAL_FAILURE(expect_sums(round, policy));
      const Status changed = cluster_->worker_host(0).jobs().set_policy(
          cluster_->client(0), cluster_->program(0).slot,
          round == 2 ? "mercury-fifo:unit=30KB,place=key" : "mercury:place=key",
          cluster_->now_ns());
      ASSERT_TRUE(changed) << changed.error().message;
    }
    EXPECT_EQ(cluster_->total(Counter::kDropChunkRange), 0U) << policy;
    ASSERT_TRUE(cluster_->close(30 * kSecond)) << policy;
  }
}

// Whoever asks for it, past the library, ends its job.
TEST_F(JobPolicy, MovesNoTensorToAnotherServer) {
  for (const char* policy : {"mercury", "p3"}) {
    ASSERT_NO_FATAL_FAILURE(start(ClusterConfig{}, "wfbp:place=key"));
    const auto status = [this] {
      return cluster_->worker_host(0).jobs().job_status(cluster_->client(0),
                                                        cluster_->program(0).slot);
    };
    ASSERT_TRUE(status());
    ASSERT_TRUE(cluster_->worker_host(0).jobs().set_policy(
        cluster_->client(0), cluster_->program(0).slot, policy, cluster_->now_ns()));
    push(1);
    ASSERT_TRUE(cluster_->run([&] { return !status(); }, 10 * kSecond)) << policy;
    EXPECT_NE(status().error().message.find("on other servers than the job's"), std::string::npos)
        << status().error().message;
  }
}

TEST_F(JobPolicy, ChangesWhileItRunsWithoutLosingAChunk) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    ClusterConfig config;
    config.seed = seed;
    config.link.faults.loss = seed % 2 == 0 ? 0.01 : 0;
    ASSERT_NO_FATAL_FAILURE(start(config, kPolicies[random.below(kPolicies.size())]));
    for (uint64_t round = 1; round <= 4; ++round) {
      push(round);
      // An exchange takes about half a millisecond.
      while (!cluster_->run([&] { return done(round); }, 20'000 + random.below(300'000))) {
        const auto worker = static_cast<uint32_t>(random.below(config.workers));
        const char* policy = kPolicies[random.below(kPolicies.size())];
        const Status changed = cluster_->worker_host(worker).jobs().set_policy(
            cluster_->client(worker), cluster_->program(worker).slot, policy, cluster_->now_ns());
        ASSERT_TRUE(changed) << changed.error().message;
        ASSERT_LT(cluster_->now_ns(), 60 * kSecond) << "seed " << seed << " hangs";
      }
      ASSERT_NO_FATAL_FAILURE(expect_sums(round, "seed " + std::to_string(seed)));
    }
    ASSERT_TRUE(cluster_->close(30 * kSecond)) << "seed " << seed;
    EXPECT_EQ(cluster_->total(Counter::kDropRoundNew), 0U) << "seed " << seed;
  }
}

TEST_F(JobPolicy, ForwardsWhatItSaysAtOnce) {
  ClusterConfig config;
  config.servers = 1;
  for (const bool whole : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(start(config, whole ? "mercury:forward=tensor" : "mercury"));
    // One tensor in the middle of its exchange: are there sums before the last push is in?
    const TensorDeclaration& t = tensors_[1];
    for (uint32_t w = 0; w < config.workers; ++w) {
      cluster_->program(w).submit(SubmitOp::kPushPull, t.tensor.value, 0, 1);
    }
    uint64_t pushes_at_first_sum = 0;
    ASSERT_TRUE(cluster_->run(
        [&] {
          if (pushes_at_first_sum == 0 && cluster_->total(Counter::kResultChunks) > 0) {
            pushes_at_first_sum = cluster_->total(Counter::kPushChunks);
          }
          return cluster_->program(0).done(1) && cluster_->program(1).done(1);
        },
        kSecond));
    const uint64_t all = cluster_->total(Counter::kPushChunks);
    EXPECT_GT(all, 30U);
    if (whole) {
      EXPECT_EQ(pushes_at_first_sum, all);
    } else {
      EXPECT_LT(pushes_at_first_sum, all / 2);
    }
  }
}

// 160,000 bytes in 16 partitions.
TEST_F(JobPolicy, PaysStartUpsAndWaitsForCredit) {
  const auto exchange_ns = [this](const std::string& policy) -> uint64_t {
    start(ClusterConfig{}, policy);
    const uint64_t begin_ns = cluster_->now_ns();
    for (uint32_t w = 0; w < 2; ++w) cluster_->program(w).submit(SubmitOp::kPushPull, 1, 0, 1);
    EXPECT_TRUE(cluster_->run(
        [&] { return cluster_->program(0).done(1) && cluster_->program(1).done(1); }, kSecond));
    return cluster_->now_ns() - begin_ns;
  };
  const uint64_t whole = exchange_ns("mercury");
  const uint64_t free = exchange_ns("bytescheduler:partition=10KB,credit=1MB,startup=0");
  EXPECT_LT(free, 2 * whole);
  // Start-ups follow each other although there is credit.
  const uint64_t slow = exchange_ns("bytescheduler:partition=10KB,credit=1MB,startup=1ms");
  EXPECT_GE(slow, 16'000'000U);
  EXPECT_LT(slow, 19'000'000U);
  // Stop-and-wait: a round trip for each.
  const uint64_t waits = exchange_ns("p3:partition=10KB,credit=10KB,startup=0");
  EXPECT_GT(waits, free + 15 * 4'000);
  EXPECT_LT(waits, free + 16 * 100'000);  // no acknowledgement waits for its delay
}

TEST_F(JobPolicy, IsRefusedWhereNoEngineCanFollowIt) {
  ClusterConfig config;
  SimCluster cluster(config);
  OpenJob open;
  open.name = "policies";
  open.terms.policy = "wfbp-eq7";
  const Status opened = cluster.open_job(open, 20 * kSecond);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("for the model alone"), std::string::npos)
      << opened.error().message;
}

}  // namespace
}  // namespace mercury
