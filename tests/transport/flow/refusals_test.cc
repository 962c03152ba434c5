// What is said of refused datagrams, and how long their sender waits.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "tests/seeds.h"
#include "transport/flow/ack_sender.h"
#include "transport/flow/refusal_pause.h"

namespace mercury {
namespace {

constexpr uint64_t kUs = 1'000;

bool names(const wire::AckRange* ranges, size_t count, uint64_t number) {
  for (size_t i = 0; i < count; ++i) {
    if (ranges[i].first <= number && number <= ranges[i].last) return true;
  }
  return false;
}

// Numbers come in any order, are lost, taken and refused, and not each ACK arrives. Whatever ACK
// does, what is refused is never acknowledged without being named.
TEST(Refusals, NoAckLetsWhatWasRefusedPassForTaken) {
  for_each_seed(200, [](uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    AckSender sender(8, 500 * kUs);
    std::set<uint64_t> refused, told;
    const uint32_t odds = 1 + random() % 8;  // one in so many is refused
    uint64_t next = 0;
    for (int i = 0; i < 3'000; ++i) {
      const uint64_t number = next - random() % std::min<uint64_t>(next + 1, 4);
      next += 1 + random() % 2;
      if (!sender.is_new(number)) continue;
      if (random() % odds != 0) {
        sender.on_received(number, false, 0, false);
      } else if (sender.on_refused(number, 0, false)) {
        refused.insert(number);
      }
      if (random() % 4 != 0) continue;
      wire::Ack ack;
      wire::Header header;
      sender.report(ack, header, 0);
      ASSERT_GE(ack.count, 1U);
      const bool arrives = random() % 2 == 0;
      for (const uint64_t each : refused) {
        const bool named = names(ack.refused_ranges, ack.refused, each);
        if (named && arrives) told.insert(each);
        ASSERT_TRUE(named || !names(ack.ranges, ack.count, each)) << each;
      }
    }
    EXPECT_GT(told.size() * 10, refused.size() * 9);
  });
}

TEST(Refusals, MoreGapsThanCanBeSaidAreLeftToBeTakenForLoss) {
  RefusedNumbers refused;
  uint32_t added = 0;
  for (uint64_t number = 0; number < 1'000; number += 2) added += refused.add(number);
  EXPECT_EQ(added, RefusedNumbers::kMaxRanges);
  EXPECT_TRUE(refused.add(1)) << "between two that are said";
  EXPECT_TRUE(refused.add(1'000)) << "two have become one";
  EXPECT_FALSE(refused.add(1'002));
}

TEST(Refusals, WhatWasSaidOftenIsForgottenAndNothingMoreIsSaidOfIt) {
  RefusedNumbers refused;
  std::vector<wire::AckRange> said(RefusedNumbers::kMaxRanges);
  ASSERT_TRUE(refused.add(7));
  uint32_t reports = 0;
  while (refused.report(said, 20) > 0) ++reports;
  EXPECT_GT(reports, 4U);
  EXPECT_EQ(refused.floor(), 8U);
  EXPECT_FALSE(refused.add(6));
  ASSERT_TRUE(refused.add(30));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(refused.report(said, 30), 1U) << "each ACK names 30";
}

TEST(RefusalPause, GetsLongerUntilSomethingIsTaken) {
  RefusalPause pause;
  uint64_t now_ns = 1'000 * kUs;
  EXPECT_FALSE(pause.holding());
  uint64_t last_ns = 0;
  for (int i = 0; i < 20; ++i) {
    pause.on_refused(now_ns);
    now_ns += 50 * kUs;
    pause.on_ack_end(1, 20 * kUs, now_ns);
    ASSERT_TRUE(pause.holding());
    const uint64_t length_ns = pause.until_ns() - now_ns;
    EXPECT_EQ(length_ns,
              i == 0 ? RefusalPause::kLeastNs : std::min(2 * last_ns, RefusalPause::kMostNs));
    last_ns = length_ns;
    now_ns = pause.until_ns();
  }
  pause.on_taken(now_ns);
  pause.on_ack_end(1, 20 * kUs, now_ns + 50 * kUs);
  EXPECT_FALSE(pause.holding());
}

TEST(RefusalPause, WhatLeftBeforeSaysNothingOfTheFirstPause) {
  RefusalPause pause;
  pause.on_refused(10);
  pause.on_ack_end(1, 0, 100);
  const uint64_t until_ns = pause.until_ns();
  pause.on_refused(90);
  pause.on_ack_end(1, 0, 110);
  EXPECT_EQ(pause.until_ns(), until_ns) << "no second pause for one burst";
  pause.on_taken(95);
  pause.on_ack_end(1, 0, 120);
  EXPECT_TRUE(pause.holding()) << "it had room for that before";
}

TEST(RefusalPause, FewRefusalsAmongMuchThatIsTakenHoldNobodyUp) {
  RefusalPause pause;
  for (int i = 0; i < 3; ++i) pause.on_refused(10);
  pause.on_ack_end(7, 0, 100);
  EXPECT_FALSE(pause.holding());
  pause.on_ack_end(0, 0, 110);
  EXPECT_FALSE(pause.holding());
  for (int i = 0; i < 3; ++i) pause.on_refused(10);
  pause.on_ack_end(6, 0, 120);
  EXPECT_TRUE(pause.holding());
}

}  // namespace
}  // namespace mercury
