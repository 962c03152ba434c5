// The harness itself: the same seed gives the same run, cutting down works, and what it claims to
// check it checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/disaster/ledger.h"
#include "tests/disaster/mutations.h"
#include "tests/disaster/runner.h"
#include "tests/disaster/shrink.h"
#include "tests/disaster/world.h"

namespace mercury::disaster {
namespace {

TEST(Disaster, ASeedIsReplayedToTheBit) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Verdict first = run_seed(seed, {});
    const Verdict second = run_seed(seed, {});
    EXPECT_TRUE(first.ok()) << "seed " << seed << ": " << first.violation;
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.contents, second.contents) << "seed " << seed;
    EXPECT_EQ(first.virtual_ns, second.virtual_ns) << "seed " << seed;
    EXPECT_EQ(first.frames, second.frames) << "seed " << seed;
  }
}

TEST(Disaster, SeedsDiffer) { EXPECT_NE(run_seed(1, {}).trace, run_seed(2, {}).trace); }

TEST(Disaster, ARangeRunsEverySeedOnce) {
  RangeOptions options;
  options.from = 5;
  options.seeds = 70;  // more than one batch
  options.jobs = 2;
  const RangeResult result = run_range(options);
  EXPECT_EQ(result.seeds, 70U);
  for (const Failure& failure : result.failures) {
    ADD_FAILURE() << "seed " << failure.seed << ": " << failure.what;
  }
}

TEST(Disaster, ScenariosHoldEveryKindOfFault) {
  std::set<FaultKind> kinds;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    for (const Fault& fault : make_scenario(seed).faults) kinds.insert(fault.kind);
  }
  EXPECT_EQ(kinds.size(), kFaultKinds);
}

// One job with one tensor, each of its members on a host of its own; no faults yet.
Scenario small_scenario(const std::vector<uint32_t>& workers,
                        const std::vector<uint32_t>& servers) {
  Scenario s;
  s.link.bytes_per_second = 12'500'000;
  s.link.queue_bytes = 1 << 20;
  s.peer_timeout_ns = 1'000 * kMs;
  s.leave_notice_ns = 2'500 * kMs;
  s.window_bytes = 32 * 1024;
  s.in_flight_packets = 4096;
  s.hosts.resize(workers.size() + servers.size());
  JobPlan job;
  job.name = "job0";
  job.worker_hosts = workers;
  job.server_hosts = servers;
  job.tensors.push_back({1, 2000, Dtype::kF64, ReduceOp::kSum, 0, false});
  job.rounds = 6;
  job.open_timeout_ns = 6'000 * kMs;
  s.jobs.push_back(job);
  return s;
}

// A server's host stands still while its job fails. When it goes on, it sends a result again and
// hears of the failure in one pass: then nothing but the NIC's end with that result is awaited.
TEST(Disaster, AJobGoesWhenTheNicIsDoneWithItsResults) {
  constexpr uint64_t kUs = 1'000;
  Scenario s = small_scenario({0}, {1, 2});
  s.seed = 1;
  s.link.delay_ns = 21 * kUs;
  Fault pause;
  pause.kind = FaultKind::kPause;
  pause.host = 2;
  pause.for_ns = 2'000 * kMs;
  pause.at_ns = 500 * kMs;
  Fault crash;
  crash.kind = FaultKind::kHostCrash;
  crash.host = 0;
  crash.for_ns = 14 * kMs;
  for (crash.at_ns = 3 * kMs; crash.at_ns < 12 * kMs; crash.at_ns += 150 * kUs) {
    s.faults = {crash, pause};
    World world(s);
    const Verdict verdict = world.run();
    EXPECT_TRUE(verdict.ok()) << "killed at " << crash.at_ns / kUs << " us: " << verdict.violation;
  }
}

// A daemon stands still while its programs go on: what they push and ask it meanwhile waits.
TEST(Disaster, ADaemonStandsStillAndItsProgramsGoOn) {
  Scenario s = small_scenario({0, 1}, {2});
  s.seed = 1;
  s.link.delay_ns = 50'000;
  s.jobs[0].compute_ns = 4 * kMs;
  Fault pause;
  pause.kind = FaultKind::kPause;
  pause.for_ns = s.peer_timeout_ns / 5;
  uint32_t went_on = 0;
  for (pause.at_ns = 0; pause.at_ns < 40 * kMs; pause.at_ns += kMs) {
    std::set<uint64_t> traces;
    for (pause.amount = 0; pause.amount < 2; ++pause.amount) {
      s.faults = {pause};
      World world(s);
      const Verdict verdict = world.run();
      EXPECT_TRUE(verdict.ok()) << "still at " << pause.at_ns / kMs << " ms: " << verdict.violation;
      EXPECT_EQ(verdict.succeeded, verdict.programs);
      traces.insert(verdict.trace);
    }
    went_on += traces.size() == 2;
  }
  EXPECT_GT(went_on, 10U) << "programs did nothing else than where they stand still, too";
}

// One of three closes the job at any point of it: each of the others comes through or fails by that
// name, with all that the one who left had; with a quorum they come through.
TEST(Disaster, OneLeavesEarlyAndTheOthersHearOfIt) {
  Scenario s = small_scenario({0, 1, 2}, {3});
  s.link.delay_ns = 50'000;
  s.link.faults.loss = 0.02;
  s.jobs[0].tensors.push_back({2, 2000, Dtype::kI32, ReduceOp::kSum, 1, true});
  Fault leave;
  leave.kind = FaultKind::kProgramLeave;
  leave.program = 1;
  std::set<uint32_t> came_through[2];  // how many of the three
  for (const bool quorum : {false, true}) {
    s.jobs[0].quorum = quorum ? 2 : 0;
    s.jobs[0].patience_ns = 5 * kMs;
    for (leave.at_ns = kMs; leave.at_ns < 120 * kMs; leave.at_ns += 3 * kMs) {
      s.seed = leave.at_ns;
      s.faults = {leave};
      World world(s);
      const Verdict verdict = world.run();
      EXPECT_TRUE(verdict.ok()) << "left at " << leave.at_ns / kMs << " ms: " << verdict.violation;
      came_through[quorum].insert(verdict.succeeded);
    }
  }
  EXPECT_TRUE(came_through[0].contains(0)) << "nobody left in the middle";
  EXPECT_TRUE(came_through[0].contains(3)) << "nobody left after the end";
  EXPECT_TRUE(came_through[1].contains(2)) << "nobody was spared in the job with a quorum";
  EXPECT_FALSE(came_through[1].contains(0));
}

TEST(Reduction, IsReadAsItIsWritten) {
  Reduction cut;
  cut.without_faults = {0, 2};
  cut.calm = {"loss", "jitter"};
  cut.max_rounds = 2;
  cut.max_numel = 17;
  const std::string text = cut.to_string();
  const Result<Reduction> again = Reduction::parse(text);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->to_string(), text);
  EXPECT_EQ(Reduction::parse("")->to_string(), "");
  EXPECT_FALSE(Reduction::parse("rounds"));
  EXPECT_FALSE(Reduction::parse("rounds=x"));
  EXPECT_FALSE(Reduction::parse("rounds="));
  EXPECT_FALSE(Reduction::parse("weather=9"));
}

TEST(Shrink, LeavesWhatTheFailureNeeds) {
  uint64_t seed = 1;
  while (make_scenario(seed).faults.size() < 3 || make_scenario(seed).jobs[0].rounds < 4) ++seed;
  const Scenario scenario = make_scenario(seed);
  int tried = 0;
  // It fails as long as fault 1 is there and there are two rounds.
  const auto fails = [&tried](const Reduction& cut) -> std::string {
    ++tried;
    return !cut.without_faults.contains(1) && cut.max_rounds >= 2 ? "wrong" : "";
  };
  const Reduction least = shrink(scenario, fails, [](const Reduction&) {});
  EXPECT_FALSE(least.without_faults.contains(1));
  EXPECT_TRUE(least.without_faults.contains(0));
  EXPECT_TRUE(least.without_faults.contains(2));
  EXPECT_EQ(least.max_rounds, 2U);
  EXPECT_EQ(least.max_numel, 1U);
  EXPECT_LT(tried, 200);
}

// The reference is not to be had by two halves of different rounds, or by one contribution twice.
TEST(Ledger, TellsSumsFromWhatLooksLikeOne) {
  Scenario scenario;
  scenario.seed = 3;
  scenario.hosts.resize(1);  // both workers'
  JobPlan job;
  job.worker_hosts = {0, 0};
  job.tensors.push_back({0, 10, Dtype::kI32, ReduceOp::kSum, 0, false});
  scenario.jobs.push_back(job);
  Ledger ledger(scenario);
  std::array<std::array<std::array<std::byte, 40>, 2>, 3> data;  // round, rank
  const auto add = [](std::span<const std::byte> a, std::span<const std::byte> b) {
    std::vector<std::byte> sum(40);
    for (size_t i = 0; i < 40; i += 4) {
      uint32_t x;
      uint32_t y;
      std::memcpy(&x, &a[i], 4);
      std::memcpy(&y, &b[i], 4);
      x += y;
      std::memcpy(&sum[i], &x, 4);
    }
    return sum;
  };
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_EQ(ledger.enrol(0, rank), 0U);
  Ledger::Company company(2);
  for (uint32_t round = 1; round <= 2; ++round) {
    ledger.contribute(0, 0, 0, 0, round, data[round][0]);
    EXPECT_TRUE(ledger.check(0, 0, round, add(data[round][0], data[round][0]), company, {}))
        << "nobody else has contributed";
    ledger.contribute(0, 1, 0, 0, round, data[round][1]);
    EXPECT_TRUE(ledger.check(0, 0, round, add(data[round][0], data[round][0]), company, {}));
    EXPECT_FALSE(ledger.check(0, 0, round, add(data[round][0], data[round][1]), company, {}));
  }
  std::vector<std::byte> mixed = add(data[1][0], data[1][1]);
  const std::vector<std::byte> second = add(data[2][0], data[2][1]);
  std::copy(second.begin() + 20, second.end(), mixed.begin() + 20);
  EXPECT_TRUE(ledger.check(0, 0, 1, mixed, company, {}));
  EXPECT_TRUE(ledger.check(0, 0, 2, mixed, company, {}));
  EXPECT_TRUE(ledger.check_unfinished(0, 0, 0, 0, 2, mixed, company, 0));
  std::copy(data[2][0].begin(), data[2][0].begin() + 20, mixed.begin());
  EXPECT_FALSE(ledger.check_unfinished(0, 0, 0, 0, 2, mixed, company, 0))
      << "half gradient, half sum";
}

TEST(Ledger, KnowsHowManyChunksAreDamaged) {
  Scenario scenario;
  scenario.hosts.resize(1);
  JobPlan job;
  job.worker_hosts = {0};
  job.tensors.push_back({0, 2'000, Dtype::kI32, ReduceOp::kSum, 0, false});
  scenario.jobs.push_back(job);
  Ledger ledger(scenario);
  ASSERT_EQ(ledger.enrol(0, 0), 0U);
  std::vector<std::byte> memory(8'000);
  ledger.contribute(0, 0, 0, 0, 1, memory);
  const auto holds = [&](uint64_t damaged) {
    return !ledger.check_unfinished(0, 0, 0, 0, 1, memory, Ledger::Company(1), damaged);
  };
  EXPECT_TRUE(holds(0));
  for (const size_t at : {400, 404, 1'500}) memory[at] ^= std::byte{1};  // of one frame
  EXPECT_FALSE(holds(0));
  EXPECT_TRUE(holds(1));
  memory[7'000] ^= std::byte{1};
  EXPECT_FALSE(holds(1));
  EXPECT_TRUE(holds(2));
  scenario.hosts[0].mtu_bytes = 9'000;  // all of it is one chunk
  EXPECT_TRUE(holds(1));
}

// A second instance of a rank contributes other numbers, and one job is of one instance.
TEST(Ledger, KeepsInstancesApart) {
  Scenario scenario;
  JobPlan job;
  job.worker_hosts = {0};
  job.tensors.push_back({0, 4, Dtype::kI64, ReduceOp::kSum, 0, false});
  scenario.jobs.push_back(job);
  Ledger ledger(scenario);
  std::array<std::array<std::byte, 32>, 2> data;
  for (uint32_t instance = 0; instance < 2; ++instance) {
    ASSERT_EQ(ledger.enrol(0, 0), instance);
    ledger.contribute(0, 0, instance, 0, 1, data[instance]);
  }
  EXPECT_NE(data[0], data[1]);
  Ledger::Company company(1);
  EXPECT_FALSE(ledger.check(0, 0, 1, data[1], company, {}));
  EXPECT_EQ(company[0], 1U);
  EXPECT_TRUE(ledger.check(0, 0, 1, data[0], company, {})) << "it is in a job with the other one";
}

TEST(Clock, DriftsAndLeapsAndIsInvertible) {
  for (const int64_t drift_ppm : {0L, 50'000L, -50'000L, 1L, -3L}) {
    Clock clock(1'000'000'000'007, drift_ppm);
    for (const uint64_t leap : {uint64_t{0}, uint64_t{5'000'000'000}}) {
      clock.leap(leap, 77'000);
      uint64_t before = 0;
      for (uint64_t now = 77'000; now < 10'000'000'000; now = now * 2 + 1) {
        const uint64_t local = clock.local_ns(now);
        EXPECT_GE(local, before);
        before = local;
        EXPECT_GE(clock.local_ns(clock.network_ns(local)), local);
        EXPECT_LE(clock.network_ns(local), now);
      }
    }
  }
}

TEST(Mutations, AreNamedAndNotInThisBuild) {
  EXPECT_GE(mutations().size(), 15U);
  EXPECT_EQ(mutant_path("no-such-mutation"), "");
  EXPECT_NE(mutant_path(mutations().front().name), "");
}

}  // namespace
}  // namespace mercury::disaster
