// What one job does to another one in the same engine of a server, in virtual time.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/shim/tenants_lab.h"

namespace mercury {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kSmallTensors = 1000;
constexpr uint32_t kStrangers = 4;
// Fewer than four windows hold of the smallest frames: each has 32 KiB by then, 468 of them.
constexpr uint32_t kRecords = 1536;

std::vector<TensorDeclaration> tensors(uint32_t count, uint64_t numel) {
  std::vector<TensorDeclaration> all(count);
  for (uint32_t i = 0; i < count; ++i) {
    all[i].tensor = TensorId(i);
    all[i].numel = numel;
  }
  return all;
}

sim::LinkConfig ten_gigabits() {
  sim::LinkConfig link;
  link.bytes_per_second = 1'250'000'000;
  link.delay_ns = 5'000;
  return link;
}

// A server, an innocent job of two workers, and the strangers' job, of many tensors of one element.
struct Neighbours {
  Neighbours() : lab(lane(), ten_gigabits()) {
    innocent = lab.open("innocent", {}, {lab.add_host(), lab.add_host()}, tensors(1, 100'000));
    for (uint32_t i = 0; i < kStrangers; ++i) strangers.push_back(lab.add_host());
    neighbour = lab.open("neighbour", {}, strangers, tensors(kSmallTensors, 1));
  }
  static LaneConfig lane() {
    LaneConfig lane = ClusterConfig::small_lane();
    lane.engine.max_in_flight_packets = kRecords;
    return lane;
  }
  // Rounds of the innocent in a tenth of a second, after the neighbour has opened its windows and
  // pushed all it has once more.
  uint64_t rounds(bool mean) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(lab.push_all(*neighbour, kSmallTensors));
    for (const uint32_t host : strangers) lab.port(host).mean = mean;
    for (uint32_t tensor = 0; tensor < kSmallTensors; ++tensor) {
      lab.push(*neighbour, tensor);
      if (tensor % 128 == 127) lab.run_for(kMs);
    }
    lab.go_on(*innocent);
    lab.run_for(100 * kMs);
    return innocent->rounds;
  }
  const SentPool& records() { return lab.cluster[0].lane(0).engine().sent_pool(); }

  TenantsLab lab;
  std::vector<uint32_t> strangers;
  TenantsLab::Tenant* innocent = nullptr;
  TenantsLab::Tenant* neighbour = nullptr;
};

TEST(Tenants, WhoAcknowledgesOnlyTheOldestPacketHoldsUpItself) {
  Neighbours honest, mean;
  ASSERT_TRUE(honest.innocent && honest.neighbour && mean.innocent && mean.neighbour);
  const uint64_t beside_honest = honest.rounds(false);
  const uint64_t beside_mean = mean.rounds(true);
  EXPECT_FALSE(mean.neighbour->done()) << "it has taken all that it was sent";
  EXPECT_GT(mean.records().blocks_in_use(), kRecords / kSentBlockRecords / 3)
      << "it holds its part";
  EXPECT_GT(beside_honest, 50U);
  EXPECT_GE(beside_mean, beside_honest * 9 / 10);
}

// Strangers' jobs of many tensors of one element, beside which an innocent job of two workers does
// its rounds on links of which the round trip is long: it has many packets in flight.
struct Crowd {
  static constexpr uint32_t kJobs = 6;
  explicit Crowd(uint32_t jobs_with_own = 8) : lab(lane(jobs_with_own), long_way()) {
    innocent = lab.open("innocent", {}, {lab.add_host(), lab.add_host()}, tensors(1, 400'000));
    if (innocent != nullptr) lab.go_on(*innocent);
  }
  static LaneConfig lane(uint32_t jobs_with_own) {
    LaneConfig lane = ClusterConfig::small_lane();
    lane.engine.max_jobs = jobs_with_own;
    return lane;
  }
  static sim::LinkConfig long_way() {
    sim::LinkConfig link = ten_gigabits();
    link.delay_ns = 50'000;
    return link;
  }
  // One more job, whose windows are open, and which holds what it is sent if it is mean.
  TenantsLab::Tenant* come(bool mean) {
    std::vector<uint32_t> hosts;
    for (uint32_t i = 0; i < kStrangers; ++i) hosts.push_back(lab.add_host());
    TenantsLab::Tenant* const job =
        lab.open("job" + std::to_string(++came), {}, hosts, tensors(kSmallTensors, 1));
    if (job == nullptr) return nullptr;
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(lab.push_all(*job, kSmallTensors));
    for (const uint32_t host : hosts) lab.port(host).mean = mean;
    for (uint32_t tensor = 0; tensor < kSmallTensors; ++tensor) {
      lab.push(*job, tensor);
      if (tensor % 128 == 127) lab.run_for(kMs);
    }
    lab.run_for(10 * kMs);
    return job;
  }
  // Of the innocent, in a fifth of a second.
  uint64_t rounds() {
    const uint64_t before = innocent->rounds;
    lab.run_for(200 * kMs);
    return innocent->rounds - before;
  }
  const SentPool& records() { return lab.cluster[0].lane(0).engine().sent_pool(); }

  TenantsLab lab;
  TenantsLab::Tenant* innocent = nullptr;
  uint32_t came = 0;
};

TEST(Tenants, ManyWhoAcknowledgeOnlyTheOldestPacketHoldUpNoOther) {
  std::array<uint64_t, 2> rounds{};
  for (const bool mean : {false, true}) {
    Crowd crowd;
    ASSERT_NE(crowd.innocent, nullptr);
    for (uint32_t i = 0; i < Crowd::kJobs; ++i) ASSERT_NE(crowd.come(mean), nullptr);
    if (mean) {
      EXPECT_GT(crowd.records().blocks_in_use(), 8192 / kSentBlockRecords * 9 / 10);
    }
    rounds[mean] = crowd.rounds();
  }
  EXPECT_GT(rounds[false], 50U);
  EXPECT_GE(rounds[true], rounds[false] * 9 / 10);
}

TEST(Tenants, NorDoThoseWhoComeOneAfterTheOther) {
  std::array<uint64_t, 2> rounds{};
  for (const bool mean : {false, true}) {
    Crowd crowd;
    ASSERT_NE(crowd.innocent, nullptr);
    for (uint32_t i = 0; i < Crowd::kJobs; ++i) {
      TenantsLab::Tenant* const job = crowd.come(mean);
      ASSERT_NE(job, nullptr);
      rounds[mean] += crowd.rounds();
      ASSERT_TRUE(crowd.lab.end(*job));
    }
    crowd.innocent->goes_on = false;
    crowd.lab.run_for(100 * kMs);
    EXPECT_EQ(crowd.records().blocks_in_use(), 0U) << "who ends gives all back";
  }
  EXPECT_GE(rounds[true], rounds[false] * 9 / 10);
}

// Two jobs on the same hosts, so in the same engines, each with a server of its own. Rounds of the
// innocent one beside pushes of thousands of tensors of the other's, whose server may fall silent.
uint64_t rounds_beside(const std::string& policy, bool silent) {
  constexpr uint32_t kTensors = 3000;
  LaneConfig lane = ClusterConfig::small_lane();
  TenantsLab lab(lane, ten_gigabits());
  const uint32_t server = lab.add_host(true);
  const std::vector<uint32_t> hosts{lab.add_host(), lab.add_host()};
  JobTerms terms;
  terms.policy = policy;
  TenantsLab::Tenant* const innocent = lab.open("innocent", {}, hosts, tensors(1, 100'000));
  TenantsLab::Tenant* const other =
      lab.open("neighbour", terms, hosts, tensors(kTensors, 1000), server);
  if (innocent == nullptr || other == nullptr) return 0;
  sim::SimNetwork& network = lab.cluster.network();
  if (silent) network.set_up(network.uplink(lab.cluster[server].id()), false);
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    lab.push(*other, tensor);
    if (tensor % 128 == 127) lab.run_for(kMs);
  }
  if (silent) {
    const auto part = lane.exchange.sends.scheduler.max_ranges / 4;
    EXPECT_GT(lab.cluster[hosts[0]].lane(0).exchange().usage().ranges, part) << "they wait";
  }
  lab.go_on(*innocent);
  lab.run_for(100 * kMs);
  EXPECT_EQ(other->done(), !silent);
  return innocent->rounds;
}

TEST(Tenants, OneWhoseServerNeverAnswersHoldsUpNoOtherOfItsHosts) {
  for (const char* policy : {"", "byteps:partition=1KB,credit=1GB,startup=0ns"}) {
    SCOPED_TRACE(policy);
    const uint64_t beside_honest = rounds_beside(policy, false);
    EXPECT_GT(beside_honest, 50U);
    EXPECT_GE(rounds_beside(policy, true), beside_honest * 9 / 10);
  }
}

// More jobs than have an engine's default part each: all go on, though one takes what it may of all
// that jobs share, and one of its members acknowledges the oldest packet alone.
TEST(Tenants, OfMoreThan64JobsAllGoOnBesideAMeanOne) {
  constexpr uint32_t kInnocent = 70;
  std::array<uint64_t, 2> rounds{};
  for (const bool mean : {false, true}) {
    LaneConfig lane = ClusterConfig::small_lane();
    lane.engine.max_jobs = lane.exchange.sends.scheduler.max_jobs = 128;
    lane.engine.max_sessions = lane.exchange.sends.scheduler.max_sessions = 512;
    JobPolicy policy;
    policy.max_jobs = 128;
    TenantsLab lab(lane, ten_gigabits(), policy);
    const std::vector<uint32_t> hosts{lab.add_host(), lab.add_host()};
    std::vector<TenantsLab::Tenant*> innocent;
    for (uint32_t i = 0; i < kInnocent; ++i) {
      innocent.push_back(lab.open("job" + std::to_string(i), {}, hosts, tensors(1, 10'000)));
      ASSERT_NE(innocent.back(), nullptr);
    }
    std::vector<uint32_t> strangers;
    for (uint32_t i = 0; i < kStrangers; ++i) strangers.push_back(lab.add_host());
    TenantsLab::Tenant* const neighbour =
        lab.open("neighbour", {}, strangers, tensors(kSmallTensors, 1));
    ASSERT_NE(neighbour, nullptr);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(lab.push_all(*neighbour, kSmallTensors));
    for (const uint32_t host : strangers) lab.port(host).mean = mean;
    for (uint32_t tensor = 0; tensor < kSmallTensors; ++tensor) {
      lab.push(*neighbour, tensor);
      if (tensor % 128 == 127) lab.run_for(kMs);
    }
    for (TenantsLab::Tenant* const job : innocent) lab.go_on(*job);
    lab.run_for(50 * kMs);
    for (const TenantsLab::Tenant* const job : innocent) {
      EXPECT_GT(job->rounds, 2U) << job->job.name;
      rounds[mean] += job->rounds;
    }
  }
  EXPECT_GE(rounds[true], rounds[false] * 9 / 10);
}

// How many rounds a job that asks for a weight of 1,000 does for each of one that asks for 1, on
// the same hosts, and so on the same links both ways.
double rounds_for_each(const JobPolicy& policy) {
  TenantsLab lab(ClusterConfig::small_lane(), ten_gigabits(), policy);
  const std::vector<uint32_t> hosts{lab.add_host(), lab.add_host()};
  JobTerms greedy;
  greedy.weight = kMostWeight;
  TenantsLab::Tenant* const heavy = lab.open("greedy", greedy, hosts, tensors(1, 100'000));
  TenantsLab::Tenant* const light = lab.open("modest", {}, hosts, tensors(1, 100'000));
  if (heavy == nullptr || light == nullptr) return 0;
  lab.go_on(*heavy);
  lab.go_on(*light);
  lab.run_for(400 * kMs);
  EXPECT_GT(light->rounds, 0U);
  return static_cast<double>(heavy->rounds) / static_cast<double>(std::max(light->rounds, 1UL));
}

TEST(Tenants, AWeightIsTheHostsToGive) {
  JobPolicy policy;
  EXPECT_GT(rounds_for_each(policy), 1.5) << "without a limit it has what it asks for";
  policy.max_weight = 1;
  EXPECT_NEAR(rounds_for_each(policy), 1.0, 0.03);
  KnownJob greedy;
  greedy.name = "greedy";
  greedy.fixed_weight = 2;
  policy.known = {greedy};
  EXPECT_NEAR(rounds_for_each(policy), 2.0, 0.1);
}

// In 400 ms, of a job to which hosts give a rate (0: none) and of one beside it to which they do
// not.
std::array<uint64_t, 2> rounds_at_rate(uint64_t bytes_per_second) {
  JobPolicy policy;
  KnownJob limited;
  limited.name = "limited";
  limited.bytes_per_second = bytes_per_second;
  policy.known = {limited};
  TenantsLab lab(ClusterConfig::small_lane(), ten_gigabits(), policy);
  const std::vector<uint32_t> hosts{lab.add_host(), lab.add_host()};
  TenantsLab::Tenant* const slow = lab.open("limited", {}, hosts, tensors(1, 100'000));
  TenantsLab::Tenant* const other = lab.open("other", {}, hosts, tensors(1, 100'000));
  if (slow == nullptr || other == nullptr) return {};
  lab.go_on(*slow);
  lab.go_on(*other);
  lab.run_for(400 * kMs);
  return {slow->rounds, other->rounds};
}

TEST(Tenants, AJobKeepsToItsRateAndItsNeighbourHasTheRest) {
  const auto [equal, equal_other] = rounds_at_rate(0);
  EXPECT_NEAR(static_cast<double>(equal), static_cast<double>(equal_other),
              static_cast<double>(equal) / 20);
  // A tenth of the link. The server sends 800 KB in a round.
  const auto [slow, other] = rounds_at_rate(125'000'000);
  EXPECT_LE(slow, 400 * 125 / 800 + 2);
  EXPECT_GE(slow, 400 * 125 / 800 * 9 / 10);
  EXPECT_GE(other, equal_other * 3 / 2) << "nine tenths of the link, for half of it";
}

}  // namespace
}  // namespace mercury
