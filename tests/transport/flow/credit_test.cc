#include "transport/flow/credit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/transport/flow/credit_fixture.h"
#include "transport/base/random.h"
#include "transport/wire/header.h"

namespace mercury {
namespace {

TEST_F(CreditTest, OneSenderAndALinkOfUnknownRateAreUnbounded) {
  job(0, 1);
  epoch(senders(0, 1, 3));
  EXPECT_EQ(told[0].first, 0);
  EXPECT_EQ(told[0].second, 0);
  CreditAllocator unknown(0, kQueue, kDelayTarget);
  unknown.add_job(JobSlot(0), {8, 8, 1});
  unknown.add_session(SessionSlot(0), JobSlot(0));
  EXPECT_EQ(unknown.idle_units(JobSlot(0)), 0);
}

// What it sends does not come over the link: it is not bounded, and takes nothing from the others.
TEST_F(CreditTest, APeerOnThisHostIsNoSender) {
  credit.add_job(JobSlot(0), {3, 3, 1});
  credit.add_session(SessionSlot(0), JobSlot(0), true);
  credit.add_session(SessionSlot(1), JobSlot(0));
  credit.add_session(SessionSlot(2), JobSlot(0));
  divide();
  EXPECT_EQ(credit.expected_senders(), 2U);
  active = senders(1, 2, 5);
  epoch(active, 100);
  const uint64_t before = grant(1);
  for (uint32_t i = 0; i < 10'000; ++i) {
    credit.on_datagram(SessionSlot(0), 1, kFrameBytes, now_ns);  // the most urgent
  }
  epoch(active, 10);
  EXPECT_EQ(told[0], (std::pair<uint16_t, uint16_t>(0, 0)));
  EXPECT_EQ(credit.active_senders(), 2U);
  EXPECT_EQ(grant(1), before);
  EXPECT_NEAR(static_cast<double>(grant(1)), static_cast<double>(grant(2)), 1024);
  credit.remove_session(SessionSlot(0));
  EXPECT_EQ(credit.expected_senders(), 3U);
}

TEST_F(CreditTest, BesideAPeerOnThisHostOneSenderIsUnbounded) {
  credit.add_session(SessionSlot(0), JobSlot(0), true);
  credit.add_session(SessionSlot(1), JobSlot(0));
  credit.add_job(JobSlot(0), {2, 2, 1});  // known behind its sessions
  epoch({{0, 1}, {1, 5}}, 100);
  EXPECT_EQ(told[1], (std::pair<uint16_t, uint16_t>(0, 0)));
}

// What fills the link says what it carries; the senders have that on their way, a quarter more, by
// which a faster link would be found, and a queue.
TEST_F(CreditTest, ARateThatNobodyToldIsWhatArrives) {
  marks = false;
  receivers = 1;  // so that the queue does not grow
  credit = CreditAllocator(0, kQueue, kDelayTarget);
  job(0, 8);
  EXPECT_EQ(told[0].first, 0);
  for (uint32_t i = 0; i < 8; ++i) active[i] = 5;
  epoch(active, 100);
  const auto path = static_cast<double>(kRate) / 1e9 * kPathRtt;
  EXPECT_NEAR(static_cast<double>(credit.budget_bytes()), 1.25 * path + kQueue, 0.2 * path);
  EXPECT_NEAR(static_cast<double>(granted()), 1.25 * path + kQueue, 0.2 * path);
  // A link that became slower is believed, and one that is told again, too.
  epoch(active, 20'000, {}, 0.1);
  EXPECT_NEAR(static_cast<double>(credit.budget_bytes()), 0.125 * path + kQueue, 0.2 * path);
  epoch(active, 100);
  EXPECT_NEAR(static_cast<double>(credit.budget_bytes()), 1.25 * path + kQueue, 0.2 * path);
  credit.set_rate(kRate);
  divide();
  EXPECT_NEAR(static_cast<double>(credit.budget_bytes()), path + kQueue, 1);
  credit.set_rate(0);
  divide();
  EXPECT_EQ(told[5], std::pair(uint16_t{0}, uint16_t{0}));
}

TEST_F(CreditTest, AnotherRateOfTheLinkDividesAnew) {
  send_for_long(8);
  credit.set_rate(kRate / 10);
  EXPECT_TRUE(credit.due(now_ns));
  EXPECT_EQ(credit.active_senders(), 0U);
  active.clear();
  divide();
  // Each is told, and has a tenth for its path, and as much as before for its queue.
  const auto path = static_cast<double>(kRate) / 1e9 * kPathRtt;
  const auto now = 8.0 * told[5].first * wire::kGrantUnitBytes;
  EXPECT_NEAR(now, path / 10 + kQueue, 8 * wire::kGrantUnitBytes);
  credit.set_rate(0);
  divide();
  EXPECT_EQ(told[5], std::pair(uint16_t{0}, uint16_t{0}));  // not bounded
}

// Beside what others send to engines of the same link.
TEST_F(CreditTest, APartOfTheLinkIsDividedAndAnotherIsToldToThoseThatAreSilent) {
  marks = false;
  job(0, 8);
  for (uint32_t i = 0; i < 4; ++i) active[i] = 5;
  epoch(active, 100);
  const uint64_t before = granted();
  credit.set_part(kRate / 2, kRate / 8);
  divide();
  const auto path = static_cast<double>(kRate) / 1e9 * kPathRtt;
  EXPECT_NEAR(static_cast<double>(before - granted()), path / 2, 8 * wire::kGrantUnitBytes);
  EXPECT_NEAR(8.0 * told[5].second * wire::kGrantUnitBytes, path / 8 + kQueue,
              8 * wire::kGrantUnitBytes);
  EXPECT_EQ(told[5].first, told[5].second) << "it has sent nothing for a while";
}

// Whether peers send is what others that share the link want to know.
TEST_F(CreditTest, ItHearsPeersWhileTheyMaySendWhatTheyWereGranted) {
  job(0, 4);
  EXPECT_EQ(credit.hears_until_ns(now_ns), 0U);
  for (uint32_t i = 0; i < 4; ++i) active[i] = 5;
  epoch(active, 100);
  const uint64_t until_ns = credit.hears_until_ns(now_ns);
  EXPECT_EQ(until_ns, now_ns + 4'000'000) << "a sender's pause, in which it keeps its grant";
  now_ns += 1'000'000'000;
  divide();
  EXPECT_EQ(credit.hears_until_ns(now_ns), 0U);
}

// It has no bounds, and counts only where the link is shared.
TEST_F(CreditTest, ASingleSenderCountsWhereTheLinkIsShared) {
  job(0, 1);
  const auto send = [this] {
    credit.on_datagram(SessionSlot(0), 5, kFrameBytes, now_ns);
    now_ns += kEpoch;
    divide();
    return credit.hears_until_ns(now_ns) != 0;
  };
  EXPECT_FALSE(send());
  credit.set_part(kRate, kRate);
  EXPECT_TRUE(send());
  EXPECT_EQ(told[0].first, 0) << "it is not bounded";
  now_ns += 100'000'000;
  divide();
  EXPECT_EQ(credit.hears_until_ns(now_ns), 0U);
  credit.set_rate(0);
  EXPECT_FALSE(send()) << "the rate is not known, so nothing is divided by it";
}

// What comes from this host does not come over the link.
TEST_F(CreditTest, APeerOfThisHostIsNotHeardOverTheLink) {
  credit.set_part(kRate, kRate);
  credit.add_job(JobSlot(0), {1, 1, 1});
  credit.add_session(SessionSlot(0), JobSlot(0), true);
  for (int i = 0; i < 100; ++i) {
    credit.on_datagram(SessionSlot(0), 5, kFrameBytes, now_ns);
    now_ns += kEpoch;
    divide();
    ASSERT_EQ(credit.hears_until_ns(now_ns), 0U);
  }
}

TEST_F(CreditTest, WhoBeginsHasAnEqualShareBeforeItIsHeardOf) {
  job(0, 8);
  const uint64_t each = told[5].second * wire::kGrantUnitBytes;
  EXPECT_NEAR(static_cast<double>(each), static_cast<double>(credit.budget_bytes()) / 8, 8000);
  EXPECT_EQ(told[5].first, told[5].second);
}

TEST_F(CreditTest, UrgencyCountsUnlessAJobDoesNotHeedIt) {
  job(0, 4);
  active = {{0, 1}, {1, 9}, {2, 9}, {3, 9}};
  epoch(active, 200);
  EXPECT_GT(grant(0), 2 * grant(1));
  credit.heed_urgency(JobSlot(0), false);
  epoch(active, 200);
  EXPECT_LT(grant(0), 2 * grant(1));
  EXPECT_NEAR(static_cast<double>(grant(1)), static_cast<double>(grant(3)),
              0.1 * static_cast<double>(grant(3)));
  credit.heed_urgency(JobSlot(0), true);
  epoch(active, 200);
  EXPECT_GT(grant(0), 2 * grant(1));
}

// 256 of them: 7.2 us a frame, 1.8 ms for all.
TEST_F(CreditTest, AnIdleGrantBelowAFrameIsAnEqualShareOfTheRate) {
  job(0, 256);
  const double ns = 1e9 * kFrameBytes * 256 / kRate;
  const double told_ns = static_cast<double>(wire::kIdleGrantNs) * kFrameBytes /
                         (told[5].second * wire::kGrantUnitBytes);
  EXPECT_NEAR(told_ns, ns, ns / 8);
}

TEST_F(CreditTest, WhereAllSendBelowAFrameTheRateIsTheirGrant) {
  job(0, 64);
  epoch(senders(0, 64, 5), 3);
  EXPECT_EQ(grant(0), credit.budget_bytes() / 64);
  EXPECT_EQ(told[0].first, told[0].second);
  epoch(senders(0, 32, 5), 200);  // the others' rate is free
  EXPECT_EQ(credit.active_senders(), 32U);
  EXPECT_GT(told[0].first, told[0].second);
  EXPECT_EQ(told[0].first, credit.budget_bytes() / 32 / wire::kGrantUnitBytes);
}

TEST_F(CreditTest, ThoseThatSendShareAllOfTheBudget) {
  job(0, 8);
  active = senders(0, 8, 5);
  epoch(active, 3);
  EXPECT_EQ(credit.budget_bytes(), kQueue + kRate / 1'000'000 * kPathRtt / 1'000);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(grant(i), credit.budget_bytes() / 8);
  active = senders(0, 1, 5);
  epoch(active, 200);
  EXPECT_EQ(credit.active_senders(), 1U);
  EXPECT_EQ(grant(0), credit.budget_bytes());
}

TEST_F(CreditTest, TheMostUrgentHaveMostTheOldestATenthAndNobodyNothing) {
  job(0, 8);
  active = senders(0, 8, 9);
  active[3] = 1;
  epoch(active, 200);
  const uint64_t budget = credit.budget_bytes();
  EXPECT_GT(grant(3), budget * 7 / 10);
  uint64_t oldest = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_GE(grant(i), budget / 64 - 1) << i;
    if (i != 3) oldest = std::max(oldest, grant(i));
  }
  EXPECT_GE(oldest, budget / 10);
}

TEST_F(CreditTest, WhoWaitsLongestIsTheOldest) {
  job(0, 4);
  active = {{0, 1}, {1, 1}, {2, 9}, {3, 1}};
  epoch(active, 100);
  active[1] = 9;
  epoch(active, 100);
  EXPECT_GT(grant(2), grant(1) * 3 / 2);
  EXPECT_GT(grant(0), 2 * grant(2));
}

TEST_F(CreditTest, JobsShareByWeightWhateverTheirPriorities) {
  job(0, 4);
  job(1, 12);
  job(2, 4, 2);
  active = senders(0, 4, 9);
  for (const auto& [session, priority] : senders(4, 12, 1)) active[session] = priority;
  for (const auto& [session, priority] : senders(16, 4, 5)) active[session] = priority;
  epoch(active, 5);
  std::map<uint16_t, double> sums;
  for (const auto& [session, number] : jobs) sums[number] += static_cast<double>(grant(session));
  const auto budget = static_cast<double>(credit.budget_bytes());
  EXPECT_NEAR(sums[0], budget / 4, 100);
  EXPECT_NEAR(sums[1], budget / 4, 100);
  EXPECT_NEAR(sums[2], budget / 2, 100);
}

TEST_F(CreditTest, WhatGrowsWasFreeARoundTripBefore) {
  job(0, 2);
  active = {{0, 1}, {1, 9}};
  epoch(active, 100);
  const uint64_t much = grant(0);
  EXPECT_GT(much, credit.budget_bytes() * 3 / 4);
  active = {{0, 9}, {1, 1}};
  epoch(active);
  EXPECT_LT(grant(0), much);
  EXPECT_LE(grant(1), credit.budget_bytes() - much + 1);
  epoch(active, 100);
  EXPECT_EQ(grant(1), much);
}

// Its own link is divided between four receivers.
TEST_F(CreditTest, WhatAnUrgentSenderCannotUseIsTheOthers) {
  job(0, 4);
  active = senders(0, 4, 9);
  active[2] = 1;
  epoch(active, 200, {{2, 0.25}});
  const uint64_t budget = credit.budget_bytes();
  EXPECT_GE(grant(2), budget / 4);
  EXPECT_LT(grant(2), budget / 3);
  for (const uint32_t other : {0U, 1U, 3U}) {
    EXPECT_GT(grant(other), budget / 6) << other;
    EXPECT_EQ(grant(other), grant(0)) << "who is oldest has a tenth, and they have more";
  }
  epoch(active, 200);
  EXPECT_GT(grant(2), budget * 7 / 10);
}

TEST_F(CreditTest, TheQueueGrowsUntilAFrameIsMarkedOrMissing) {
  marks = false;
  job(0, 4);
  active = senders(0, 4, 5);
  epoch(active);
  const uint64_t least = credit.budget_bytes();
  uint64_t before = least;
  for (int i = 0; i < 2000; ++i) {
    epoch(active);
    EXPECT_LE(credit.budget_bytes() - before, (before - least + kQueue) / 8);
    before = credit.budget_bytes();
  }
  EXPECT_EQ(credit.budget_bytes(), least + 7 * kQueue);  // twice for each
  const uint64_t idle = told[0].second * wire::kGrantUnitBytes;
  EXPECT_LE(4 * idle, least) << "of those that begin nothing is known";
  ++signs;
  epoch(active, 2);
  EXPECT_EQ(credit.budget_bytes(), least);
  epoch(active, static_cast<int>(900'000'000 / kEpoch));
  EXPECT_EQ(credit.budget_bytes(), least);
  epoch(active, static_cast<int>(200'000'000 / kEpoch));
  EXPECT_EQ(credit.budget_bytes(), least + 7 * kQueue);
}

TEST_F(CreditTest, APathThatCannotHoldMoreIsTriedMoreAndMoreSeldom) {
  marks = false;
  job(0, 4);
  active = senders(0, 4, 5);
  epoch(active);
  const uint64_t least = credit.budget_bytes();
  std::vector<uint64_t> tries_ns;
  while (now_ns < 20'000'000'000) {
    epoch(active);
    if (credit.budget_bytes() <= least) continue;
    tries_ns.push_back(now_ns);
    ++signs;
    epoch(active, 2);
  }
  ASSERT_GE(tries_ns.size(), 4U);
  EXPECT_LE(tries_ns.size(), 6U);
  for (size_t i = 2; i < tries_ns.size(); ++i) {
    EXPECT_GT(tries_ns[i] - tries_ns[i - 1], (tries_ns[i - 1] - tries_ns[i - 2]) * 19 / 10) << i;
  }
}

TEST_F(CreditTest, AQueueThatOthersFillIsLeftToThem) {
  send_for_long(4);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + 4 * kFrameBytes);
  marks = false;
  epoch(active, 1000);
  EXPECT_GE(credit.budget_bytes(), kQueue);
}

// Else receivers that measured with frames of different sizes have different budgets: with eight
// senders one has a frame of each in flight, and the others two.
TEST_F(CreditTest, ARoundTripOfSmallFramesIsNotTakenForOneOfLargeFrames) {
  constexpr uint32_t kSenders = 6;
  for (uint32_t i = 0; i < kSenders; ++i) rtts[i] = 4'000;  // 5,000 bytes of the link's
  send_for_long(kSenders);
  marks = false;
  epoch(active, 1000);  // it may grow no further than is configured
  EXPECT_EQ(credit.budget_bytes(), kQueue + 2 * kFrameBytes);
}

// A path that got ten times faster: measurements take a few frames of each, not of the largest that
// there are.
TEST_F(CreditTest, AQueueOfSmallFramesIsSoonBackWhenTheMarksEnd) {
  frame_bytes = 1'500;
  send_for_long(8);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + kQueue / 8);
  marks = false;
  epoch(active, 64);
  EXPECT_GE(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + kQueue);
}

// What is lost at random must not leave a link idle.
TEST_F(CreditTest, WhatIsMissingHalvesTheQueueAtMost) {
  marks = false;
  misses = true;
  send_for_long(2);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + kQueue / 2);
}

TEST_F(CreditTest, WhatIsMissingLeavesTwoFramesOfEachSender) {
  marks = false;
  misses = true;
  send_for_long(6);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + 12 * kFrameBytes);
}

TEST_F(CreditTest, WhatIsMissingAfterMarksBringsHalfOfTheQueueBack) {
  misses = true;
  send_for_long(2);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + 2 * kFrameBytes);
  marks = false;
  epoch(active, 1000);
  EXPECT_EQ(credit.budget_bytes(), kRate / 1'000'000 * kPathRtt / 1000 + kQueue / 2);
}

// With fewer servers than workers: what is in flight waits before other links, or its
// acknowledgements do.
TEST_F(CreditTest, ALinkThatIsNotFullGrantsMoreUntilItIs) {
  marks = false;
  receivers = 2;
  job(0, 4);
  active = senders(0, 4, 5);
  epoch(active, 1, {}, 0.4);
  const uint64_t least = credit.budget_bytes();
  epoch(active, 2000, {}, 0.4);
  EXPECT_EQ(credit.budget_bytes(), least + 8 * kQueue);
  epoch(active, 2000);
  EXPECT_LT(credit.budget_bytes(), least + 10);
}

// What was idle before the first frame would make the link look anything but full.
TEST_F(CreditTest, WhereNobodySentNothingIsMeasured) {
  marks = false;
  receivers = 2;
  job(0, 4);
  active = senders(0, 4, 5);
  epoch(active);
  for (int pause = 0; pause < 20; ++pause) {
    epoch({}, 100 + pause);
    ASSERT_EQ(credit.active_senders(), 0U);
    const uint64_t before = credit.budget_bytes();
    epoch(active, 6);
    EXPECT_LE(credit.budget_bytes(), before) << pause;
  }
}

// Its frames may all wait in the queue: it would begin again with an idle grant for ever.
TEST_F(CreditTest, WhoWaitsInALongQueueHasNotPaused) {
  marks = false;
  job(0, 4);
  active = senders(0, 4, 5);
  epoch(active, 2000);
  const uint64_t drained_ns = credit.budget_bytes() * 1'000'000 / (kRate / 1'000);
  ASSERT_GT(drained_ns, 500'000U);
  active.erase(3);
  epoch(active, static_cast<int>((4'000'000 + drained_ns) / kEpoch));
  EXPECT_EQ(credit.active_senders(), 4U);
  epoch(active, 20);
  EXPECT_EQ(credit.active_senders(), 3U);
}

TEST_F(CreditTest, TheQueueOfManySendersIsBoundedToo) {
  marks = false;
  job(0, 200);
  active = senders(0, 200, 5);
  epoch(active, 10'000);
  EXPECT_LE(credit.budget_bytes(), 33 * kQueue);
  EXPECT_GE(credit.budget_bytes(), 32 * kQueue);
}

TEST_F(CreditTest, NoQueueAndNobodyActiveDivideNothing) {
  CreditAllocator none(kRate, 0, 0);
  none.add_job(JobSlot(0), {2, 2, 1});
  none.add_session(SessionSlot(0), JobSlot(0));
  for (uint64_t at_ns = 0; at_ns < 2'000'000; at_ns += 1'000) {
    none.divide(at_ns,
                [](SessionSlot, uint16_t, uint16_t) { return CreditAllocator::PathState{}; });
  }
  EXPECT_EQ(none.active_senders(), 0U);
}

TEST_F(CreditTest, FramesOfAFewBytesOnASlowLinkWithoutAQueueAreMeasuredToo) {
  credit = CreditAllocator(1'000'000, 0, kDelayTarget);  // 40 bytes in a round trip
  job(0, 2);
  for (int i = 0; i < 1'000; ++i) {
    credit.on_datagram(SessionSlot(0), 5, 40, now_ns);
    now_ns += 1'000'000;
    divide();
  }
  EXPECT_EQ(credit.active_senders(), 1U);
  EXPECT_GE(told[0].first, 1U);
}

// As one may do on purpose.
TEST_F(CreditTest, WhoAcknowledgesLateWidensNobodysGrant) {
  rtts[3] = 2'000'000'000;
  marks = false;
  job(0, 4);
  epoch(senders(0, 4, 5));
  constexpr uint64_t kMega = 1'000'000;
  EXPECT_EQ(credit.budget_bytes(), kQueue + kRate / kMega * 1'000'000 / 1'000);
  now_ns += 1'000'000;
  EXPECT_TRUE(credit.due(now_ns));
  rtts = {{0, 300'000}, {1, 300'000}, {2, 300'000}, {3, 2'500'000}};  // two sites
  epoch(senders(0, 4, 5));
  EXPECT_EQ(credit.budget_bytes(), kQueue + kRate / kMega * 2'500'000 / 1'000);
}

// 50 us before a round trip is measured.
TEST_F(CreditTest, NoRateIsTooLowOrTooHighToReckonWith) {
  EXPECT_EQ(CreditAllocator(100'000, 0, 0).budget_bytes(), 5U);  // 0.8 Mb/s
  EXPECT_EQ(CreditAllocator(1'999'999, 0, 0).budget_bytes(), 99U);
  EXPECT_EQ(CreditAllocator(100'000'000'000, uint64_t{1} << 40, 0).budget_bytes(), UINT32_MAX);
  credit = CreditAllocator(100'000'000'000, uint64_t{1} << 40, 0);
  job(0, 300);
  active = senders(0, 300, 5);
  epoch(active, 3);
  EXPECT_EQ(grant(7), UINT32_MAX / 300);
}

TEST_F(CreditTest, StaysWithinTheBudgetWhateverHappens) {
  Random random(7);
  job(0, 10);
  job(1, 30, 3);
  for (int step = 0; step < 2000; ++step) {
    active.clear();
    const uint64_t count = random.below(40);
    for (uint32_t i = 0; i < count; ++i)
      active[static_cast<uint32_t>(random.below(40))] = static_cast<uint16_t>(random.below(4));
    for (const auto& [session, priority] : active) {
      credit.on_datagram(SessionSlot(session), priority, static_cast<uint32_t>(random.below(9'000)),
                         now_ns);
    }
    now_ns += random.below(300'000);
    marks = random.below(30) == 0;
    const uint64_t budget = credit.budget_bytes();
    divide();
    uint64_t sum = 0;
    for (const auto& [session, priority] : active) {
      if (step < 1000 || session >= 10) sum += grant(session);  // the others' job is gone
    }
    ASSERT_LE(sum, std::max(budget, credit.budget_bytes()) + 64) << step;
    if (step == 1000) credit.remove_job(JobSlot(0));
    if (step == 1001) credit.remove_session(SessionSlot(3));
  }
}

TEST_F(CreditTest, FramesOfSessionsThatAreNotHereAreHarmless) {
  credit.on_datagram(SessionSlot(77), 1, 9'000, now_ns);
  job(0, 2);
  credit.remove_session(SessionSlot(1));
  credit.on_datagram(SessionSlot(1), 1, 9'000, now_ns);
  credit.remove_job(JobSlot(0));
  credit.on_datagram(SessionSlot(0), 1, 9'000, now_ns);
  divide();
  EXPECT_EQ(told[0].first, 0);
}

TEST_F(CreditTest, WhoLeavesWhileItSendsIsNotCountedAnyMore) {
  job(0, 3);
  epoch(senders(0, 3, 5));
  EXPECT_EQ(credit.active_senders(), 3U);
  credit.remove_session(SessionSlot(0));
  EXPECT_EQ(credit.active_senders(), 2U);
  credit.add_session(SessionSlot(1), JobSlot(0));  // another one in its slot
  EXPECT_EQ(credit.active_senders(), 1U);
  credit.remove_session(SessionSlot(0));
  EXPECT_EQ(credit.active_senders(), 1U);
}

TEST_F(CreditTest, NothingIsRegisteredOrExpectedWhenAllHaveGone) {
  job(0, 3);
  job(1, 2);
  EXPECT_EQ(credit.registered_senders(), 5U);
  EXPECT_EQ(credit.expected_senders(), 5U);
  for (uint32_t i = 0; i < next_session; ++i) credit.remove_session(SessionSlot(i));
  EXPECT_EQ(credit.registered_senders(), 0U);
  credit.remove_job(JobSlot(0));
  EXPECT_EQ(credit.expected_senders(), 2U);
  credit.remove_job(JobSlot(1));
  EXPECT_EQ(credit.expected_senders(), 0U);
}

}  // namespace
}  // namespace mercury
