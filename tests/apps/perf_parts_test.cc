#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "apps/perf/costs.h"
#include "apps/perf/figures.h"
#include "apps/perf/latency.h"
#include "apps/perf/sizes.h"
#include "transport/base/random.h"

namespace mercury::perf {
namespace {

using Sizes = std::vector<uint64_t>;

TEST(Latency, IsWithinAThousandthOfWhatSortingSays) {
  LatencyHistogram histogram;
  std::vector<uint64_t> times;
  uint64_t state = 1;
  for (int n = 0; n < 100'000; ++n) {
    const uint64_t random = split_mix(state);
    times.push_back(random >> (random % 60));  // of every magnitude
    histogram.record(times.back());
  }
  std::sort(times.begin(), times.end());
  for (const uint64_t per_mille : {1, 10, 500, 900, 990, 999}) {
    const uint64_t exact = times[(times.size() * per_mille + 999) / 1000 - 1];
    const uint64_t got = histogram.percentile_ns(per_mille).value();
    EXPECT_GE(got, exact) << per_mille;
    EXPECT_LE(got - exact, exact / 1024) << per_mille;
  }
  EXPECT_EQ(histogram.max_ns(), times.back());
  EXPECT_EQ(histogram.count(), times.size());
}

TEST(Latency, EveryTimeHasAPlace) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    for (const uint64_t ns : {(uint64_t{1} << bit) - 1, uint64_t{1} << bit, ~uint64_t{0} >> bit}) {
      LatencyHistogram histogram;
      for (int n = 0; n < 1000; ++n) histogram.record(ns);
      EXPECT_EQ(histogram.percentile_ns(500), ns);  // at most the greatest
    }
  }
}

TEST(Latency, SaysNothingOfPercentilesThatNoTimeLiesBeyond) {
  LatencyHistogram histogram;
  EXPECT_FALSE(histogram.percentile_ns(500));
  for (uint64_t n = 1; n <= 999; ++n) histogram.record(n);
  EXPECT_EQ(histogram.percentile_ns(990), 990U);
  EXPECT_FALSE(histogram.percentile_ns(999));
  histogram.record(1000);
  EXPECT_EQ(histogram.percentile_ns(999), 999U);
}

TEST(Sizes, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_sizes("4KiB").value(), Sizes({4096}));
  EXPECT_EQ(parse_sizes("1MB,4,4").value(), Sizes({4, 1'000'000}));
  EXPECT_EQ(parse_sizes("4..100").value(), Sizes({4, 16, 64, 100}));
  EXPECT_EQ(parse_sizes("4..4").value(), Sizes({4}));
  EXPECT_EQ(parse_sizes("16,4..64").value(), Sizes({4, 16, 64}));
  EXPECT_EQ(parse_sizes("4B..8GiB").value().size(), 17U);
  for (const char* wrong :
       {"", ",", "4,", "0", "-4", "4..", "..4", "8..4", "many", "2000GiB", "4...8"}) {
    EXPECT_FALSE(parse_sizes(wrong)) << wrong;
  }
}

TEST(Repeats, HaveAMedianAndASpread) {
  EXPECT_FALSE(Repeats{}.median());
  EXPECT_FALSE(Repeats{}.spread());
  EXPECT_EQ(Repeats({{4, 1, 2}}).median(), 2);
  EXPECT_EQ(Repeats({{4, 1, 2}}).spread(), 1.5);
  EXPECT_EQ(json_of(Repeats{})["median"], nullptr);
  EXPECT_EQ(text_of(std::nullopt), "-");
  EXPECT_EQ(rate_text(0.001653), "0.001653");
  EXPECT_EQ(rate_text(12.3456), "12.35");
  EXPECT_EQ(rate_text(123456), "123456");
}

// Only what can be read is a figure, and what cannot has a reason.
TEST(Costs, AreFiguresOrReasons) {
  CostMeter meter;
  EXPECT_EQ(meter.why_no_daemon(), "not attached");
  meter.watch_daemon("/no/such/socket");
  EXPECT_NE(meter.why_no_daemon().find("/no/such/socket"), std::string::npos);
  const CostSample before = meter.sample();
  volatile uint64_t busy = 0;
  while (meter.sample().since(before).program_ns < 1'000'000) busy = busy + 1;
  const CostSample costs = meter.sample().since(before);
  EXPECT_FALSE(costs.daemon_ns);
  EXPECT_EQ(costs.cycles.has_value(), meter.why_no_cycles().empty());
  if (costs.cycles) {
    EXPECT_GT(*costs.cycles, 0U);
  }
  const auto json = json_of(costs, Figures{}, meter);
  EXPECT_EQ(json["program_cpu_ns"]["per_operation"], nullptr);  // of none
  EXPECT_EQ(json["no_daemon_cpu"], meter.why_no_daemon());
}

}  // namespace
}  // namespace mercury::perf
