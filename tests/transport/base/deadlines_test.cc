#include "transport/base/deadlines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

TEST(Deadlines, FindsTheEarliestOfAny) {
  Random random(3);
  for (const size_t count : {1, 2, 3, 7, 64, 100}) {
    Deadlines deadlines(count);
    std::vector<uint64_t> plain(count, kNever);
    for (int step = 0; step < 2000; ++step) {
      const auto index = static_cast<size_t>(random.below(count));
      plain[index] = random.below(10) == 0 ? kNever : random.below(1000);
      deadlines.set(index, plain[index]);
      ASSERT_EQ(deadlines.earliest_ns(), *std::min_element(plain.begin(), plain.end()));
      ASSERT_EQ(deadlines.at(index), plain[index]);
    }
    std::vector<size_t> due;
    deadlines.take_due(500, [&](size_t index) { due.push_back(index); });
    std::vector<size_t> expected;
    for (size_t i = 0; i < count; ++i) {
      if (plain[i] <= 500) expected.push_back(i);
    }
    EXPECT_EQ(due, expected);
    EXPECT_GT(deadlines.earliest_ns(), 500U);
  }
}

TEST(Deadlines, KeepsThemWhereItGrows) {
  Deadlines deadlines(1);
  for (size_t count = 1; count <= 100; ++count) {
    deadlines.grow(count);
    deadlines.set(count - 1, 1000 - count);
    EXPECT_EQ(deadlines.earliest_ns(), 1000 - count);
  }
  for (size_t index = 0; index < 100; ++index) EXPECT_EQ(deadlines.at(index), 999 - index);
  deadlines.grow(1);  // never smaller
  EXPECT_EQ(deadlines.at(99), 900U);
}

}  // namespace
}  // namespace mercury
