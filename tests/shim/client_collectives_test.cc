// Broadcast, all-gather, reduce-scatter and barrier over real hosts, embedded and with daemons; and
// what is refused.
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/shim/client_hosts.h"

namespace mercury::testing {
namespace {

int declare_as_i32(mercury_job* job, uint32_t id, std::vector<int32_t>& data) {
  const mercury_tensor_options options =
      tensor_options(id, data.data(), data.size(), MERCURY_DTYPE_I32);
  return mercury_declare(job, &options, 1);
}

class Collectives : public ::testing::TestWithParam<Engines> {
 protected:
  static RealJob::Options of_three() {
    RealJob::Options options;
    options.workers = 3;
    return options;
  }
};

TEST_P(Collectives, ABroadcastBringsTheRootsElementsToAll) {
  RealJob job(GetParam(), of_three());
  constexpr size_t kNumel = 30'001;
  job.each_worker([&](int rank) {
    auto* data = static_cast<float*>(declare(job, rank, 1, kNumel));
    for (int root = 0; root < 3; ++root) {
      for (size_t i = 0; i < kNumel; ++i) {
        const auto value = static_cast<float>(i * 10 + static_cast<size_t>(root));
        data[i] = rank == root ? value : std::numeric_limits<float>::quiet_NaN();
      }
      if (rank == root) data[7] = -0.0F;
      mercury_handle handle = 0;
      ASSERT_EQ(mercury_broadcast(job.job(rank), 1, static_cast<uint32_t>(root),
                                  MERCURY_DEFAULT_PRIORITY, &handle),
                0)
          << mercury_last_error();
      ASSERT_EQ(mercury_wait(job.job(rank), handle, MERCURY_FOREVER), 0) << mercury_last_error();
      EXPECT_TRUE(data[7] == 0 && std::signbit(data[7])) << "-0 is not +0";
      size_t wrong = 0;
      for (size_t i = 0; i < kNumel; ++i) {
        wrong += i != 7 && data[i] != static_cast<float>(i * 10 + static_cast<size_t>(root));
      }
      EXPECT_EQ(wrong, 0U) << "root " << root << " rank " << rank;
    }
  });
}

// With a daemon registered memory is copied: what is beside a part must not be.
TEST_P(Collectives, AnAllGatherBringsEveryPartToAll) {
  RealJob job(GetParam(), of_three());
  constexpr size_t kPart = 10'007;
  job.each_worker([&](int rank) {
    auto* data = static_cast<uint8_t*>(declare(job, rank, 1, 3 * kPart, MERCURY_DTYPE_U8));
    std::vector<int32_t> mine(3 * kPart);
    ASSERT_EQ(mercury_register(job.context(rank), mine.data(), mine.size() * 4), 0);
    ASSERT_EQ(declare_as_i32(job.job(rank), 2, mine), 0) << mercury_last_error();
    for (int round = 1; round <= 3; ++round) {
      std::memset(data, 0xee, 3 * kPart);
      std::memset(data + static_cast<size_t>(rank) * kPart, 16 * rank + round, kPart);
      for (size_t i = 0; i < mine.size(); ++i) {
        mine[i] = i / kPart == static_cast<size_t>(rank) ? static_cast<int32_t>(i) * round : -1;
      }
      for (const uint32_t id : {1, 2}) {
        ASSERT_EQ(mercury_all_gather(job.job(rank), id, MERCURY_DEFAULT_PRIORITY, nullptr), 0)
            << mercury_last_error();
      }
      ASSERT_EQ(mercury_wait_all(job.job(rank), MERCURY_FOREVER), 0) << mercury_last_error();
      size_t wrong = 0;
      for (size_t i = 0; i < 3 * kPart; ++i) {
        wrong += data[i] != 16 * (i / kPart) + static_cast<size_t>(round);
        wrong += mine[i] != static_cast<int32_t>(i) * round;
      }
      EXPECT_EQ(wrong, 0U) << "rank " << rank << " round " << round;
    }
    EXPECT_EQ(mercury_job_close(job.job(rank)), 0);
    EXPECT_EQ(mercury_deregister(job.context(rank), mine.data()), 0);
    job.forget(rank);
  });
}

// The first parts are one element longer. With a daemon registered memory is copied.
TEST_P(Collectives, APartOfASumComesToItsWorker) {
  RealJob job(GetParam(), of_three());
  constexpr size_t kNumel = 30'002;
  job.each_worker([&](int rank) {
    auto* data = static_cast<int32_t*>(declare(job, rank, 1, kNumel, MERCURY_DTYPE_I32));
    std::vector<int32_t> mine(kNumel);
    ASSERT_EQ(mercury_register(job.context(rank), mine.data(), mine.size() * 4), 0);
    ASSERT_EQ(declare_as_i32(job.job(rank), 2, mine), 0) << mercury_last_error();
    uint64_t begin = 0, numel = 0;
    ASSERT_EQ(
        mercury_tensor_get_part(job.job(rank), 2, static_cast<uint32_t>(rank), &begin, &numel), 0);
    EXPECT_EQ(begin, 10'001U * static_cast<uint64_t>(rank));
    EXPECT_EQ(numel, rank == 2 ? 10'000U : 10'001U);
    for (int round = 1; round <= 3; ++round) {
      for (size_t i = 0; i < kNumel; ++i) {
        data[i] = mine[i] = static_cast<int32_t>(i) * round + rank;
      }
      for (const uint32_t id : {1, 2}) {
        ASSERT_EQ(mercury_reduce_scatter(job.job(rank), id, MERCURY_DEFAULT_PRIORITY, nullptr), 0)
            << mercury_last_error();
      }
      ASSERT_EQ(mercury_wait_all(job.job(rank), MERCURY_FOREVER), 0) << mercury_last_error();
      size_t wrong = 0;
      for (size_t i = begin; i < begin + numel; ++i) {
        wrong += data[i] != 3 * static_cast<int32_t>(i) * round + 3;
        wrong += mine[i] != 3 * static_cast<int32_t>(i) * round + 3;
      }
      EXPECT_EQ(wrong, 0U) << "rank " << rank << " round " << round;
    }
    mercury_job_stats stats;
    mercury_job_stats_init(&stats, sizeof stats);
    EXPECT_EQ(mercury_job_get_stats(job.job(rank), &stats), 0);
    EXPECT_EQ(stats.bytes_pushed, 6 * kNumel * 4);
    EXPECT_EQ(stats.bytes_pulled, 6 * numel * 4);
    EXPECT_EQ(mercury_job_close(job.job(rank)), 0);
    EXPECT_EQ(mercury_deregister(job.context(rank), mine.data()), 0);
    job.forget(rank);
  });
}

TEST_P(Collectives, NobodyLeavesABarrierBeforeAllAreInIt) {
  RealJob job(GetParam(), of_three());
  constexpr int kBarriers = 20;
  std::atomic<int> entered[kBarriers] = {};
  job.each_worker([&](int rank) {
    for (auto& count : entered) {
      ++count;
      ASSERT_EQ(mercury_barrier(job.job(rank), MERCURY_FOREVER), 0) << mercury_last_error();
      EXPECT_EQ(count, 3);
    }
    mercury_completion none;
    EXPECT_EQ(mercury_poll(job.job(rank), &none, 1, sizeof none), 0) << "nobody hears of them";
    mercury_job_stats stats;
    mercury_job_stats_init(&stats, sizeof stats);
    EXPECT_EQ(mercury_job_get_stats(job.job(rank), &stats), 0);
    EXPECT_EQ(stats.operations, 0U);
  });
}

TEST_P(Collectives, ABarrierThatTimesOutGoesOnWithTheNextCall) {
  RealJob job(GetParam());
  EXPECT_EQ(mercury_barrier(job.job(0), 0), -ETIMEDOUT);
  EXPECT_EQ(mercury_barrier(job.job(0), 1), -ETIMEDOUT);
  EXPECT_EQ(mercury_wait_all(job.job(0), MERCURY_FOREVER), 0)
      << "it is no operation of the program's";
  std::thread other(
      [&] { EXPECT_EQ(mercury_barrier(job.job(1), MERCURY_FOREVER), 0) << mercury_last_error(); });
  EXPECT_EQ(mercury_barrier(job.job(0), MERCURY_FOREVER), 0) << mercury_last_error();
  other.join();
}

TEST_P(Collectives, WhoWaitsInABarrierHearsThatAPeerHasLeft) {
  RealJob job(GetParam());
  job.expect_servers_end(-ECONNRESET);
  EXPECT_EQ(mercury_barrier(job.job(1), 0), -ETIMEDOUT);
  job.close(0);
  EXPECT_EQ(mercury_barrier(job.job(1), MERCURY_FOREVER), -ECONNRESET);
  EXPECT_TRUE(said({"barrier: "})) << mercury_last_error();
  EXPECT_TRUE(said({"worker 0"})) << mercury_last_error();
}

TEST_P(Collectives, WhatCannotBeIsRefusedBeforeAnythingIsSent) {
  RealJob job(GetParam());
  void* memory = nullptr;
  ASSERT_EQ(mercury_alloc(job.context(0), 4096, &memory), 0);
  mercury_tensor_options wish = tensor_options(0x7fffffff, memory, 4);
  EXPECT_EQ(mercury_declare(job.job(0), &wish, 1), -EINVAL) << "the barrier's";
  EXPECT_TRUE(said({"2^31-2"}));
  declare(job, 0, 1, 100);
  declare(job, 0, 2, 101, MERCURY_DTYPE_U8);
  declare(job, 0, 3, 100, MERCURY_DTYPE_I32, MERCURY_REDUCE_MAX);
  EXPECT_EQ(mercury_broadcast(job.job(0), 1, 2, 0, nullptr), -EINVAL);
  EXPECT_TRUE(said({"root 2 of 2 workers"}));
  EXPECT_EQ(mercury_all_gather(job.job(0), 1, 0, nullptr), -EINVAL);
  EXPECT_TRUE(said({"sum of integers"}));
  EXPECT_EQ(mercury_all_gather(job.job(0), 3, 0, nullptr), -EINVAL);
  EXPECT_EQ(mercury_all_gather(job.job(0), 2, 0, nullptr), -EINVAL);
  EXPECT_TRUE(said({"101 elements are not a multiple of 2 workers"}));
  EXPECT_EQ(mercury_reduce_scatter(job.job(0), 4, 0, nullptr), -ENOENT);
  EXPECT_EQ(mercury_reduce_scatter(job.job(0), 1, 65'536, nullptr), -EINVAL);
  uint64_t begin = 0, numel = 0;
  EXPECT_EQ(mercury_tensor_get_part(job.job(0), 4, 0, &begin, &numel), -ENOENT);
  EXPECT_EQ(mercury_tensor_get_part(job.job(0), 1, 2, &begin, &numel), -EINVAL);
  EXPECT_TRUE(said({"worker 2 of 2 workers"}));
  EXPECT_EQ(mercury_tensor_get_part(job.job(0), 1, 0, nullptr, &numel), -EINVAL);
  EXPECT_EQ(mercury_tensor_get_part(job.job(0), 1, 0, &begin, nullptr), -EINVAL);
  EXPECT_EQ(mercury_wait_all(job.job(0), 0), 0) << "nothing is in flight";
}

INSTANTIATE_TEST_SUITE_P(Hosts, Collectives,
                         ::testing::Values(Engines::kEmbedded, Engines::kDaemon),
                         [](const auto& engines) { return name_of(engines.param); });

}  // namespace
}  // namespace mercury::testing
