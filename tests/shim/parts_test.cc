// Rounds to which workers contribute parts of a tensor, over the simulated network: a broadcast, to
// which one contributes all and the others nothing, and an all-gather, to which each contributes
// its own part. Every byte is the one that its owner had, whatever the network does and whoever is
// lost and comes back. And rounds of which each worker gets its own part: reduce-scatters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "scheduler/terms/part.h"
#include "tests/seeds.h"
#include "tests/shim/sim_cluster.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint32_t kRounds = 4;

enum class Kind : uint8_t {
  kBroadcast,  // by another root in each round
  kGathered,
  kScattered,  // of 32-bit integers
  kMixed,      // likewise, but that worker 0 wants all of the sum
};

struct Exchanged {
  TensorDeclaration spec;
  Kind kind = Kind::kBroadcast;

  bool scattered() const { return kind == Kind::kScattered || kind == Kind::kMixed; }
  SubmitOp op(uint32_t worker, bool owner) const {
    if (kind == Kind::kGathered) return SubmitOp::kGather;
    if (kind == Kind::kBroadcast) return owner ? SubmitOp::kPushPull : SubmitOp::kReceive;
    return kind == Kind::kMixed && worker == 0 ? SubmitOp::kPushPull : SubmitOp::kScatter;
  }
};

Exchanged exchanged(uint32_t number, uint64_t numel, Dtype dtype, ReduceOp op, Kind kind) {
  TensorDeclaration spec;
  spec.tensor = TensorId(number);
  spec.numel = numel;
  spec.dtype = dtype;
  spec.op = op;
  spec.priority = static_cast<uint16_t>(number);
  return {spec, kind};
}

// What its owner writes into a round of a tensor: of floats also what adding zero would change.
std::vector<std::byte> content(const Exchanged& tensor, uint32_t round) {
  std::vector<std::byte> out(tensor.spec.numel * size_of(tensor.spec.dtype));
  Random random(tensor.spec.tensor.value * 1000 + round);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random.below(256));
  if (tensor.spec.dtype != Dtype::kF32) return out;
  constexpr float kSpecial[] = {-0.0F,
                                0.0F,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::denorm_min(),
                                -1.5F,
                                3e38F};
  for (size_t i = 0; i < tensor.spec.numel; ++i) {
    std::memcpy(out.data() + 4 * i, &kSpecial[random.below(std::size(kSpecial))], 4);
  }
  return out;
}

// What worker `worker` pushes in a reduce-scatter.
std::vector<std::byte> pushed(const Exchanged& tensor, uint32_t round, uint32_t worker) {
  return content(tensor, round * 100 + worker);
}

std::vector<std::byte> sum_of(const Exchanged& tensor, uint32_t round, uint32_t workers) {
  std::vector<uint32_t> sum(tensor.spec.numel);
  for (uint32_t w = 0; w < workers; ++w) {
    const std::vector<std::byte> theirs = pushed(tensor, round, w);
    for (size_t i = 0; i < sum.size(); ++i) {
      uint32_t element = 0;
      std::memcpy(&element, theirs.data() + 4 * i, 4);
      sum[i] += element;
    }
  }
  std::vector<std::byte> out(4 * sum.size());
  std::memcpy(out.data(), sum.data(), out.size());
  return out;
}

class Parts {
 public:
  Parts(const ClusterConfig& config, std::vector<Exchanged> tensors, bool deterministic)
      : config_(config), tensors_(std::move(tensors)), cluster_(config) {
    job_.name = "parts";
    job_.terms.deterministic = deterministic;
    job_.terms.rejoin_ms = 30'000;
    states_.assign(config.workers, std::vector<Progress>(tensors_.size()));
  }
  SimCluster& cluster() { return cluster_; }

  void begin() {
    const Status opened = cluster_.open_job(job_, 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status declared = cluster_.declare(specs(), 20 * kSecond);
    ASSERT_TRUE(declared.ok()) << declared.error().message;
  }
  // Until all rounds are done everywhere, or for `ns`.
  bool run(uint64_t ns) {
    return cluster_.run([this] { return drive() || testing::Test::HasFailure(); }, ns);
  }
  void lose(uint32_t worker, bool host) {
    if (host) {
      cluster_.crash_host(worker);
    } else {
      ASSERT_TRUE(cluster_.end_program(worker, 10 * kSecond));
    }
    states_[worker].assign(tensors_.size(), {});
    lost_.insert(worker);
  }
  void come_back(uint32_t worker, bool host) {
    if (host) cluster_.start_host(worker);
    const Status opened = cluster_.open_job_on(worker, job_, 29 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Status declared = cluster_.declare_on(worker, specs(), 20 * kSecond);
    ASSERT_TRUE(declared.ok()) << declared.error().message;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      states_[worker][t].done =
          cluster_.worker_host(worker)
              .jobs()
              .first_round(cluster_.client(worker), cluster_.program(worker).slot,
                           tensors_[t].spec.tensor)
              .value -
          1;
    }
    lost_.erase(worker);
  }

 private:
  struct Progress {
    uint32_t done = 0;
    uint64_t cookie = 0;  // of the round done + 1; 0: not submitted
  };

  std::vector<TensorDeclaration> specs() const {
    std::vector<TensorDeclaration> all;
    for (const Exchanged& tensor : tensors_) all.push_back(tensor.spec);
    return all;
  }
  bool drive() {
    bool all = lost_.empty();
    for (uint32_t w = 0; w < config_.workers; ++w) {
      if (lost_.contains(w)) continue;
      for (size_t t = 0; t < tensors_.size(); ++t) all = step(w, t) && all;
    }
    return all;
  }
  bool step(uint32_t w, size_t t) {
    Progress& p = states_[w][t];
    const Exchanged& tensor = tensors_[t];
    SimProgram& program = cluster_.program(w);
    std::vector<std::byte>& memory = program.memory(tensor.spec.tensor.value);
    if (p.cookie != 0 && program.done(p.cookie)) {
      EXPECT_EQ(program.status(p.cookie), Errc::kOk) << name_of(program.status(p.cookie));
      EXPECT_TRUE(has_what_is_due(w, tensor, ++p.done, memory))
          << "worker " << w << " tensor " << tensor.spec.tensor.value << " round " << p.done;
      p.cookie = 0;
    }
    if (p.done == kRounds) return true;
    if (p.cookie != 0) return false;
    fill(w, tensor, p.done + 1, memory);
    p.cookie = ++last_cookie_;
    program.submit(tensor.op(w, (p.done + 1) % config_.workers == w), tensor.spec.tensor.value,
                   tensor.spec.priority, p.cookie);
    return false;
  }
  void fill(uint32_t w, const Exchanged& tensor, uint32_t round,
            std::vector<std::byte>& memory) const {
    if (tensor.scattered()) {
      const std::vector<std::byte> mine = pushed(tensor, round, w);
      std::copy(mine.begin(), mine.end(), memory.begin());  // where the engine knows it
      return;
    }
    const bool gathered = tensor.kind == Kind::kGathered;
    const std::vector<std::byte> wanted = content(tensor, round);
    const uint64_t part = gathered ? memory.size() / config_.workers : memory.size();
    const uint64_t begin = gathered ? part * w : 0;
    // What nobody is asked for must not be seen; beside a part are zeros, as the program writes.
    memory.assign(memory.size(), gathered ? std::byte{0} : std::byte{0x77});
    if (gathered || round % config_.workers == w) {
      std::memcpy(memory.data() + begin, wanted.data() + begin, part);
    }
  }
  bool has_what_is_due(uint32_t w, const Exchanged& tensor, uint32_t round,
                       const std::vector<std::byte>& memory) const {
    if (!tensor.scattered()) return memory == content(tensor, round);
    const std::vector<std::byte> sum = sum_of(tensor, round, config_.workers);
    if (tensor.kind == Kind::kMixed && w == 0) return memory == sum;
    const Part part = part_of(tensor.spec.numel, config_.workers, Rank(static_cast<uint16_t>(w)));
    return std::equal(sum.begin() + static_cast<std::ptrdiff_t>(4 * part.begin),
                      sum.begin() + static_cast<std::ptrdiff_t>(4 * part.end()),
                      memory.begin() + static_cast<std::ptrdiff_t>(4 * part.begin));
  }

  const ClusterConfig config_;
  const std::vector<Exchanged> tensors_;
  OpenJob job_;
  SimCluster cluster_;
  std::vector<std::vector<Progress>> states_;
  std::set<uint32_t> lost_;
  uint64_t last_cookie_ = 0;
};

// Of a round's bytes the receivers send the headers alone.
TEST(Parts, WhoContributesNothingSendsNoElements) {
  ClusterConfig config;
  config.workers = 3;
  constexpr uint64_t kNumel = 300'000;
  Parts parts(config, {exchanged(0, kNumel, Dtype::kF32, ReduceOp::kSum, Kind::kBroadcast)}, false);
  parts.begin();
  ASSERT_TRUE(parts.run(60 * kSecond));
  for (uint32_t w = 0; w < config.workers; ++w) {
    const uint64_t sent = parts.cluster().worker_host(w).counters(0).get(Counter::kTxBytes);
    const auto rounds_as_root = static_cast<uint64_t>(w == 1 ? 2 : 1);  // rounds 1 to 4
    EXPECT_GE(sent, rounds_as_root * kNumel * 4) << w;
    EXPECT_LE(sent, rounds_as_root * kNumel * 4 * 12 / 10) << w;
  }
  EXPECT_TRUE(parts.cluster().close(30 * kSecond));
}

TEST(Parts, EachWorkersPartReachesAll) {
  ClusterConfig config;
  config.workers = 4;
  config.worker_lanes = config.server_lanes = 2;
  Parts parts(config,
              {exchanged(0, 4 * 9'001, Dtype::kU8, ReduceOp::kSum, Kind::kGathered),
               exchanged(1, 4, Dtype::kI64, ReduceOp::kSum, Kind::kGathered),
               exchanged(2, 4 * 20'000, Dtype::kI32, ReduceOp::kSum, Kind::kGathered)},
              false);
  parts.begin();
  ASSERT_TRUE(parts.run(60 * kSecond));
  EXPECT_TRUE(parts.cluster().close(30 * kSecond));
}

// A server sends each element once, and of the chunks outside a worker's part the headers alone.
TEST(Parts, WhoGetsAPartOfASumReceivesNoMore) {
  ClusterConfig config;
  config.workers = 3;
  constexpr uint64_t kNumel = 300'001;
  Parts parts(config, {exchanged(0, kNumel, Dtype::kI32, ReduceOp::kSum, Kind::kScattered)}, false);
  parts.begin();
  ASSERT_TRUE(parts.run(60 * kSecond));
  for (uint32_t w = 0; w < config.workers; ++w) {
    const uint64_t got = parts.cluster().worker_host(w).counters(0).get(Counter::kRxBytes);
    EXPECT_GE(got, kRounds * kNumel * 4 / config.workers) << w;
    EXPECT_LE(got, kRounds * kNumel * 4 / config.workers * 14 / 10) << w;
  }
  EXPECT_TRUE(parts.cluster().close(30 * kSecond));
}

TEST(Parts, EachWorkerGetsItsPartOfASum) {
  for (const uint32_t workers : {1U, 4U}) {
    ClusterConfig config;
    config.workers = workers;
    config.worker_lanes = config.server_lanes = 2;
    Parts parts(config,
                {exchanged(0, 4 * 9'001 + 3, Dtype::kI32, ReduceOp::kSum, Kind::kScattered),
                 exchanged(1, 1, Dtype::kI32, ReduceOp::kSum, Kind::kScattered),
                 exchanged(2, 20'000, Dtype::kI32, ReduceOp::kSum, Kind::kMixed),
                 exchanged(3, 20'001, Dtype::kI32, ReduceOp::kSum, Kind::kScattered)},
                workers == 4);
    parts.begin();
    ASSERT_TRUE(parts.run(60 * kSecond));
    EXPECT_TRUE(parts.cluster().close(30 * kSecond));
  }
}

// Who has nothing does not count in an average, and is neither the least nor the greatest.
TEST(Parts, NothingIsNeutralForEveryOperation) {
  ClusterConfig config;
  config.workers = 3;
  for (const bool deterministic : {false, true}) {
    Parts parts(config,
                {exchanged(0, 5'000, Dtype::kF32, ReduceOp::kAverage, Kind::kBroadcast),
                 exchanged(1, 5'000, Dtype::kF32, ReduceOp::kMin, Kind::kBroadcast),
                 exchanged(2, 5'000, Dtype::kI8, ReduceOp::kMax, Kind::kBroadcast),
                 exchanged(3, 5'000, Dtype::kF32, ReduceOp::kSum, Kind::kBroadcast)},
                deterministic);
    parts.begin();
    ASSERT_TRUE(parts.run(60 * kSecond));
    EXPECT_TRUE(parts.cluster().close(30 * kSecond));
  }
}

// One seed decides shape, faults, and who is lost when.
TEST(Parts, EveryByteIsItsOwnersOrTheSumsWhateverHappens) {
  for_each_seed(100, [](uint64_t seed) {
    Random random(seed);
    const ClusterConfig config = ClusterConfig::stormy(seed, random);
    std::vector<Exchanged> tensors{
        exchanged(0, 1 + random.below(20'000), Dtype::kF32, ReduceOp::kSum, Kind::kBroadcast),
        exchanged(1, config.workers * (1 + random.below(9'000)), Dtype::kU8, ReduceOp::kSum,
                  Kind::kGathered),
        exchanged(2, 1 + random.below(9'000), Dtype::kI32, ReduceOp::kSum,
                  random.chance(0.8) ? Kind::kScattered : Kind::kMixed)};
    Parts parts(config, tensors, random.chance(0.5));
    parts.begin();
    for (int strike = 0; strike < 2 && !HasFailure(); ++strike) {
      parts.run(random.below(30'000'000));
      const auto victim = static_cast<uint32_t>(random.below(config.workers));
      const bool host = random.chance(0.3);
      parts.lose(victim, host);
      if (random.chance(0.5)) parts.run(random.below(2 * kSecond));
      parts.come_back(victim, host);
    }
    if (HasFailure()) return;
    ASSERT_TRUE(parts.run(60 * kSecond)) << "hangs";
    ASSERT_TRUE(parts.cluster().close(30 * kSecond));
  });
}

}  // namespace
}  // namespace mercury
