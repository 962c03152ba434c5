// What datagrams say beside their priority: that others waited for them, that a link was idle.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/transport/flow/credit_fixture.h"
#include "transport/base/random.h"

namespace mercury {
namespace {

TEST_F(CreditTest, WhoSendsWhatOthersWaitForComesBeforeTheMostUrgent) {
  job(0, 4);
  active = {{0, 1}, {1, 9}, {2, 9}, {3, 9}};
  behind = 2;
  epoch(active, 200);
  EXPECT_GT(grant(2), 2 * grant(0));
  EXPECT_GT(grant(2), 2 * grant(1));
  behind = 1'000;  // all in step
  for (int i = 0; i < 400; ++i) {
    behind = static_cast<uint32_t>(i) % 4;
    epoch(active);
  }
  EXPECT_LT(grant(0), 2 * grant(1));
  active = {{0, 5}, {1, 5}, {2, 5}, {3, 5}};  // of one priority they are equals
  behind = 2;
  epoch(active, 200);
  EXPECT_LT(grant(2), 2 * grant(0));
}

TEST_F(CreditTest, WhatIsMissingOnceShortensTheQueue) {
  marks = false;
  send_for_long(2);
  const uint64_t carried = kRate / 1'000 * kPathRtt / 1'000'000;
  EXPECT_GE(credit.budget_bytes(), carried + 4 * kQueue);
  misses = true;
  epoch(active);
  misses = false;
  epoch(active);
  EXPECT_LE(credit.budget_bytes(), carried + kQueue);
}

TEST_F(CreditTest, SendersWithIdleLinksLeaveAShortQueue) {
  marks = false;
  send_for_long(2);
  const uint64_t carried = kRate / 1'000 * kPathRtt / 1'000'000;
  EXPECT_GE(credit.budget_bytes(), carried + 4 * kQueue);
  links_free = true;
  epoch(active, 1000);
  EXPECT_NEAR(static_cast<double>(credit.budget_bytes()),
              static_cast<double>(carried + 4 * 2 * kFrameBytes), 100);
  links_free = false;
  epoch(active, 100);
  EXPECT_GE(credit.budget_bytes(), carried + 4 * kQueue);
}

TEST_F(CreditTest, AShortQueueLastsWhileFramesAndAcknowledgementsWaitBehindOthers) {
  constexpr uint64_t kAhead = 64 * 1024;
  credit = CreditAllocator(kRate, kQueue, kDelayTarget, kAhead);
  marks = false;
  links_free = true;
  send_for_long(2);
  EXPECT_NEAR(
      static_cast<double>(credit.budget_bytes()),
      static_cast<double>(kRate / 1'000 * kPathRtt / 1'000'000 + 8 * kFrameBytes + 2 * kAhead),
      100);
}

TEST_F(CreditTest, ALinkThatIsIdleForOnceMakesNoQueueShort) {
  marks = false;
  send_for_long(2);
  for (int i = 0; i < 900; ++i) {  // a measurement takes nine
    links_free = i % 90 < 2;
    epoch(active);
    ASSERT_GE(credit.budget_bytes(), kRate / 1'000 * kPathRtt / 1'000'000 + 4 * kQueue) << i;
  }
}

// Before its own link, where acknowledgements of what it sends wait.
class CreditElsewhere : public CreditTest {
 protected:
  static constexpr uint64_t kWait = 1'000'000;

  void SetUp() override {
    job(0, 4);
    for (uint32_t i = 0; i < 4; ++i) active[i] = 5;
  }
  void send() { epoch(active, 1000); }
  // What a quarter of the link carries in that time.
  void expect_elsewhere(uint32_t session, double wait_ns) {
    const double bytes = wait_ns * kRate / 4 / 1e9;
    EXPECT_NEAR(static_cast<double>(elsewhere(session)), bytes, bytes / 50);
  }
};

TEST_F(CreditElsewhere, WhatASenderBringsWhileItsQueueIsLongerIsGrantedBesides) {
  queues[0] = kPathRtt + kWait;
  for (const bool marked : {true, false}) {
    marks = marked;
    epoch(active);
    now_ns += 100'000'000'000;  // the last mark is long ago
    send();
    expect_elsewhere(0, kWait - static_cast<double>(kPathRtt) / (marked ? 1 : 4));
    EXPECT_NEAR(static_cast<double>(told[0].first * wire::kGrantUnitBytes),
                static_cast<double>(grant(0) + elsewhere(0)), wire::kGrantUnitBytes);
    for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(elsewhere(i), 0U) << i;
  }
}

TEST_F(CreditElsewhere, NothingWhereAllWaitAsLongAsThisHostsOwnQueueIs) {
  for (uint32_t i = 0; i < 4; ++i) queues[i] = kPathRtt + kWait + i * kPathRtt;
  send();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(elsewhere(i), 0U) << i;
}

TEST_F(CreditElsewhere, NothingWhereThisHostsLinkIsNotFull) {
  queues[0] = kPathRtt + kWait;
  epoch(active, 1000, {}, 0.8);
  EXPECT_EQ(elsewhere(0), 0U);
  send();
  EXPECT_GT(elsewhere(0), 0U);
}

TEST_F(CreditElsewhere, NothingOfWhatIsPartOfASum) {
  queues[0] = kPathRtt + kWait;
  send();
  behind = 1;
  epoch(active, 2);
  EXPECT_EQ(elsewhere(0), 0U);
}

TEST_F(CreditElsewhere, AFarPeerWaitsInNoQueue) {
  rtts[0] = 10 * kPathRtt;
  send();
  EXPECT_EQ(elsewhere(0), 0U);
}

// The shortest may be of a time before the queue.
TEST_F(CreditElsewhere, NothingWhereLessThanHalfAreMeasured) {
  credit.add_session(SessionSlot(4), JobSlot(0));
  active[4] = 5;
  queues = {{0, kPathRtt + kWait}, {1, kPathRtt}, {2, kPathRtt}, {3, 0}, {4, 0}};
  send();
  EXPECT_GT(elsewhere(0), 0U);
  queues[2] = 0;
  epoch(active, 2);
  EXPECT_EQ(elsewhere(0), 0U);
}

// It knows no shorter round trip than the one behind this host's own queue.
TEST_F(CreditElsewhere, NothingBesideOneThatBeganBehindTheQueue) {
  rtts[3] = kPathRtt + kWait;
  for (uint32_t i = 0; i < 4; ++i) queues[i] = kPathRtt + kWait;
  send();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(elsewhere(i), 0U) << i;
}

TEST_F(CreditElsewhere, NothingForASecondAfterALoss) {
  queues[0] = kPathRtt + kWait;
  send();
  EXPECT_GT(elsewhere(0), 0U);
  misses = true;
  epoch(active);
  misses = false;
  epoch(active, 100);
  EXPECT_EQ(elsewhere(0), 0U);
  epoch(active, 1'000'000'000 / kEpoch + 1);
  EXPECT_GT(elsewhere(0), 0U);
}

// Of its job's, whatever it brings.
TEST_F(CreditElsewhere, NoMoreThanForAnEqualPart) {
  job(1, 4, 3);
  for (uint32_t i = 4; i < 8; ++i) active[i] = 5;
  active[0] = 1;  // the most urgent
  queues[0] = kPathRtt + kWait;
  send();
  EXPECT_GT(grant(0), 2 * grant(1));
  EXPECT_LE(static_cast<double>(elsewhere(0)), kWait * kRate / 16 / 1e9);
  EXPECT_GT(elsewhere(0), 0U);
}

TEST_F(CreditElsewhere, NoWaitIsTakenForLongerThanTwentyMilliseconds) {
  queues[0] = 10'000'000'000;
  send();
  expect_elsewhere(0, 20'000'000);
}

// However many wait, and whatever part of the link each has.
TEST_F(CreditElsewhere, InAllNoMoreThanTheLinkCarriesInTwentyMilliseconds) {
  constexpr uint64_t kMost = kRate / 50;
  Random random(11);
  uint64_t seen = 0;
  for (int step = 0; step < 300; ++step) {
    for (uint32_t i = 0; i < 4; ++i) {
      active[i] = static_cast<uint16_t>(random.below(3));
      queues[i] = kPathRtt + random.below(4) * 20'000'000;
    }
    epoch(active, 20);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 4; ++i) sum += elsewhere(i);
    ASSERT_LE(sum, kMost) << step;
    seen = std::max(seen, sum);
  }
  EXPECT_GE(seen, kMost / 2);
}

}  // namespace
}  // namespace mercury
