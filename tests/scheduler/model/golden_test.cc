// The model on a chain of three layers, by hand: Mercury, TPDS 2023, Fig. 2. As there, tensor 2 is
// larger than tensor 3, which is larger than tensor 1, and they have 4, 3 and 1 partitions.
//
//   layer       1  2  3        A tensor of n kB takes n seconds each way at 1 kB/s.
//   backward    1  2  2  s     So the gradients are ready (equation 3) at
//   forward     1  1  1  s       3: 2    2: 2+2 = 4    1: 4+1 = 5
//   tensor      1  4  3  kB    Oracle (equation 9): 5 + 3 = 8.
#include <gtest/gtest.h>

#include "scheduler/model/equations.h"
#include "scheduler/model/predict.h"
#include "tests/scheduler/model/chains.h"

namespace mercury::model {
namespace {

const Chain kChain = {layer_of(1, 1, 1000, 0), layer_of(2, 1, 4000, 1), layer_of(2, 1, 3000, 2)};
constexpr Rates kRates = {1000, 1000};

struct Expected {
  Times pushed, pulled;
  double iteration_s;
};

void expect(const std::string& policy, const Expected& expected, Rates rates = kRates) {
  const Result<Prediction> prediction = predict(kChain, rates, policy_of(policy));
  ASSERT_TRUE(prediction) << policy << ": " << prediction.error().message;
  const Times ready = {5, 4, 2};
  for (size_t l = 0; l < kChain.size(); ++l) {
    EXPECT_EQ(prediction->layers[l].ready_s, ready[l]) << policy << ", layer " << l + 1;
    EXPECT_EQ(prediction->layers[l].pushed_s, expected.pushed[l]) << policy << ", layer " << l + 1;
    EXPECT_EQ(prediction->layers[l].pulled_s, expected.pulled[l]) << policy << ", layer " << l + 1;
  }
  EXPECT_EQ(prediction->iteration_s, expected.iteration_s) << policy;
}

TEST(ThreeLayers, Oracle) { EXPECT_EQ(oracle_s(kChain), 8); }

// push 3: 2..5, push 2: 5..9, push 1: 9..10; each pull after its push, one after another.
// pull 3: 5..8, pull 2: 9..13, pull 1: 13..14
// forward 1: 14..15, forward 2: 15..16, forward 3: 16..17
TEST(ThreeLayers, Wfbp) { expect("wfbp", {{10, 9, 5}, {14, 13, 8}, 17}); }

// As printed, pull 1 runs 10..11 although pull 2 has the link until 13.
// forward 1: 11..12, forward 2: 13..14, forward 3: 14..15
TEST(ThreeLayers, WfbpOfEquation7) { expect("wfbp-eq7", {{10, 9, 5}, {11, 13, 8}, 15}); }

// Pushes as with WFBP, pulled as they are pushed.
// forward 1: 10..11, forward 2: 11..12, forward 3: 12..13
TEST(ThreeLayers, MercuryWithoutPreemption) {
  expect("mercury-fifo", {{10, 9, 5}, {10, 9, 5}, 13});
}

// push 3: 2..4, push 2: 4..5, push 1: 5..6, push 2: 6..9, push 3: 9..10; pulled as they are pushed.
// forward 1: 6..7, forward 2: 9..10, forward 3: 10..11
TEST(ThreeLayers, Mercury) {
  expect("mercury", {{6, 9, 10}, {6, 9, 10}, 11});
  EXPECT_EQ(optimum_s(kChain, kRates), 11);
}

// Half the downlink: all of it is busy from 2 on, for 16 s.
// pull 3: 2..4 (1 kB), pull 2: 4..5 (half a kB), pull 1: 5..7, pull 2: 7..14, pull 3: 14..18
// forward 1: 7..8, forward 2: 14..15, forward 3: 18..19
TEST(ThreeLayers, MercuryOverASlowDownlink) {
  expect("mercury", {{6, 9, 10}, {7, 14, 18}, 19}, {1000, 500});
}

// A fast downlink waits for the uplink and changes nothing; a slow uplink does, whatever the other.
// push 3: 2..4 (1 kB), push 2: 4..5, push 1: 5..7, push 2: 7..14, push 3: 14..18
TEST(ThreeLayers, MercuryOverASlowUplink) {
  expect("mercury", {{6, 9, 10}, {6, 9, 10}, 11}, {1000, 4000});
  expect("mercury", {{7, 14, 18}, {7, 14, 18}, 19}, {500, 1000});
}

// Stop-and-wait, no start-up: Mercury's pushes, each partition pulled in the second after.
// forward 1: 7..8, forward 2: 10..11, forward 3: 11..12
TEST(ThreeLayers, Partitions) {
  expect("bytescheduler:partition=1KB,credit=1KB,startup=0", {{6, 9, 10}, {7, 10, 11}, 12});
}

// Half a second before each partition:
//   3.1: 2.5..3.5   3.2: 4..5   (at 5 both 1 and 2 are ready)   1: 5.5..6.5
//   2.1: 7..8   2.2: 8.5..9.5   2.3: 10..11   2.4: 11.5..12.5   3.3: 13..14
// forward 1: 7.5..8.5, forward 2: 13.5..14.5, forward 3: 15..16
TEST(ThreeLayers, PartitionsWithStartUp) {
  expect("bytescheduler:partition=1KB,credit=1KB,startup=500ms",
         {{6.5, 12.5, 14}, {7.5, 13.5, 15}, 16});
  const auto prediction =
      predict(kChain, kRates, policy_of("bytescheduler:partition=1KB,credit=1KB,startup=500ms"));
  EXPECT_EQ(prediction->push_begin_s, 2.5);
  EXPECT_EQ(prediction->push_end_s, 14);
  EXPECT_EQ(prediction->uplink_busy, 8 / 11.5);
}

// Two partitions in flight: start-ups overlap the partition before, and urgent ones wait for it.
//   chosen at    2    2.5  3.5  4.5  5.5  6.5  7.5  8.5
//   partition    3.1  3.2  3.3  2.1  1    2.2  2.3  2.4
//   sent until   3.5  4.5  5.5  6.5  7.5  8.5  9.5  10.5
// forward 1: 8.5..9.5, forward 2: 11.5..12.5, forward 3: 12.5..13.5
TEST(ThreeLayers, PartitionsWithCredit) {
  expect("bytescheduler:partition=1KB,credit=2KB,startup=500ms",
         {{7.5, 10.5, 5.5}, {8.5, 11.5, 6.5}, 13.5});
}

// The figure's claim.
TEST(ThreeLayers, ComeInTheOrderOfFigure2) {
  const auto iteration_s = [](const char* policy) {
    return predict(kChain, kRates, policy_of(policy))->iteration_s;
  };
  const double partitions = iteration_s("bytescheduler:partition=1KB,credit=1KB,startup=500ms");
  EXPECT_GT(iteration_s("wfbp"), partitions);
  EXPECT_GT(partitions, iteration_s("mercury"));
}

// Section II.A: 540 MB at 10 Gb/s take 0.864 s to push and pull.
TEST(Units, ArePapers) {
  const Rates rates = rates_of({1, 1, 10e9, 10e9, 10e9, 10e9});
  const Chain chain = {layer_of(0, 0, 540'000'000, 0)};
  EXPECT_DOUBLE_EQ(predict(chain, rates, policy_of("wfbp"))->iteration_s, 0.864);
  EXPECT_DOUBLE_EQ(predict(chain, rates, policy_of("mercury"))->iteration_s, 0.432);
}

TEST(Units, TheSlowestOfTheFourLinksDecides) {
  const Rates equal = rates_of({4, 4, 10e9, 8e9, 9e9, 20e9});
  EXPECT_DOUBLE_EQ(equal.push, 10e9 / 8);
  EXPECT_DOUBLE_EQ(equal.pull, 8e9 / 8);
  const Rates few_servers = rates_of({8, 2, 10e9, 10e9, 40e9, 20e9});
  EXPECT_DOUBLE_EQ(few_servers.push, 5e9 / 8);
  EXPECT_DOUBLE_EQ(few_servers.pull, 10e9 / 8);
}

TEST(Predict, RefusesWhatHasNoMeaning) {
  const auto refusal = [](const Chain& chain, Rates rates, const Policy& policy) {
    const Result<Prediction> prediction = predict(chain, rates, policy);
    return prediction ? std::string("accepted") : prediction.error().message;
  };
  const Policy mercury = policy_of("mercury");
  EXPECT_EQ(refusal({}, kRates, mercury), "a chain of at least one layer is needed");
  EXPECT_EQ(refusal(kChain, {0, 1}, mercury), "rates above zero are needed");
  EXPECT_EQ(refusal(kChain, {1, -1}, mercury), "rates above zero are needed");
  EXPECT_EQ(refusal(kChain, kRates, Policy{}), "no policy '' of this release");
  const Chain huge = {layer_of(1, 1, 10'000'001'000, 0)};
  EXPECT_EQ(refusal(huge, kRates, policy_of("p3:partition=1KB,credit=1KB")),
            "10000001 partitions, more than 10000000: make them larger");
}

}  // namespace
}  // namespace mercury::model
