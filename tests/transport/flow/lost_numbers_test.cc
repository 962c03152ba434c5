#include "transport/flow/lost_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

std::vector<uint64_t> taken(LostNumbers& lost, uint64_t first, uint64_t last) {
  std::vector<uint64_t> numbers;
  lost.take(first, last, [&numbers](uint64_t number) { numbers.push_back(number); });
  return numbers;
}

using Numbers = std::vector<uint64_t>;

TEST(LostNumbers, AreTakenOnce) {
  LostNumbers lost;
  for (const uint64_t number : {7U, 63U, 64U, 200U}) lost.add(number);
  EXPECT_EQ(taken(lost, 8, 64), (Numbers{63, 64}));
  EXPECT_EQ(taken(lost, 0, 199), (Numbers{7}));
  EXPECT_EQ(taken(lost, 200, 200), (Numbers{200}));
  EXPECT_TRUE(lost.empty());
  EXPECT_EQ(taken(lost, 0, 1'000), Numbers());
}

TEST(LostNumbers, TheOldestAreForgotten) {
  LostNumbers lost;
  constexpr uint64_t kBegin = uint64_t{1} << 40;
  lost.add(kBegin);
  lost.add(kBegin + LostNumbers::kNumbers - 1);
  EXPECT_EQ(taken(lost, 0, kBegin), (Numbers{kBegin}));
  lost.add(kBegin);
  lost.add(kBegin + LostNumbers::kNumbers);
  EXPECT_EQ(taken(lost, 0, kBegin), Numbers());
  lost.add(kBegin);
  EXPECT_EQ(taken(lost, 0, kBegin), Numbers()) << "too old";
  EXPECT_EQ(taken(lost, 0, 2 * kBegin),
            (Numbers{kBegin + LostNumbers::kNumbers - 1, kBegin + LostNumbers::kNumbers}));
}

// What is among them for certain is the latest, whatever comes in which order.
TEST(LostNumbers, AreThoseOfAModel) {
  constexpr uint64_t kCertain = LostNumbers::kNumbers - 64;
  uint64_t random = 3;
  for (int run = 0; run < 50; ++run) {
    LostNumbers lost;
    std::set<uint64_t> model;
    uint64_t newest = split_mix(random) % 100'000;
    for (int step = 0; step < 2'000; ++step) {
      newest += split_mix(random) % (step % 200 == 0 ? 20'000 : 20);
      const uint64_t number = newest - std::min(newest, split_mix(random) % 5'000);
      if (number + kCertain > newest && model.insert(number).second) lost.add(number);
      while (!model.empty() && *model.begin() + kCertain <= newest) model.erase(model.begin());
      if (step % 5 != 0) continue;
      const uint64_t first = newest - std::min(newest, split_mix(random) % kCertain);
      const uint64_t last = first + split_mix(random) % 1'000;
      const Numbers found = taken(lost, first, last);
      const auto from = model.lower_bound(first), to = model.upper_bound(last);
      ASSERT_EQ(found, Numbers(from, to)) << run << ", " << step;
      model.erase(from, to);
    }
  }
}

}  // namespace
}  // namespace mercury
