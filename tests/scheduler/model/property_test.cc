// Laws of the model on random chains, thousands of seeds; a failure prints its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "scheduler/model/equations.h"
#include "scheduler/model/predict.h"
#include "tests/scheduler/model/chains.h"

namespace mercury::model {
namespace {

constexpr uint64_t kSeeds = 3000;
// Sums of numbers of this size, in another order.
constexpr double kTolerance = 1e-9;

const std::vector<std::string> kPolicies = {
    "mercury",
    "mercury-fifo",
    "mercury:forward=tensor",
    "wfbp",
    "wfbp-eq7",
    "p3:partition=1KB,credit=1KB,startup=0",
    "byteps:partition=2KB,credit=8KB,startup=10ms",
    "bytescheduler:partition=1KB,credit=3KB,startup=100ms",
    "bytescheduler:partition=3KB,credit=3KB,startup=1s,order=fifo",
    "bytescheduler:partition=1KB,credit=4KB,startup=0,forward=chunk",
    "bytescheduler:partition=1KB,credit=2KB,startup=0,forward=tensor"};

Rates random_rates(Random& random) {
  const double push = 100 + 2000 * random.uniform();
  return {push, random.chance(0.3) ? push : 100 + 2000 * random.uniform()};
}

Prediction predicted(const Chain& chain, Rates rates, const std::string& policy) {
  const Result<Prediction> prediction = predict(chain, rates, policy_of(policy));
  EXPECT_TRUE(prediction) << policy << ": " << prediction.error().message;
  return *prediction;
}

void expect_near(const Times& expected, const Prediction& prediction, double LayerTimes::*time,
                 uint64_t seed) {
  for (size_t l = 0; l < expected.size(); ++l) {
    EXPECT_NEAR(prediction.layers[l].*time, expected[l], kTolerance * (1 + expected[l]))
        << "seed " << seed << ", layer " << l;
  }
}

// Theorem 1, and more: of any two rates.
TEST(Theorem1, NoPolicyBeatsAlgorithm1) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const Rates rates = random_rates(random);
    const double optimum = optimum_s(chain, rates);
    EXPECT_GE(optimum, oracle_s(chain) - kTolerance) << "seed " << seed;
    EXPECT_NEAR(predicted(chain, rates, "mercury").iteration_s, optimum, kTolerance * (1 + optimum))
        << "seed " << seed;
    for (const std::string& policy : kPolicies) {
      // Equation 7 sends more than the link can.
      if (policy == "wfbp-eq7" && rates.pull < rates.push) continue;
      EXPECT_GE(predicted(chain, rates, policy).iteration_s, optimum - kTolerance * (1 + optimum))
          << "seed " << seed << ", " << policy;
    }
  }
}

// Sends at random: any ready tensor, for any time, with pauses, and pulls late.
double random_schedule_s(const Chain& chain, double rate, Random& random) {
  const Times ready = backward_ends(chain);
  Times left = transfer_times(chain, rate), pulled = ready;
  double now = 0;
  std::vector<size_t> unsent;
  for (size_t l = 0; l < chain.size(); ++l) unsent.push_back(l);
  while (!unsent.empty()) {
    const size_t pick = random.below(unsent.size()), l = unsent[pick];
    now = std::max(now, ready[l]) + (random.chance(0.1) ? random.uniform() : 0);
    const double sent = random.chance(0.5) ? left[l] : left[l] * random.uniform();
    now += sent;
    left[l] -= sent;
    if (left[l] > 0 && sent > 0) continue;
    if (left[l] > 0) now += left[l];
    pulled[l] = now + (random.chance(0.2) ? random.uniform() : 0);
    unsent.erase(unsent.begin() + static_cast<ptrdiff_t>(pick));
  }
  return forward_ends(chain, pulled).back();
}

TEST(Theorem1, NoRandomScheduleBeatsAlgorithm1) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 6);
    const double optimum = optimum_s(chain, {1000, 1000});
    for (int i = 0; i < 20; ++i) {
      EXPECT_GE(random_schedule_s(chain, 1000, random), optimum - kTolerance * (1 + optimum))
          << "seed " << seed;
    }
  }
}

// All ways of sending units of one second, pauses included. Times are whole seconds, so that the
// best preemptive schedule is among them.
class BruteForce {
 public:
  explicit BruteForce(const Chain& chain)
      : chain_(chain), ready_(backward_ends(chain)), pulled_(ready_) {
    for (const Layer& layer : chain) {
      left_.push_back(layer.bytes / 1000);
      last_start_ += static_cast<double>(layer.bytes) / 1000;
    }
    last_start_ += ready_[0];
  }
  double best() {
    search(0);
    return best_s_;
  }

 private:
  void search(double now) {
    if (std::all_of(left_.begin(), left_.end(), [](uint64_t left) { return left == 0; })) {
      best_s_ = std::min(best_s_, forward_ends(chain_, pulled_).back());
      return;
    }
    if (now > last_start_) return;
    for (size_t l = 0; l < left_.size(); ++l) {
      if (left_[l] == 0 || ready_[l] > now) continue;
      const double before = pulled_[l];
      pulled_[l] = now + 1;
      --left_[l];
      search(now + 1);
      ++left_[l];
      pulled_[l] = before;
    }
    search(now + 1);
  }

  const Chain& chain_;
  Times ready_, pulled_;
  std::vector<uint64_t> left_;
  double last_start_ = 0;
  double best_s_ = std::numeric_limits<double>::infinity();
};

TEST(Theorem1, EqualsBruteForceOnSmallChains) {
  int checked = 0;
  for (uint64_t seed = 0; checked < 600; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 4, 4);
    double units = 0;
    for (const Layer& layer : chain) units += layer.wire_bytes / 1000;
    if (units + backward_ends(chain)[0] > 9) continue;
    ++checked;
    EXPECT_EQ(optimum_s(chain, {1000, 1000}), BruteForce(chain).best()) << "seed " << seed;
  }
}

// The general model against the printed equations where both speak.
TEST(Model, GivesThePrintedEquations) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const double rate = 100 + 2000 * random.uniform();
    const Rates rates = {rate, rate};
    const Times times = transfer_times(chain, rate), ready = backward_ends(chain);
    for (const auto& [policy, order] : {std::pair("mercury", Policy::Order::kPriority),
                                        std::pair("mercury-fifo", Policy::Order::kFifo)}) {
      const Prediction prediction = predicted(chain, rates, policy);
      const Times pushed = algorithm_1(chain, times, order);
      expect_near(pushed, prediction, &LayerTimes::pushed_s, seed);
      expect_near(pushed, prediction, &LayerTimes::pulled_s, seed);  // equation 8
      EXPECT_NEAR(prediction.iteration_s, forward_ends(chain, pushed).back(),
                  kTolerance * (1 + prediction.iteration_s));
    }
    const Times pushed = wfbp_pushed(ready, times);
    expect_near(pushed, predicted(chain, rates, "wfbp"), &LayerTimes::pushed_s, seed);
    expect_near(wfbp_pulled(pushed, times), predicted(chain, rates, "wfbp-eq7"),
                &LayerTimes::pulled_s, seed);
    // With the downlink shared, pulls follow each other as pushes do in equation 6.
    expect_near(wfbp_pushed(pushed, times), predicted(chain, rates, "wfbp"), &LayerTimes::pulled_s,
                seed);
  }
}

TEST(Model, Equation7FlattersWfbp) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const Rates rates = random_rates(random);
    const double shared = predicted(chain, rates, "wfbp").iteration_s;
    EXPECT_LE(predicted(chain, rates, "wfbp-eq7").iteration_s, shared + kTolerance * (1 + shared))
        << "seed " << seed;
  }
}

// Mercury, without preemption, native: each step of the paper's breakdown helps or does no harm.
TEST(Model, EachPartOfMercuryHelps) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const Rates rates = random_rates(random);
    const double fifo = predicted(chain, rates, "mercury-fifo").iteration_s;
    EXPECT_LE(predicted(chain, rates, "mercury").iteration_s, fifo + kTolerance * (1 + fifo))
        << "seed " << seed;
    EXPECT_LE(fifo, predicted(chain, rates, "wfbp").iteration_s + kTolerance * (1 + fifo))
        << "seed " << seed;
  }
}

// Of partitions this is not so: on a faster link a less urgent one may just have been released.
TEST(Model, FasterLinksAreNeverSlowerWithoutPartitions) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const Rates rates = random_rates(random);
    const Rates faster = {rates.push * (1 + random.uniform()), rates.pull * (1 + random.uniform())};
    for (const char* policy : {"mercury", "mercury-fifo", "wfbp", "wfbp-eq7"}) {
      const double slow = predicted(chain, rates, policy).iteration_s;
      EXPECT_LE(predicted(chain, faster, policy).iteration_s, slow + kTolerance * (1 + slow))
          << "seed " << seed << ", " << policy;
    }
  }
}

TEST(Model, EveryTensorIsReadyThenPushedThenPulled) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, 12);
    const Rates rates = random_rates(random);
    for (const std::string& policy : kPolicies) {
      const Prediction prediction = predicted(chain, rates, policy);
      for (size_t l = 0; l < chain.size(); ++l) {
        const LayerTimes& times = prediction.layers[l];
        const double push_s = chain[l].wire_bytes / rates.push;
        const double pull_s = chain[l].wire_bytes / rates.pull;
        EXPECT_GE(times.pushed_s - times.ready_s, push_s - kTolerance * (1 + times.pushed_s))
            << "seed " << seed << ", " << policy << ", layer " << l;
        EXPECT_GE(times.pulled_s, times.pushed_s - kTolerance * (1 + times.pushed_s))
            << "seed " << seed << ", " << policy << ", layer " << l;
        EXPECT_GE(times.pulled_s - times.ready_s, pull_s - kTolerance * (1 + times.pulled_s))
            << "seed " << seed << ", " << policy << ", layer " << l;
      }
      EXPECT_GE(prediction.uplink_busy, 0);
      EXPECT_LE(prediction.uplink_busy, 1 + kTolerance);
    }
  }
}

// All gradients are ready at once, so that the links never idle: then everything has a closed form.
TEST(ClosedForm, WhereCommunicationNeverIdles) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    Chain chain = random_chain(random, 12);
    for (size_t l = 0; l < chain.size(); ++l) {
      if (l + 1 < chain.size()) chain[l].backward_s = 0;
      chain[l].bytes = 2000 * (1 + chain[l].bytes / 1000);
      chain[l].wire_bytes = static_cast<double>(chain[l].bytes);
    }
    const double start = chain.back().backward_s, rate = 100 + 2000 * random.uniform();
    const Times times = transfer_times(chain, rate);
    Times urgent(chain.size()), fifo(chain.size());
    double sum = start;
    for (size_t l = 0; l < chain.size(); ++l) urgent[l] = sum += times[l];
    sum = start;
    for (size_t l = chain.size(); l-- > 0;) fifo[l] = sum += times[l];
    expect_near(urgent, predicted(chain, {rate, rate}, "mercury"), &LayerTimes::pulled_s, seed);
    expect_near(fifo, predicted(chain, {rate, rate}, "mercury-fifo"), &LayerTimes::pulled_s, seed);
    expect_near(fifo, predicted(chain, {rate, rate}, "wfbp"), &LayerTimes::pushed_s, seed);
    // Stop-and-wait: each partition of 2 kB costs its start-up.
    Times stop(chain.size());
    sum = start;
    for (size_t l = 0; l < chain.size(); ++l) {
      stop[l] = sum += 0.25 * static_cast<double>(chain[l].bytes) / 2000 + times[l];
    }
    expect_near(
        stop,
        predicted(chain, {rate, rate}, "bytescheduler:partition=2KB,credit=2KB,startup=250ms"),
        &LayerTimes::pushed_s, seed);
  }
}

// Small partitions, no start-up and the least credit: Mercury, but for one partition's time.
TEST(ClosedForm, PartitionsWithoutCostTendToMercury) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    Chain chain = random_chain(random, 8);
    for (Layer& layer : chain) layer.bytes *= 1000, layer.wire_bytes *= 1000;
    const Rates rates = {1e6, 1e6};
    const double mercury = predicted(chain, rates, "mercury").iteration_s;
    const double partitions =
        predicted(chain, rates, "p3:partition=1KB,credit=1KB,startup=0").iteration_s;
    EXPECT_NEAR(partitions, mercury, 2e-3 + kTolerance) << "seed " << seed;
  }
}

}  // namespace
}  // namespace mercury::model
