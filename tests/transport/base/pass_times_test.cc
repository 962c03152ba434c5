// How long passes took, by powers of two.
#include "transport/base/pass_times.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

TEST(PassTimes, EachPassIsInTheClassThatItIsBelowTheEndOf) {
  PassTimes passes;
  EXPECT_EQ(passes.longest_ns(), 0U);
  for (const uint64_t ns : {0, 1, 1023, 1024, 2047}) passes.add(ns);
  EXPECT_EQ(passes.count(0), 1U);
  EXPECT_EQ(passes.count(1), 1U);
  EXPECT_EQ(passes.count(10), 1U);
  EXPECT_EQ(PassTimes::below_ns(10), 1024U);
  EXPECT_EQ(passes.count(11), 2U);
  EXPECT_EQ(passes.longest_ns(), 2047U);
  EXPECT_EQ(passes.total_ns(), 0U + 1 + 1023 + 1024 + 2047);
}

TEST(PassTimes, TheLastClassHasAllThatAreLonger) {
  PassTimes passes;
  constexpr size_t kLast = PassTimes::kClasses - 1;
  passes.add(PassTimes::below_ns(kLast - 1) - 1);
  EXPECT_EQ(passes.count(kLast), 0U);
  passes.add(PassTimes::below_ns(kLast - 1));
  passes.add(~uint64_t{0});
  EXPECT_EQ(passes.count(kLast), 2U);
  EXPECT_EQ(passes.longest_ns(), ~uint64_t{0});
}

}  // namespace
}  // namespace mercury
