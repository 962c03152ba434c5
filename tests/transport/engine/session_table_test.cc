// Session numbers: found in constant time, never mistaken for those of the past.
#include "transport/engine/session_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace mercury {
namespace {

TEST(SessionTable, FindsByNumberAndNothingElse) {
  SessionTable table(100);
  SessionSlot slot;
  ASSERT_TRUE(table.allocate(slot, Token()));
  const uint32_t number = table.number_of(slot);
  EXPECT_EQ(table.find(number), &table.at(slot));
  EXPECT_EQ(table.slot_of(number), slot);
  for (uint32_t bit = 0; bit < 32; ++bit) EXPECT_EQ(table.find(number ^ 1U << bit), nullptr);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(~0U), nullptr);
}

TEST(SessionTable, ANumberIsNotGivenAgainWhenItsSlotIs) {
  SessionTable table(1);
  std::set<uint32_t> seen;
  for (int i = 0; i < 1000; ++i) {
    SessionSlot slot;
    ASSERT_TRUE(table.allocate(slot, Token()));
    const uint32_t number = table.number_of(slot);
    EXPECT_TRUE(seen.insert(number).second);
    table.release(slot);
    EXPECT_EQ(table.find(number), nullptr);
  }
}

// Its last session ended within a pass that had touched it: none of touched() is there twice.
TEST(SessionTable, ASlotIsTouchedOnceInAPassWhoeverHasIt) {
  SessionTable table(1);
  SessionSlot slot;
  ASSERT_TRUE(table.allocate(slot, Token(1)));
  table.touch(slot);
  table.release(slot);
  ASSERT_TRUE(table.allocate(slot, Token(2)));
  table.touch(slot);
  EXPECT_EQ(table.touched().size(), 1U);
  table.clear_touched();
  table.touch(slot);
  EXPECT_EQ(table.touched().size(), 1U);
}

// Its sessions ended while the pass that had touched them was not over: of two visited ones, one
// behind them, and one that ended twice.
TEST(SessionTable, WhatIsTouchedAgainIsVisitedAgainWhereverThePassStopped) {
  constexpr uint32_t kSlots = 4;
  SessionTable table(kSlots);
  SessionSlot slot;
  const auto fill = [&] {
    while (table.allocate(slot, Token(7))) {
    }
  };
  const auto times_touched = [&](uint32_t which) {
    return std::count(table.touched().begin(), table.touched().end(), SessionSlot(which));
  };
  fill();
  for (uint32_t i = 0; i < kSlots; ++i) table.touch(SessionSlot(i));
  table.release(SessionSlot(0));
  table.release(SessionSlot(3));
  table.keep_touched(2);
  fill();
  table.release(SessionSlot(3));
  fill();
  for (uint32_t i = 0; i < kSlots; ++i) table.touch(SessionSlot(i));
  for (uint32_t i = 0; i < kSlots; ++i) EXPECT_EQ(times_touched(i), 1) << i;
  table.release(SessionSlot(2));
  table.clear_touched();
  fill();
  for (uint32_t i = 0; i < kSlots; ++i) table.touch(SessionSlot(i));
  for (uint32_t i = 0; i < kSlots; ++i) EXPECT_EQ(times_touched(i), 1) << i;
}

TEST(SessionTable, NumbersAreNeverZeroEvenWhereTheGenerationWraps) {
  SessionTable table(~0U);  // the fewest bits of generation: 16
  for (int i = 0; i < 70000; ++i) {
    SessionSlot slot;
    ASSERT_TRUE(table.allocate(slot, Token()));
    EXPECT_NE(table.number_of(slot), 0U);
    EXPECT_EQ(table.find(table.number_of(slot)), &table.at(slot));
    table.release(slot);
  }
}

TEST(SessionTable, NoNumberTellsAnother) {
  SessionTable table(256, 99);
  std::set<uint32_t> generations;
  SessionSlot slot;
  while (table.allocate(slot, Token()))
    generations.insert(table.number_of(slot) >> 9);  // 9 bits of slot
  EXPECT_EQ(generations.size(), 256U);
}

// A daemon that was killed and started again: what its peers still send to its old sessions must
// not reach the new ones in the same slots.
TEST(SessionTable, TwoLivesOfAnEngineShareNoNumbers) {
  SessionTable before(64, 0x1234567);
  SessionTable after(64, 0x7654321);
  for (int i = 0; i < 64; ++i) {
    SessionSlot old_slot;
    SessionSlot new_slot;
    ASSERT_TRUE(before.allocate(old_slot, Token()));
    ASSERT_TRUE(after.allocate(new_slot, Token()));
    EXPECT_EQ(after.find(before.number_of(old_slot)), nullptr);
  }
}

TEST(SessionTable, EverySlotOfTheLargestTableIsFound) {
  SessionTable table(~0U, 77);
  SessionSlot slot;
  uint32_t count = 0;
  while (table.allocate(slot, Token())) {
    ASSERT_EQ(table.find(table.number_of(slot)), &table.at(slot));
    ++count;
  }
  EXPECT_EQ(count, 65535U);
}

// A deadline that moved later wakes nobody at its old time, however many sessions there are.
TEST(SessionTable, TimersRunAtTheLastDeadlineThatWasSet) {
  SessionTable table(1000);
  std::vector<SessionSlot> slots(300);
  for (SessionSlot& slot : slots) {
    ASSERT_TRUE(table.allocate(slot, Token()));
    table.set_deadline(slot, 1000 + slot.value);
  }
  EXPECT_EQ(table.next_deadline_ns(), 1000U);
  table.set_deadline(slots[0], 5000);
  EXPECT_EQ(table.next_deadline_ns(), 1001U);
  table.release(slots[1]);
  EXPECT_EQ(table.next_deadline_ns(), 1002U);
  std::vector<uint32_t> expired;
  const auto note = [&expired](SessionSlot slot) { expired.push_back(slot.value); };
  table.run_timers(1001, note);
  EXPECT_TRUE(expired.empty());
  table.run_timers(1004, note);
  EXPECT_EQ(expired, (std::vector<uint32_t>{2, 3, 4}));
  table.run_timers(1004, note);  // once each
  EXPECT_EQ(expired.size(), 3U);
  EXPECT_EQ(table.next_deadline_ns(), 1005U);
}

TEST(SessionTable, ATokenFindsItsSessionWhileThatIsOpen) {
  SessionTable table(8);
  SessionSlot first;
  SessionSlot second;
  SessionSlot found;
  ASSERT_TRUE(table.allocate(first, Token(7)));
  ASSERT_TRUE(table.allocate(second, Token(8)));
  EXPECT_EQ(table.find_token(Token(7), found), &table.at(first));
  EXPECT_EQ(found, first);
  EXPECT_EQ(table.find_token(Token(9), found), nullptr);
  table.at(first).closed = true;
  EXPECT_EQ(table.find_token(Token(7), found), nullptr);
  SessionSlot next;
  ASSERT_TRUE(table.allocate(next, Token(7)));  // before the last one is freed
  table.release(first);
  EXPECT_EQ(table.find_token(Token(7), found), &table.at(next));
  table.release(next);
  EXPECT_EQ(table.find_token(Token(7), found), nullptr);
  EXPECT_EQ(table.find_token(Token(8), found), &table.at(second));
}

TEST(SessionTable, FindsTheSessionThatAHelloOpenedWhileItIsThere) {
  SessionTable table(8, 5);
  const Endpoint remote{IpAddress::v4(10, 0, 0, 1), 7470};
  const Endpoint other{IpAddress::v4(10, 0, 0, 2), 7470};
  SessionSlot first;
  ASSERT_TRUE(table.allocate(first, Token()));
  table.at(first).remote = remote;
  table.set_hello(first, 77);
  EXPECT_EQ(table.find_hello(remote, 77), &table.at(first));
  EXPECT_EQ(table.find_hello(remote, 78), nullptr);
  EXPECT_EQ(table.find_hello(other, 77), nullptr);
  table.at(first).closed = true;  // until the end of the pass its slot is taken
  EXPECT_EQ(table.find_hello(remote, 77), nullptr);
  SessionSlot second;
  ASSERT_TRUE(table.allocate(second, Token()));
  table.at(second).remote = remote;
  table.set_hello(second, 77);
  table.release(first);
  EXPECT_EQ(table.find_hello(remote, 77), &table.at(second));
  table.release(second);
  EXPECT_EQ(table.find_hello(remote, 77), nullptr);
}

}  // namespace
}  // namespace mercury
