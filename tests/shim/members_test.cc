// Jobs of hundreds of members: real control planes and engines, in virtual time. What their start
// costs a control plane, and that sums of the most workers that a job may have are right.
//
//   members_test            as CI runs it: starts of up to 32 workers and 32 servers
//   MERCURY_MEMBERS=1024    starts of up to so many of each, doubling from an eighth: 1,024 of each
//                           take 15 GB of memory and five minutes (tools/nightly members);
//                           and 256 sums that wait for 1,024 workers, most of a minute
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Every host and program has a few descriptors, as a real one has.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

ClusterConfig config(uint32_t workers, uint32_t servers) {
  allow_many_files();
  ClusterConfig config;
  config.workers = workers;
  config.servers = servers;
  config.look = sim::Look::kWoken;
  config.link.mtu_bytes = 1500;
  const auto give = [](LaneConfig& lane, uint32_t sessions) {
    lane.engine.max_sessions = sessions;
    lane.engine.max_in_flight_packets = 64 * sessions;
    lane.exchange.sends.scheduler = {8, sessions, 4096, 65536};
    lane.exchange.sends.most_lost = 1024;
  };
  give(config.lane, servers + 16);
  // The coordinator's host has a session to each member, and its server's to each worker.
  give(config.server_lane.emplace(config.lane), 2 * workers + servers + 16);
  config.policy_sessions = 4 * workers;  // so that all may join at once
  return config;
}

// --- what a start costs ------------------------------------------------------------------------

struct Start {
  uint32_t members = 0;  // of each role
  uint64_t virtual_ns = 0;
  ControlWork coordinator, worker, server;
};

Start start(uint32_t members) {
  SimCluster cluster(config(members, members));
  OpenJob job;
  job.name = "members";
  const Status opened = cluster.open_job(job, 10 * kSecond);
  EXPECT_TRUE(opened.ok()) << members << " of each: " << opened.error().message;
  return {members, cluster.now_ns(), cluster.server_host(0).jobs().work(),
          cluster.worker_host(members - 1).jobs().work(),
          cluster.server_host(members - 1).jobs().work()};
}

void print(const Start& start) {
  std::printf("%u workers and servers: %.3f s virtual\n", start.members,
              static_cast<double>(start.virtual_ns) * 1e-9);
  for (const auto& [who, work] :
       {std::pair<const char*, const ControlWork&>{"coordinator", start.coordinator},
        {"worker", start.worker},
        {"server", start.server}}) {
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "  %s: %llu events, %llu commands, %llu messages in, %llu out, %llu bytes in, %llu out, "
        "%llu invitations seen\n",
        who, number(work.events), number(work.commands), number(work.messages_received),
        number(work.messages_sent), number(work.received_bytes), number(work.sent_bytes),
        number(work.invitations_seen));
  }
}

// Twice as many members are at most twice as much, and what is the same for all sizes.
void expect_linear(const char* what, uint64_t half, uint64_t all) {
  EXPECT_LE(all, 2 * half + half / 8 + 64) << what << ", after " << half;
}

void expect_linear(const Start& half, const Start& all) {
  const auto each = [&](const char* who, ControlWork Start::*whose) {
    SCOPED_TRACE(who);
    const ControlWork &a = half.*whose, &b = all.*whose;
    expect_linear("events", a.events, b.events);
    expect_linear("commands", a.commands, b.commands);
    expect_linear("messages received", a.messages_received, b.messages_received);
    expect_linear("messages sent", a.messages_sent, b.messages_sent);
    expect_linear("invitations seen", a.invitations_seen, b.invitations_seen);
    // To each member, or from it: every worker hears where each server is.
    const uint64_t peers_a = whose == &Start::coordinator ? half.members : 1;
    const uint64_t peers_b = whose == &Start::coordinator ? all.members : 1;
    expect_linear("bytes received", a.received_bytes / peers_a, b.received_bytes / peers_b);
    expect_linear("bytes sent", a.sent_bytes / peers_a, b.sent_bytes / peers_b);
  };
  SCOPED_TRACE(all.members);
  // All servers but its own are invited.
  EXPECT_GE(all.coordinator.invitations_seen, all.members - 1);
  each("coordinator", &Start::coordinator);
  each("worker", &Start::worker);
  each("server", &Start::server);
}

TEST(Members, TheWorkOfAStartIsLinear) {
  const char* asked = std::getenv("MERCURY_MEMBERS");
  const auto most = static_cast<uint32_t>(asked ? std::atoi(asked) : 32);
  ASSERT_TRUE(most >= 8 && most <= kMaxWorkers) << "MERCURY_MEMBERS is 8 to " << kMaxWorkers;
  std::vector<Start> starts;
  for (uint32_t members = most / 8; members <= most; members *= 2) {
    starts.push_back(start(members));
    print(starts.back());
    if (starts.size() > 1) expect_linear(starts[starts.size() - 2], starts.back());
  }
}

// --- sums of the most workers ------------------------------------------------------------------

constexpr uint32_t kElements = 600;  // two chunks
constexpr uint32_t kTensor = 4;

class MostWorkersTest : public testing::Test {
 protected:
  void open(const JobTerms& terms, double loss) {
    ClusterConfig with = config(kMaxWorkers, 1);
    with.link.faults.loss = loss;
    with.lane.engine.session.peer_timeout_ns = 2 * kSecond;
    with.server_lane->engine.session.peer_timeout_ns = 2 * kSecond;
    with.server_lane->exchange.sends.scheduler.max_ranges = 65'536;
    cluster_.emplace(with);
    job_.name = "most";
    job_.terms = terms;
    const Status opened = cluster_->open_job(job_, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status declared = cluster_->declare(tensors(), 20 * kSecond);
    ASSERT_TRUE(declared.ok()) << declared.error().message;
  }
  static std::vector<TensorDeclaration> tensors() {
    TensorDeclaration tensor;
    tensor.tensor = TensorId(kTensor);
    tensor.numel = kElements;
    tensor.dtype = Dtype::kI32;
    return {tensor};
  }
  void push(uint32_t worker, uint64_t cookie) {
    auto& memory = cluster_->program(worker).memory(kTensor);
    std::fill_n(reinterpret_cast<uint32_t*>(memory.data()), kElements, worker + 1);
    cluster_->program(worker).submit(SubmitOp::kPushPull, kTensor, 0, cookie);
  }
  bool all_done(const std::vector<uint32_t>& workers, uint64_t cookie) {
    cluster_->wake_all();
    return cluster_->run(
        [&] {
          return std::all_of(workers.begin(), workers.end(), [&](uint32_t worker) {
            return cluster_->program(worker).done(cookie);
          });
        },
        60 * kSecond);
  }
  void expect_sum(const std::vector<uint32_t>& receivers, const std::vector<uint32_t>& of,
                  uint64_t cookie) {
    const uint32_t sum = std::accumulate(of.begin(), of.end(), static_cast<uint32_t>(of.size()));
    for (const uint32_t worker : receivers) {
      SimProgram& program = cluster_->program(worker);
      ASSERT_EQ(program.status(cookie), Errc::kOk) << worker;
      auto& memory = program.memory(kTensor);
      const auto* got = reinterpret_cast<const uint32_t*>(memory.data());
      ASSERT_EQ(std::count(got, got + kElements, sum), kElements) << worker << ": " << got[0];
    }
  }
  static std::vector<uint32_t> all_but(const std::vector<uint32_t>& missing) {
    std::vector<uint32_t> workers;
    for (uint32_t worker = 0; worker < kMaxWorkers; ++worker) {
      if (std::find(missing.begin(), missing.end(), worker) == missing.end()) {
        workers.push_back(worker);
      }
    }
    return workers;
  }

  OpenJob job_;
  std::optional<SimCluster> cluster_;
};

TEST_F(MostWorkersTest, SumIsRightThoughFramesAreLost) {
  open({}, 0.01);
  const auto all = all_but({});
  for (uint64_t round = 1; round <= 2; ++round) {
    for (const uint32_t worker : all) push(worker, round);
    ASSERT_TRUE(all_done(all, round));
    expect_sum(all, all, round);
  }
}

TEST_F(MostWorkersTest, AQuorumLeavesOutWhoeverIsLateByName) {
  JobTerms terms;
  terms.quorum = 1000;
  terms.patience_ms = 50;
  open(terms, 0.01);
  const std::vector<uint32_t> late{0, 63, 64, 300, 511, 1023};
  const auto others = all_but(late);
  for (const uint32_t worker : others) push(worker, 1);
  ASSERT_TRUE(all_done(others, 1));
  expect_sum(others, others, 1);
  WorkerSet missing{};
  for (const uint32_t worker : late) insert(missing, Rank(static_cast<uint16_t>(worker)));
  for (const uint32_t worker : others) {
    ASSERT_EQ(cluster_->program(worker).absent(kTensor).in_some, missing) << worker;
    ASSERT_EQ(cluster_->program(worker).absent(kTensor).in_all, missing) << worker;
  }
  for (const uint32_t worker : late) push(worker, 1);
  ASSERT_TRUE(all_done(late, 1));
  expect_sum(late, others, 1);
}

TEST_F(MostWorkersTest, AWorkerThatIsLostComesBackAndIsInTheSum) {
  JobTerms terms;
  terms.rejoin_ms = 60'000;
  open(terms, 0);
  constexpr uint32_t kLost = 700;
  const auto all = all_but({});
  for (const uint32_t worker : all) {
    if (worker != kLost) push(worker, 1);
  }
  cluster_->wake_all();
  cluster_->run([] { return false; }, kSecond / 10);
  cluster_->crash_host(kLost);
  cluster_->start_host(kLost);
  job_.rank = kLost;
  const Status opened = cluster_->open_job_on(kLost, job_, 20 * kSecond);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Status declared = cluster_->declare_on(kLost, tensors(), 20 * kSecond);
  ASSERT_TRUE(declared.ok()) << declared.error().message;
  push(kLost, 1);
  ASSERT_TRUE(all_done(all, 1));
  expect_sum(all, all, 1);
}

// --- the most workers, and a server whose link is slow for a while -------------------------------

constexpr uint32_t kSums = 256;  // each of a tensor of its own; the least urgent is pushed first

class MostWorkersWait : public testing::Test {
 protected:
  static ClusterConfig most() {
    ClusterConfig with = config(kMaxWorkers, 1);
    with.server_lane->exchange.sends.scheduler.max_ranges = Scheduler::Limits().max_ranges;
    return with;
  }
  void SetUp() override {
    if (std::getenv("MERCURY_MEMBERS") == nullptr) GTEST_SKIP() << "takes most of a minute";
    cluster_.emplace(most());
    OpenJob job;
    job.name = "most";
    const Status opened = cluster_->open_job(job, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    std::vector<TensorDeclaration> tensors(kSums);
    for (uint32_t i = 0; i < kSums; ++i) {
      tensors[i].tensor = TensorId(i + 1);
      tensors[i].numel = 4;
      tensors[i].dtype = Dtype::kI32;
    }
    ASSERT_TRUE(cluster_->declare(tensors, 20 * kSecond).ok());
  }
  void push_all() {
    for (uint32_t w = 0; w < kMaxWorkers; ++w) {
      for (uint32_t i = 1; i <= kSums; ++i) {
        auto& memory = cluster_->program(w).memory(i);
        std::fill_n(reinterpret_cast<uint32_t*>(memory.data()), 4, w + i);
        cluster_->program(w).submit(SubmitOp::kPushPull, i, static_cast<uint16_t>(kSums - i), i);
      }
    }
    cluster_->wake_all();
  }
  bool done(uint32_t worker) {
    for (uint32_t i = 1; i <= kSums; ++i) {
      if (!cluster_->program(worker).done(i)) return false;
    }
    return true;
  }
  uint32_t ranges() { return cluster_->server_host(0).lane(0).exchange().usage().ranges; }

  std::optional<SimCluster> cluster_;
};

TEST_F(MostWorkersWait, AllSumsAtOnceEachInOneRange) {
  const auto uplink = cluster_->network().uplink(sim::HostId(kMaxWorkers));
  cluster_->network().set_rate(uplink, 5'000'000);
  push_all();
  uint32_t most = 0;
  cluster_->run([&] { return (most = std::max(most, ranges())) >= kSums; }, 10 * kSecond);
  EXPECT_EQ(most, kSums) << "with a range for each worker there were 248 at most";
  cluster_->network().set_rate(uplink, sim::LinkConfig().bytes_per_second);
  ASSERT_TRUE(cluster_->run(
      [&] {
        for (uint32_t w = 0; w < kMaxWorkers; ++w) {
          if (!done(w)) return false;
        }
        return true;
      },
      60 * kSecond));
  for (uint32_t w = 0; w < kMaxWorkers; ++w) {
    for (uint32_t i = 1; i <= kSums; ++i) {
      auto& memory = cluster_->program(w).memory(i);
      const auto* sums = reinterpret_cast<const uint32_t*>(memory.data());
      ASSERT_EQ(sums[0], kMaxWorkers * (kMaxWorkers - 1) / 2 + kMaxWorkers * i);
    }
  }
  EXPECT_EQ(cluster_->total(Counter::kDropSlotBusy), 0U);
  EXPECT_EQ(ranges(), 0U);
}

}  // namespace
}  // namespace mercury
