// Which source port has its turn, and which is left out.
#include "transport/flow/port_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mercury {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kFirst = 1'000;  // packet number

// Passes of ten packets, a millisecond each; from dead ports nothing arrives.
struct Turns {
  explicit Turns(uint32_t ports, uint64_t begin = kFirst) : turns(ports, begin), next(begin) {}
  // The port from which they leave.
  uint32_t pass(const std::vector<uint32_t>& dead = {}, uint32_t packets = 10) {
    const uint32_t port = turns.current();
    const bool lost = std::ranges::find(dead, port) != dead.end();
    for (uint32_t i = 0; i < packets; ++i, ++next) {
      if (!lost) turns.on_arrived(next);
      if (lost && turns.on_lost(next, now_ns)) left_out.push_back(port);
    }
    now_ns += kMs;
    turns.end_pass(next, now_ns);
    return port;
  }
  // How often each of `ports` has its turn in so many passes.
  std::vector<uint32_t> passes(uint32_t count, uint32_t ports,
                               const std::vector<uint32_t>& dead = {}) {
    std::vector<uint32_t> had(ports);
    for (uint32_t i = 0; i < count; ++i) ++had[pass(dead)];
    return had;
  }
  PortTurns turns;
  uint64_t next;
  uint64_t now_ns = kMs;
  std::vector<uint32_t> left_out;
};

using Had = std::vector<uint32_t>;

TEST(PortTurns, GoRoundByRunsOfWholePasses) {
  Turns lab(3);
  EXPECT_EQ(lab.passes(30, 3), (Had{10, 10, 10}));
  EXPECT_EQ(lab.pass({}, 7), 0U);
  EXPECT_EQ(lab.pass({}, 1), 0U) << "seven are less than a run";
  EXPECT_EQ(lab.pass({}, 100), 1U);
  EXPECT_EQ(lab.pass(), 2U);
  Turns one(1);
  EXPECT_EQ(one.passes(5, 1, {0}), (Had{5}));
  EXPECT_TRUE(one.left_out.empty()) << "nothing arrives from others";
}

TEST(PortTurns, APortFromWhichNothingArrivesIsLeftOut) {
  for (const uint32_t dead : {0U, 1U, 3U}) {
    Turns lab(4);
    Had had = lab.passes(100, 4, {dead});
    EXPECT_EQ(had[dead], PortTurns::kLeastTurns);
    EXPECT_EQ(lab.left_out, Had{dead});
  }
  Turns all(4);
  EXPECT_EQ(all.passes(400, 4, {0, 1, 2, 3}), (Had{100, 100, 100, 100})) << "nothing to choose";
  EXPECT_TRUE(all.left_out.empty());
}

TEST(PortTurns, OneThatIsLeftOutIsAskedAgainEverMoreRarely) {
  Turns lab(4);
  std::vector<uint64_t> asked_ns;
  while (lab.now_ns < 70'000 * kMs) {
    const uint64_t now_ns = lab.now_ns;
    if (lab.pass({2}) == 2 && !lab.left_out.empty()) asked_ns.push_back(now_ns);
  }
  asked_ns.erase(asked_ns.begin());  // the turn in which it was left out
  ASSERT_GE(asked_ns.size(), 6U);
  const std::vector<uint64_t> pauses{2, 4, 8, 16, 16};
  for (size_t i = 0; i < pauses.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(asked_ns[i + 1] - asked_ns[i]) / 1e9,
                static_cast<double>(pauses[i]), 0.01);
  }
  EXPECT_EQ(lab.left_out, Had{2}) << "said once";
  while (lab.pass() != 2) continue;  // it arrives
  EXPECT_EQ(lab.passes(40, 4), (Had{10, 10, 10, 10}));
  lab.passes(40, 4, {2});
  EXPECT_EQ(lab.left_out, (Had{2, 2}));
  const uint64_t from_ns = lab.now_ns;
  while (lab.pass({2}) != 2) continue;
  EXPECT_LE(lab.now_ns - from_ns, PortTurns::kFirstPauseNs + 10 * kMs) << "from the start again";
}

TEST(PortTurns, OneThatArrivesNowAndThenStays) {
  Turns lab(4);
  for (int i = 0; i < 50; ++i) {
    lab.passes(12, 4, {1});  // three turns of it
    while (lab.pass() != 1) continue;
  }
  EXPECT_TRUE(lab.left_out.empty());
}

TEST(PortTurns, OneBurstOfLossesIsNotEnough) {
  Turns lab(4);
  lab.passes(4, 4);
  lab.pass({0}, 1'000);
  lab.passes(100, 4);
  EXPECT_TRUE(lab.left_out.empty());
}

// What arrived late after all says that others may have, too.
TEST(PortTurns, ForgivenLossesAreForgotten) {
  Turns lab(4);
  lab.passes(12, 4, {1});
  lab.turns.forgive();
  lab.passes(12, 4, {1});
  EXPECT_TRUE(lab.left_out.empty());
  lab.passes(12, 4, {1});
  EXPECT_EQ(lab.left_out, Had{1});
  lab.turns.forgive();
  EXPECT_EQ(lab.passes(12, 4)[1], 3U) << "it is back";
}

// In any order, as paths differ, and however long ago.
TEST(PortTurns, KnowFromWhereWhatIsAcknowledgedLateLeft) {
  constexpr uint32_t kPasses = 4 * PortTurns::kTurns;
  PortTurns turns(4, kFirst);
  uint64_t next = kFirst;
  for (uint32_t i = 0; i < kPasses; ++i) {
    next += 10;
    turns.end_pass(next, kMs);
  }
  EXPECT_FALSE(turns.on_lost(kFirst - 1, kMs));
  EXPECT_FALSE(turns.on_lost(kFirst, kMs));
  uint32_t left_out = 0;
  for (uint64_t number = next; number-- > kFirst;) {
    if ((number - kFirst) / 10 % 4 == 3) {
      left_out += turns.on_lost(number, kMs) ? 1 : 0;
    } else {
      turns.on_arrived(number);
    }
  }
  EXPECT_EQ(left_out, 1U);
}

}  // namespace
}  // namespace mercury
