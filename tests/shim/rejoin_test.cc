// Workers that are lost in mid-exchange and come back, over the simulated network: every sum is the
// exact sum of one contribution of each rank, of one life of it, and the same for all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "tests/seeds.h"
#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint32_t kRounds = 6;

OpenJob job(const std::string& secret = {}) {
  OpenJob open;
  open.name = "rejoin";
  open.secret = secret;
  open.terms.rejoin_ms = to_ms(30 * kSecond);
  return open;
}

TensorDeclaration tensor(uint32_t number, uint64_t numel) {
  TensorDeclaration declaration;
  declaration.tensor = TensorId(number);
  declaration.numel = numel;
  declaration.dtype = Dtype::kI32;
  declaration.priority = static_cast<uint16_t>(number);
  return declaration;
}

int32_t element(uint32_t worker, uint32_t life, uint32_t tensor_number, uint32_t round, size_t i) {
  uint64_t x = worker * 7919 + life * 15485863 + tensor_number * 104729 + round * 611953 + i;
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15;
  return static_cast<int32_t>(x >> 40);
}

// Trains: every worker exchanges each tensor round by round, and checks what it gets.
class Training {
 public:
  Training(const ClusterConfig& config, std::vector<TensorDeclaration> tensors,
           OpenJob open = job())
      : config_(config),
        tensors_(std::move(tensors)),
        open_(std::move(open)),
        cluster_(config),
        lives_(config.workers, 0) {
    for (uint32_t w = 0; w < config.workers; ++w) states_.emplace_back(tensors_.size());
  }
  SimCluster& cluster() { return cluster_; }

  void begin() {
    const Status opened = cluster_.open_job(open_, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status declared = cluster_.declare(tensors_, 20 * kSecond);
    ASSERT_TRUE(declared.ok()) << declared.error().message;
  }
  // Until all rounds are done everywhere, or for `ns`.
  bool train(uint64_t ns) {
    return cluster_.run([this] { return drive() || testing::Test::HasFatalFailure(); }, ns);
  }
  // The worker's program, or its whole host, is lost.
  void lose(uint32_t worker, bool host) {
    if (host) {
      cluster_.crash_host(worker);
    } else {
      ASSERT_TRUE(cluster_.end_program(worker, 10 * kSecond));
    }
    ++lives_[worker];
    for (Progress& p : states_[worker]) p = Progress{};
    lost_.insert(worker);
  }
  void come_back(uint32_t worker, bool host) {
    if (host) cluster_.start_host(worker);
    const Status opened = cluster_.open_job_on(worker, open_, 29 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status declared = cluster_.declare_on(worker, tensors_, 20 * kSecond);
    ASSERT_TRUE(declared.ok()) << declared.error().message;
    const JobManager& jobs = cluster_.worker_host(worker).jobs();
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const uint32_t first = jobs.first_round(cluster_.client(worker),
                                              cluster_.program(worker).slot, tensors_[t].tensor)
                                 .value;
      EXPECT_GE(first + 1, highest_[t]) << "two rounds apart";
      states_[worker][t].done = first - 1;
    }
    lost_.erase(worker);
  }
  uint32_t slowest() const {
    uint32_t least = kRounds;
    for (const auto& worker : states_) {
      for (const Progress& p : worker) least = std::min(least, p.done);
    }
    return least;
  }

 private:
  struct Progress {
    uint32_t done = 0;
    uint64_t cookie = 0;  // of the round done + 1; 0: not submitted
  };

  bool drive() {
    bool all = lost_.empty();
    for (uint32_t w = 0; w < config_.workers; ++w) {
      if (lost_.count(w) > 0) continue;
      for (size_t t = 0; t < tensors_.size(); ++t) all = step(w, t) && all;
      if (testing::Test::HasFatalFailure()) return true;
    }
    return all;
  }
  bool step(uint32_t w, size_t t) {
    Progress& p = states_[w][t];
    SimProgram& program = cluster_.program(w);
    if (p.cookie != 0 && program.done(p.cookie)) {
      EXPECT_EQ(program.status(p.cookie), Errc::kOk) << name_of(program.status(p.cookie));
      check(w, t, ++p.done);
      p.cookie = 0;
    }
    if (p.done == kRounds) return true;
    if (p.cookie != 0) return false;
    const uint32_t round = p.done + 1;
    const TensorDeclaration& spec = tensors_[t];
    auto* data = reinterpret_cast<int32_t*>(program.memory(spec.tensor.value).data());
    for (size_t i = 0; i < spec.numel; ++i)
      data[i] = element(w, lives_[w], spec.tensor.value, round, i);
    pushed_[{t, round}][w].insert(lives_[w]);
    highest_[t] = std::max(highest_[t], round);
    p.cookie = ++last_cookie_;
    program.submit(SubmitOp::kPushPull, spec.tensor.value, spec.priority, p.cookie);
    return false;
  }
  // One contribution of each rank, of one of the lives that pushed this round; the same for all.
  void check(uint32_t w, size_t t, uint32_t round) {
    const TensorDeclaration& spec = tensors_[t];
    const std::vector<std::byte>& memory = cluster_.program(w).memory(spec.tensor.value);
    const auto [first, fresh] = sums_.emplace(std::pair{t, round}, memory);
    if (!fresh) {
      ASSERT_EQ(first->second == memory, true)
          << "two sums: worker " << w << " tensor " << t << " round " << round;
      return;
    }
    const auto* data = reinterpret_cast<const int32_t*>(memory.data());
    const auto& pushed = pushed_[{t, round}];
    std::vector<int32_t> possible;
    std::vector<int32_t> next;
    for (size_t i = 0; i < spec.numel; ++i) {
      possible.assign(1, 0);
      for (const auto& [rank, lives] : pushed) {
        next.clear();
        for (const uint32_t life : lives) {
          const int32_t own = element(rank, life, spec.tensor.value, round, i);
          for (const int32_t sum : possible) next.push_back(sum + own);
        }
        possible.swap(next);
      }
      ASSERT_NE(std::find(possible.begin(), possible.end(), data[i]), possible.end())
          << "worker " << w << " tensor " << t << " round " << round << " element " << i;
    }
  }

  const ClusterConfig config_;
  const std::vector<TensorDeclaration> tensors_;
  const OpenJob open_;
  SimCluster cluster_;
  std::vector<uint32_t> lives_;
  std::vector<std::vector<Progress>> states_;
  std::set<uint32_t> lost_;
  std::map<std::pair<size_t, uint32_t>, std::map<uint32_t, std::set<uint32_t>>> pushed_;
  std::map<std::pair<size_t, uint32_t>, std::vector<std::byte>> sums_;
  uint64_t last_cookie_ = 0;
  std::map<size_t, uint32_t> highest_;  // round pushed, by tensor
};

TEST(Rejoin, AProgramThatEndsInMidExchangeComesBackInItsRound) {
  ClusterConfig config;
  config.workers = 3;
  Training training(config, {tensor(0, 400'000), tensor(1, 5'000)});
  training.begin();
  if (testing::Test::HasFatalFailure()) return;
  training.train(5'000'000);
  training.lose(1, false);
  EXPECT_FALSE(training.train(2 * kSecond)) << "the others wait";
  training.come_back(1, false);
  ASSERT_TRUE(training.train(60 * kSecond));
  EXPECT_TRUE(training.cluster().close(30 * kSecond));
}

TEST(Rejoin, AHostThatRebootsComesBackWhenItsDeathIsKnown) {
  ClusterConfig config;
  config.workers = 3;
  config.lane.engine.session.peer_timeout_ns = 2 * kSecond;
  Training training(config, {tensor(0, 400'000), tensor(1, 5'000)});
  training.begin();
  training.train(5'000'000);
  training.lose(2, true);
  training.train(kSecond / 10);
  training.come_back(2, true);
  if (testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(training.train(60 * kSecond));
  EXPECT_TRUE(training.cluster().close(30 * kSecond));
}

// Its last life's sessions are among as many as the coordinator's host may have.
TEST(Rejoin, AHostThatRebootsFindsRoomWhenItsDeathIsKnown) {
  ClusterConfig config;
  config.workers = 3;
  config.lane.engine.session.peer_timeout_ns = 2 * kSecond;
  config.server_lane = config.lane;
  config.server_lane->engine.max_sessions = 7;  // with three workers twice, and the other server
  Training training(config, {tensor(0, 400'000)});
  training.begin();
  if (testing::Test::HasFatalFailure()) return;
  training.train(5'000'000);
  training.lose(2, true);
  training.train(kSecond / 10);  // what was on its way to it has gone
  training.come_back(2, true);
  if (testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(training.train(60 * kSecond));
  EXPECT_TRUE(training.cluster().close(30 * kSecond));
}

// In vain: the error is the limit's, as that of whoever does not wait. Of three that ask at once
// the first gives way to the others, and asks again when they have said who they are.
TEST(Rejoin, WhoFindsNoRoomInTimeIsToldOfTheLimit) {
  ClusterConfig config;
  config.workers = 3;
  config.servers = 1;
  config.server_lane = config.lane;
  config.server_lane->engine.max_sessions = 2;
  SimCluster cluster(config);
  OpenJob open = job();
  open.timeout_ns = 4 * kSecond;
  const Status opened = cluster.open_job(open, 20 * kSecond);
  ASSERT_FALSE(opened.ok());
  EXPECT_GE(cluster.now_ns(), open.timeout_ns);
  EXPECT_EQ(opened.error().code, Errc::kLimit) << opened.error().message;
  EXPECT_NE(opened.error().message.find("(engine.max_sessions = 2)"), std::string::npos)
      << opened.error().message;
}

// What the job's frames are more than its path carries now goes in parts.
TEST(Rejoin, OneThatComesBackOverAPathThatCarriesLessIsLetIn) {
  for (const auto& [host, secret] :
       {std::pair(false, ""), {true, ""}, {false, "with seals"}, {true, "with seals"}}) {
    SCOPED_TRACE(std::string(host ? "its host " : "its program ") + secret);
    ClusterConfig config;
    config.workers = 3;
    config.link.mtu_bytes = 9000;
    const OpenJob open = job(secret);
    if (*secret != 0) config.known = {.name = open.name, .secret = open.secret};
    Training training(config, {tensor(0, 5'000), tensor(1, 100'000)}, open);
    training.begin();
    EXPECT_EQ(training.cluster().total(Counter::kSessionsSealed) > 0, *secret != 0);
    training.train(3 * kSecond / 1000);
    training.lose(1, host);
    training.train(kSecond);
    sim::Faults faults;
    faults.vanish_above_bytes = 1'500;
    training.cluster().network().set_faults(faults);
    training.come_back(1, host);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(training.train(60 * kSecond));
    EXPECT_GT(training.cluster().total(Counter::kPartsSent), 0U);
    EXPECT_TRUE(training.cluster().close(30 * kSecond));
  }
}

// One seed decides shape, faults, and who is lost when.
TEST(Rejoin, EverySumIsExactWhoeverIsLostWhen) {
  for_each_seed(100, [](uint64_t seed) {
    Random random(seed);
    const ClusterConfig config = ClusterConfig::stormy(seed, random);
    std::vector<TensorDeclaration> tensors;
    for (uint32_t t = 0; t < 1 + random.below(3); ++t) {
      tensors.push_back(tensor(static_cast<uint32_t>(t * 3), 1 + random.below(20'000)));
    }
    Training training(config, tensors);
    training.begin();
    for (int strike = 0; strike < 3 && !HasFatalFailure(); ++strike) {
      training.train(random.below(30'000'000));
      const auto victim = static_cast<uint32_t>(random.below(config.workers));
      const bool host = random.chance(0.3);
      training.lose(victim, host);
      if (random.chance(0.5)) training.train(random.below(2 * kSecond));
      training.come_back(victim, host);
    }
    if (HasFatalFailure()) return;
    ASSERT_TRUE(training.train(60 * kSecond)) << "hangs in round " << training.slowest() + 1;
    ASSERT_TRUE(training.cluster().close(30 * kSecond));
  });
}

}  // namespace
}  // namespace mercury
