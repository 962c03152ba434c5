#include "transport/flow/mtu_probe.h"

#include <gtest/gtest.h>

#include "transport/flow/probe_again.h"

namespace mercury {
namespace {

struct Search {
  uint16_t answer = 0;
  int probes = 0;
};

Search run(uint16_t largest, uint32_t path) {
  MtuProbe probe;
  probe.start(largest);
  Search search;
  while (probe.searching()) {
    const uint16_t size = probe.due();
    probe.on_sent();
    ++search.probes;
    if (size <= path) {
      probe.on_acked(size);
    } else {
      probe.on_lost(size, true);
    }
  }
  search.answer = probe.path_payload();
  return search;
}

TEST(MtuProbe, FindsEveryPathWithinTheGranularity) {
  for (uint32_t path = kBasePayloadBytes; path <= 8972; ++path) {
    const Search search = run(8972, path);
    ASSERT_LE(search.answer, path);
    ASSERT_LT(path - search.answer, kProbeGranularityBytes) << path;
    ASSERT_LE(search.probes, 40);
  }
}

TEST(MtuProbe, OneProbeSufficesWhereThePathCarriesTheLargest) {
  const Search search = run(8972, 8972);
  EXPECT_EQ(search.answer, 8972);
  EXPECT_EQ(search.probes, 1);
  EXPECT_EQ(run(UINT16_MAX - 1, UINT16_MAX).answer, UINT16_MAX - 1);
}

TEST(MtuProbe, NeedsNoProbeAtOrBelowTheBase) {
  EXPECT_EQ(run(kBasePayloadBytes, 9000).probes, 0);
  EXPECT_EQ(run(1000, 9000).answer, 1000);
}

TEST(MtuProbe, WhatIsKnownStaysWhereItLooksForMore) {
  MtuProbe probe;
  probe.start(1500);
  for (int i = 0; i < 3; ++i) {
    probe.on_sent();
    probe.on_lost(1500, true);
  }
  const uint16_t first_half = probe.due();
  probe.on_sent();
  probe.on_acked(first_half);
  while (probe.searching()) {
    const uint16_t size = probe.due();
    probe.on_sent();
    probe.on_lost(size, true);
  }
  ASSERT_EQ(probe.path_payload(), first_half);
  probe.on_reported();
  probe.start_above(1500);
  EXPECT_EQ(probe.path_payload(), first_half);
  EXPECT_EQ(probe.due(), 1500);
  probe.on_sent();
  probe.on_acked(1500);
  EXPECT_FALSE(probe.searching());
  EXPECT_TRUE(probe.unreported());
  EXPECT_EQ(probe.path_payload(), 1500);
}

TEST(ProbeAgain, LaterEachTimeThatThePathCarriesNoMore) {
  constexpr uint64_t kFirst = 10;
  ProbeAgain again(kFirst);
  EXPECT_FALSE(again.due(1'000'000)) << "nothing is known";
  uint64_t now = 100;
  for (const uint64_t wait : {10U, 20U, 40U, 80U, 160U, 320U, 640U, 640U, 640U}) {
    again.on_found(1400, 8972, now);
    EXPECT_FALSE(again.due(now + wait - 1)) << wait;
    EXPECT_TRUE(again.due(now + wait)) << wait;
    now += wait;
    again.on_asked();
    EXPECT_FALSE(again.due(now + 1'000'000)) << "it is being asked";
  }
  again.on_found(4000, 8972, now);
  EXPECT_TRUE(again.due(now + kFirst)) << "it carries more than it did";
  again.on_found(4000, 8972, now);
  EXPECT_FALSE(again.due(now + kFirst));
  again.begin();
  EXPECT_FALSE(again.due(now + 1'000'000));
  again.on_found(1400, 8972, now);
  EXPECT_TRUE(again.due(now + kFirst)) << "another path";
  again.on_found(8972, 8972, now);
  EXPECT_FALSE(again.due(now + 1'000'000)) << "it carries all";
}

TEST(MtuProbe, SilenceIsNoVerdict) {
  MtuProbe probe;
  probe.start(8972);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(probe.due(), 8972);
    probe.on_sent();
    ASSERT_EQ(probe.due(), 0);
    probe.on_lost(8972, false);
  }
}

TEST(MtuProbe, BelievesAProbeThatArrivesAfterItWasGivenUp) {
  MtuProbe probe;
  probe.start(8972);
  for (int i = 0; i < 3; ++i) {
    probe.on_sent();
    probe.on_lost(8972, true);
  }
  EXPECT_LT(probe.due(), 8972);
  probe.on_acked(8972);
  EXPECT_FALSE(probe.searching());
  EXPECT_EQ(probe.path_payload(), 8972);
}

TEST(MtuProbe, EachProbeHasEnoughBehindItToProveItsLoss) {
  MtuProbe probe;
  probe.start(8972);
  EXPECT_FALSE(probe.escort_due());
  for (int i = 0; i < 2; ++i) {
    probe.on_sent();
    int escorts = 0;
    for (; probe.escort_due(); ++escorts) probe.on_escort_sent();
    EXPECT_EQ(escorts, 3);
    probe.on_lost(8972, true);
  }
}

TEST(MtuProbe, IsReportedOnceWhenItEnds) {
  MtuProbe probe;
  probe.start(8972);
  EXPECT_FALSE(probe.unreported());
  probe.on_sent();
  probe.on_acked(8972);
  EXPECT_TRUE(probe.unreported());
  probe.on_reported();
  EXPECT_FALSE(probe.unreported());
  probe.start(1000);  // nothing to search
  EXPECT_TRUE(probe.unreported());
}

}  // namespace
}  // namespace mercury
