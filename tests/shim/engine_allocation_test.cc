// An engine allocates nothing while it moves chunks: not where frames are lost, where time
// completes sums or where programs ask for what is refused. Whole engines, from a program's ring to
// its completion, over a wire that takes nothing itself.
#include <gtest/gtest.h>

#include "benchmarks/engine/pipe_job.h"
#include "tests/allocations.h"

namespace mercury {
namespace {

constexpr uint64_t kTurnNs = 10'000;
constexpr int kWarmUpRounds = 16;  // windows grow, and tables get their size
constexpr int kRounds = 200;

struct Load {
  uint16_t workers = 1;
  uint16_t quorum = 0;  // 0: sums wait for everybody
  uint32_t lose_one_in = 0;
  bool refusals = false;
  bool sealed = false;
};

class EngineAllocation : public testing::Test {
 protected:
  void run(const Load& load) {
    bench::PipeJob::Size size;
    size.mtu = 1500;
    size.workers = load.workers;
    size.bytes = 256 * 1024;
    size.terms.quorum = load.quorum;
    size.terms.patience_ms = load.quorum > 0 ? 1 : 0;
    size.sealed = load.sealed;
    bench::PipeJob job(size);
    uint64_t now_ns = 1'000'000;
    const Status opened = job.open([&] { return now_ns += kTurnNs; });
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_GT(allocations(), 0U) << "they are not counted";
    job.lose_one_in(load.lose_one_in);
    uint64_t in_engines = 0;
    const auto turn = [&] {
      now_ns += kTurnNs;
      const uint64_t before = allocations();
      job.poll_workers(now_ns);
      job.poll_server(now_ns);
      in_engines += allocations() - before;
    };
    ASSERT_TRUE(job.begin());
    for (int round = 0; round < kWarmUpRounds; ++round) ASSERT_TRUE(job.one_round(turn));
    in_engines = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (load.refusals) job.submit_what_is_refused();
      ASSERT_TRUE(job.one_round(turn)) << round;
    }
    EXPECT_EQ(in_engines, 0U);
    retransmits_ = job.retransmits();
    partial_ = job.count_of(Counter::kQuorumResults);
    refused_ = job.refused();
    EXPECT_EQ(job.count_of(Counter::kSessionsSealed),
              load.sealed ? job.count_of(Counter::kSessionsOpened) : 0U);
    EXPECT_EQ(job.count_of(Counter::kDropSeal), 0U);
  }
  uint64_t retransmits_ = 0;
  uint64_t partial_ = 0;
  uint64_t refused_ = 0;
};

TEST_F(EngineAllocation, NotWhereNothingGoesWrong) { run({.workers = 2}); }

TEST_F(EngineAllocation, NotWhereFramesAreLost) {
  run({.workers = 2, .lose_one_in = 97});
  EXPECT_GT(retransmits_, 100U);
}

TEST_F(EngineAllocation, NotWhereTimeCompletesSums) {
  run({.workers = 3, .quorum = 1, .lose_one_in = 5});
  EXPECT_GT(retransmits_, 100U);
  EXPECT_GT(partial_, 0U);
}

TEST_F(EngineAllocation, NotWhereProgramsAreRefused) {
  run({.workers = 2, .refusals = true});
  EXPECT_EQ(refused_, 2U * kRounds);
}

TEST_F(EngineAllocation, NotWhereFramesAreAuthenticated) {
  run({.workers = 2, .lose_one_in = 97, .sealed = true});
  EXPECT_GT(retransmits_, 100U);
}

}  // namespace
}  // namespace mercury
