// A job of as many workers as there may be: each sum goes to all of them, and none waits because
// the server's engine has no ranges left to send others by.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint32_t kWorkers = 256;
constexpr uint32_t kTensors = 4;
constexpr uint64_t kElements = 24'000;  // of each: 67 chunks or so

// Frames are lost, so that with hundreds of workers hardly a sum is complete in order.
ClusterConfig config(uint32_t max_ranges) {
  ClusterConfig config;
  config.workers = kWorkers;
  config.servers = 1;
  config.look = sim::Look::kWoken;
  LaneConfig& server = config.server_lane.emplace();
  server.engine.max_in_flight_packets = 65'536;
  server.exchange.sends.scheduler.max_sessions = server.engine.max_sessions;
  server.exchange.sends.scheduler.max_ranges = max_ranges;
  config.link.mtu_bytes = 1500;
  config.link.faults.loss = 0.01;
  return config;
}

// Chunks that the server refused for now while all workers' tensors were summed once.
uint64_t refused(uint32_t max_ranges) {
  SimCluster cluster(config(max_ranges));
  OpenJob job;
  job.name = "wide";
  const Status opened = cluster.open_job(job, 20 * kSecond);
  EXPECT_TRUE(opened.ok()) << opened.error().message;
  std::vector<TensorDeclaration> tensors;
  for (uint32_t i = 0; i < kTensors; ++i) {
    TensorDeclaration tensor;
    tensor.tensor = TensorId(i + 1);
    tensor.numel = kElements;
    tensor.dtype = Dtype::kI32;
    tensors.push_back(tensor);
  }
  EXPECT_TRUE(cluster.declare(tensors, 20 * kSecond).ok());
  for (uint32_t w = 0; w < kWorkers; ++w) {
    for (uint32_t i = 1; i <= kTensors; ++i) {
      auto& memory = cluster.program(w).memory(i);
      std::fill_n(reinterpret_cast<uint32_t*>(memory.data()), memory.size() / 4, w + i);
      cluster.program(w).submit(SubmitOp::kPushPull, i, static_cast<uint16_t>(i), i);
    }
  }
  cluster.wake_all();
  const auto done = [&] {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      for (uint32_t i = 1; i <= kTensors; ++i) {
        if (!cluster.program(w).done(i)) return false;
      }
    }
    return true;
  };
  EXPECT_TRUE(cluster.run(done, 60 * kSecond));
  for (uint32_t w = 0; w < kWorkers; ++w) {
    for (uint32_t i = 1; i <= kTensors; ++i) {
      auto& memory = cluster.program(w).memory(i);
      const auto* sums = reinterpret_cast<const uint32_t*>(memory.data());
      const uint32_t sum = kWorkers * (kWorkers - 1) / 2 + kWorkers * i;
      EXPECT_TRUE(std::all_of(sums, sums + memory.size() / 4,
                              [sum](uint32_t element) { return element == sum; }))
          << "worker " << w << ", tensor " << i;
    }
  }
  return cluster.total(Counter::kDropSlotBusy);
}

TEST(Wide, NoSumWaitsForRanges) { EXPECT_EQ(refused(Scheduler::Limits().max_ranges), 0U); }

// As many as the default keeps for what is lost, and for a part of the sums, each of which takes
// one, as leaves are the sessions' own; a fifth is jobs' own.
TEST(Wide, WithFewRangesSumsWaitAndAreRight) { EXPECT_GT(refused((8192 + 64) * 5 / 4), 0U); }

}  // namespace
}  // namespace mercury
