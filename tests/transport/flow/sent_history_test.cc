#include "transport/flow/sent_history.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mercury {
namespace {

std::set<uint64_t> numbers_of(const SentHistory& history) {
  std::set<uint64_t> numbers;
  for (auto cursor = history.oldest(); cursor.record() != nullptr; history.next(cursor)) {
    numbers.insert(cursor.record()->number);
  }
  return numbers;
}

TEST(SentHistory, HoldsNoBlockWhenNothingIsInFlight) {
  SentPool pool(4);
  SentHistory history(pool);
  EXPECT_EQ(history.oldest().record(), nullptr);
  EXPECT_EQ(pool.blocks_in_use(), 0U);
  ASSERT_TRUE(history.append(7, {}, 100, 1));
  EXPECT_EQ(pool.blocks_in_use(), 1U);
  auto cursor = history.oldest();
  history.remove(cursor);
  EXPECT_EQ(cursor.record(), nullptr);
  EXPECT_EQ(pool.blocks_in_use(), 0U);
  EXPECT_EQ(history.bytes_in_flight(), 0U);
}

TEST(SentHistory, RefusesWhenThePoolIsEmptyAndGoesOnWhenItIsNot) {
  SentPool pool(2);
  SentHistory history(pool);
  SentHistory other(pool);
  for (uint64_t n = 0; n < 2 * kSentBlockRecords; ++n) ASSERT_TRUE(history.append(n, {}, 1, n));
  EXPECT_FALSE(history.has_room());
  EXPECT_FALSE(other.append(1, {}, 1, 1));
  history.clear();
  EXPECT_TRUE(other.append(1, {}, 1, 1));
}

TEST(SentHistory, SeekFindsTheFirstRecordAtOrAfterANumber) {
  SentPool pool;
  SentHistory history(pool);
  for (uint64_t n = 0; n < 1000; n += 10) ASSERT_TRUE(history.append(n, {}, 1, n));
  for (uint64_t wanted = 0; wanted <= 990; ++wanted) {
    auto cursor = history.oldest();
    history.seek(cursor, wanted);
    ASSERT_NE(cursor.record(), nullptr);
    EXPECT_EQ(cursor.record()->number, (wanted + 9) / 10 * 10);
  }
  auto cursor = history.oldest();
  history.seek(cursor, 991);
  EXPECT_EQ(cursor.record(), nullptr);
}

TEST(SentHistory, AgreesWithASetUnderRandomUse) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SentPool pool;
    SentHistory history(pool);
    std::set<uint64_t> model;
    uint64_t number = 0;
    for (int step = 0; step < 200; ++step) {
      for (uint64_t i = random() % 40; i > 0; --i) {
        number += 1 + random() % 3;
        ASSERT_TRUE(history.append(number, {}, 10, number));
        model.insert(number);
      }
      auto cursor = history.oldest();
      const uint64_t from = number - std::min<uint64_t>(number, random() % 300);
      history.seek(cursor, from);
      auto at = model.lower_bound(from);
      for (uint64_t i = random() % 50; i > 0 && cursor.record() != nullptr; --i) {
        ASSERT_EQ(cursor.record()->number, *at);
        if (random() % 4 == 0) {
          history.next(cursor);
          ++at;
        } else {
          history.remove(cursor);
          at = model.erase(at);
        }
      }
      ASSERT_EQ(history.bytes_in_flight(), 10 * model.size());
    }
    EXPECT_EQ(numbers_of(history), model);
    history.clear();
    EXPECT_EQ(pool.blocks_in_use(), 0U);
  }
}

}  // namespace
}  // namespace mercury
