// Which source port has its turn, and which is left out.
#include "transport/flow/port_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/base/random.h"

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
  // The same where of each `every` packets from one port one is lost.
  uint32_t lossy_pass(uint32_t lossy, uint32_t every, uint32_t packets = 10) {
    const uint32_t port = turns.current();
    for (uint32_t i = 0; i < packets; ++i, ++next) {
      if (port == lossy && ++from_lossy % every == 0) {
        if (turns.on_lost(next, now_ns)) left_out.push_back(port);
      } else {
        turns.on_arrived(next);
      }
    }
    now_ns += kMs;
    turns.end_pass(next, now_ns);
    note_left_out(lossy);
    return port;
  }
  // What was left out at the end of a pass, which is that one.
  void note_left_out(uint32_t lossy) {
    if (turns.take_left_out()) left_out.push_back(lossy);
  }
  // All packets from `first` on, or so many, are acknowledged.
  void acked(uint64_t first, uint64_t count = ~uint64_t{0}) {
    const wire::AckRange range{first, first + std::min(count, next - first) - 1};
    turns.on_acked({&range, 1});
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
  uint32_t from_lossy = 0;
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

// Of its datagrams the rest arrive.
TEST(PortTurns, OneThatLosesMarkedlyMoreThanTheOthersIsLeftOut) {
  for (const uint32_t ports : {2U, 4U, 16U}) {
    for (const uint32_t every : {2U, 3U, 7U}) {
      SCOPED_TRACE(std::to_string(ports) + " ports, one in " + std::to_string(every));
      Turns lab(ports);
      for (uint32_t i = 0; i < 2 * ports * PortTurns::kRemembered && lab.left_out.empty(); ++i) {
        lab.lossy_pass(1, every);
      }
      EXPECT_EQ(lab.left_out, Had{1});
      for (uint32_t i = 0; i < 100; ++i) EXPECT_NE(lab.lossy_pass(1, every), 1U);
    }
  }
}

TEST(PortTurns, OneThatLosesLittleMoreStays) {
  Turns lab(4);
  for (int i = 0; i < 20'000; ++i) lab.lossy_pass(1, 9);
  EXPECT_TRUE(lab.left_out.empty());
  EXPECT_EQ(lab.passes(400, 4), (Had{100, 100, 100, 100}));
}

// Chance, many times; and of a run that finds a queue full all is lost.
TEST(PortTurns, WhatAllLoseLeavesNoneOut) {
  for (const bool by_turns : {false, true}) {
    Turns lab(16);
    uint64_t random = 7;
    for (int i = 0; i < 100'000; ++i) {
      const uint32_t port = lab.turns.current();
      const bool lost_turn = split_mix(random) % 40 == 0;
      for (uint32_t packet = 0; packet < 10; ++packet, ++lab.next) {
        if (by_turns ? lost_turn : split_mix(random) % 4 == 0) {
          if (lab.turns.on_lost(lab.next, lab.now_ns)) lab.left_out.push_back(port);
        } else {
          lab.turns.on_arrived(lab.next);
        }
      }
      lab.turns.end_pass(lab.next, lab.now_ns);
      ASSERT_FALSE(lab.turns.take_left_out()) << i;
    }
    EXPECT_TRUE(lab.left_out.empty());
  }
}

// Each time it is judged anew.
TEST(PortTurns, ALossyOneComesBackEverMoreRarelyUntilItLosesNoMore) {
  Turns lab(4);
  std::vector<uint64_t> at_ns;
  while (lab.now_ns < 80'000 * kMs) {
    const size_t before = lab.left_out.size();
    lab.lossy_pass(2, 3);
    if (lab.left_out.size() > before) at_ns.push_back(lab.now_ns);
  }
  const std::vector<double> pauses{1, 2, 4, 8, 16, 16};
  ASSERT_GT(at_ns.size(), pauses.size());
  for (size_t i = 0; i < pauses.size(); ++i) {
    const double apart = static_cast<double>(at_ns[i + 1] - at_ns[i]) / 1e9;
    EXPECT_GT(apart, pauses[i]);
    EXPECT_LT(apart, pauses[i] + 1) << "and until it is judged";
  }
  const size_t before = lab.left_out.size();
  for (uint32_t i = 0; i < 8 * PortTurns::kRemembered + 16'000; ++i) lab.pass();
  EXPECT_EQ(lab.left_out.size(), before);
  while (lab.left_out.size() == before) lab.lossy_pass(2, 3);
  const uint64_t from_ns = lab.now_ns;
  while (lab.lossy_pass(2, 3) != 2) continue;
  EXPECT_LE(lab.now_ns - from_ns, PortTurns::kFirstPauseNs + 10 * kMs) << "from the start again";
}

TEST(PortTurns, OneThatArrivesNowAndThenIsNoDeadOne) {
  Turns lab(4);
  for (int i = 0; i < 10; ++i) {
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

// Declared lost, and acknowledged after all: what had been said of it is taken back.
TEST(PortTurns, WhatArrivesAfterAllWasNotLost) {
  Turns lab(4);
  for (int i = 0; i < 3'000; ++i) {
    const uint64_t from = lab.next;
    if (lab.pass({1}) == 1) lab.acked(from);
  }
  EXPECT_TRUE(lab.left_out.empty());
  lab.passes(12, 4, {1});
  const uint64_t from = lab.next;
  lab.passes(4, 4, {1});
  EXPECT_EQ(lab.left_out, Had{1});
  lab.acked(from);
  EXPECT_EQ(lab.passes(12, 4)[1], 3U) << "it is back";
}

// Nor has it to be acknowledged at once, or alone.
TEST(PortTurns, NorWasWhatArrivesManyTurnsLater) {
  Turns lab(16);
  std::vector<uint64_t> begins;
  for (int i = 0; i < 10'000; ++i) {
    begins.push_back(lab.next);
    lab.pass(i % 20 < 10 ? Had{3} : Had{});
    if (begins.size() > 200) lab.acked(begins[begins.size() - 200], 100);
  }
  EXPECT_TRUE(lab.left_out.empty());
}

// One path loses a part, others hold up what they carry: all of it, or again and again one.
TEST(PortTurns, WhatOnlyCameLateFromOthersDoesNotHideOneThatLosesMuch) {
  for (const uint32_t every : {2U, 3U, 7U}) {
    SCOPED_TRACE(every);
    Turns lab(4);
    for (uint32_t i = 0; i < 8 * PortTurns::kRemembered && lab.left_out.empty(); ++i) {
      const uint64_t from = lab.next;
      if (lab.turns.current() == 1) {
        lab.lossy_pass(1, every);
        continue;
      }
      lab.pass(i % 3 == 0 ? Had{0, 2} : Had{});
      lab.note_left_out(1);
      lab.acked(from);
    }
    EXPECT_EQ(lab.left_out, Had{1});
  }
}

// Its own, too: half of what is lost is only late.
TEST(PortTurns, NorDoesWhatOnlyCameLateFromItself) {
  Turns lab(4);
  for (uint32_t i = 0; i < 8 * PortTurns::kRemembered && lab.left_out.empty(); ++i) {
    const uint64_t from = lab.next;
    if (lab.lossy_pass(1, 2) == 1) lab.acked(from, 5);
  }
  EXPECT_EQ(lab.left_out, Had{1});
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
