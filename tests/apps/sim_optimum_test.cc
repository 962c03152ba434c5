// The production engine in virtual time against Theorem 1 of the Mercury paper (TPDS 2023, section
// V.A): Mercury's iterations stay within 2 % of the least that any policy can take, are never below
// it, and no other policy's are more than 0.1 % shorter. All that can be set is as it is by
// default. A quick form of benchmarks/papers/mercury.py optimum.
#include <gtest/gtest.h>

#include <array>

#include "apps/sim/simulation.h"
#include "apps/trace/shipped.h"
#include "scheduler/model/equations.h"

namespace mercury::simulator {
namespace {

SimOptions options_at(const std::string& model, const char* policy, uint64_t gbps) {
  SimOptions options;
  options.trace = model;
  options.policy = *parse_policy(policy);
  options.bandwidth_bps = gbps * 1'000'000'000;
  return with_all_links(options);
}

SimulationResult simulated(const SimOptions& options, const RunOptions& run = {}) {
  auto result = simulate(options, run);
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(*result) : SimulationResult{};
}

double iteration_s(const std::string& model, const char* policy, uint64_t gbps) {
  const RunOptions run;
  return simulated(options_at(model, policy, gbps), run).jobs.front().iteration_s(run.warmup);
}

double least_s(const SimOptions& options) {
  const auto trace = read_trace(trace_path(options.trace));
  EXPECT_TRUE(trace);
  const model::Chain chain = without_framing(chain_of(*trace, framing_of(options)));
  return optimum_s(chain, rates_of(cluster_of(options)));
}

double least_s(const std::string& model, uint64_t gbps) {
  return least_s(options_at(model, "mercury", gbps));
}

TEST(SimulatedMercury, IsWithinTwoPercentOfTheOptimum) {
  for (const uint64_t gbps : {1, 10, 100}) {
    const double mercury = iteration_s("resnet50", "mercury", gbps);
    EXPECT_GE(mercury, least_s("resnet50", gbps)) << gbps << " Gb/s";
    EXPECT_LE(mercury, 1.02 * least_s("resnet50", gbps)) << gbps << " Gb/s";
  }
}

// The shortest round trip for its rate, and tensors that are ready at once: of all shipped models
// and rates where senders hold back most.
TEST(SimulatedMercury, FillsFastLinksToo) {
  EXPECT_LE(iteration_s("alexnet", "mercury", 100), 1.02 * least_s("alexnet", 100));
}

TEST(SimulatedMercury, IsNotBeatenByAnyPolicy) {
  const double mercury = iteration_s("resnet50", "mercury", 5);
  for (const char* policy : {"mercury-fifo", "wfbp", "p3", "byteps", "bytescheduler"}) {
    EXPECT_LE(mercury, 1.001 * iteration_s("resnet50", policy, 5)) << policy;
  }
}

// Their links are full both ways, and what they are to be told of waits behind what they are sent.
TEST(SimulatedMercury, FillsFewerServersThanWorkersBothWays) {
  for (const uint64_t gbps : {1, 10}) {
    SimOptions options = options_at("resnet50", "mercury", gbps);
    options.workers = 4;
    const RunOptions run;
    const double mercury = simulated(options, run).jobs.front().iteration_s(run.warmup);
    EXPECT_LE(mercury, 1.05 * least_s(options)) << gbps << " Gb/s";
    options.policy = *parse_policy("wfbp");
    const double wfbp = simulated(options, run).jobs.front().iteration_s(run.warmup);
    EXPECT_LE(mercury, wfbp) << gbps << " Gb/s";
  }
}

// The same frames at the same moments, whatever they carry.
TEST(Simulation, IsTheSameWithAndWithoutPayload) {
  const SimOptions options = options_at("resnet50", "mercury", 10);
  RunOptions run;
  run.iterations = 1;
  run.warmup = 0;
  const SimulationResult without = simulated(options, run);
  run.payload = true;
  const SimulationResult with = simulated(options, run);
  EXPECT_EQ(with.trace_hash, without.trace_hash);
  EXPECT_EQ(with.frames, without.frames);
  EXPECT_EQ(with.mismatches, 0U);
  EXPECT_GT(with.frames, 4 * 11'000U);
}

}  // namespace
}  // namespace mercury::simulator
