#include "scheduler/partition_release.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace mercury {
namespace {

Policy policy(const char* text) { return *parse_policy(text); }

using Pair = std::pair<uint32_t, uint32_t>;

// What is released now, each to be acknowledged as two chunks.
std::vector<Pair> released(PartitionRelease& release, uint64_t now_ns) {
  std::vector<Pair> all;
  PartitionRelease::Released one;
  while (release.next(now_ns, one)) {
    release.expect(one, 2);
    all.emplace_back(one.tensor.value, one.partition);
  }
  return all;
}
void acknowledge(PartitionRelease& release, Pair partition) {
  release.acknowledged(TensorIndex(partition.first), partition.second);
  release.acknowledged(TensorIndex(partition.first), partition.second);
}

TEST(PartitionRelease, KeepsWithinTheCredit) {
  PartitionRelease release(policy("bytescheduler:partition=10KB,credit=30KB,startup=0"), 0);
  release.add_tensor(0, 5, 10'000);
  EXPECT_EQ(release.due_ns(), kNever);
  release.submit(0, 7);
  EXPECT_EQ(release.due_ns(), 0U);
  EXPECT_EQ(released(release, 1), (std::vector<Pair>{{0, 0}, {0, 1}, {0, 2}}));
  EXPECT_EQ(release.due_ns(), kNever);
  release.acknowledged(0, 1);  // half of it
  EXPECT_TRUE(released(release, 2).empty());
  release.acknowledged(0, 1);
  EXPECT_EQ(release.due_ns(), 0U);
  EXPECT_EQ(released(release, 3), (std::vector<Pair>{{0, 3}}));
  release.acknowledged(0, 1);  // again: means nothing
  EXPECT_TRUE(released(release, 4).empty());
}

TEST(PartitionRelease, LetsOnePartitionGoWhateverTheCredit) {
  PartitionRelease release(policy("p3:partition=10KB,credit=10KB,startup=0"), 0);
  release.add_tensor(0, 2, 4'000);
  release.submit(0, 0);
  EXPECT_EQ(released(release, 1), (std::vector<Pair>{{0, 0}}));
  acknowledge(release, {0, 0});
  EXPECT_EQ(released(release, 1), (std::vector<Pair>{{0, 1}}));
}

TEST(PartitionRelease, CountsAShortLastPartitionAsWhatItIs) {
  PartitionRelease release(policy("bytescheduler:partition=10KB,credit=14KB,startup=0"), 0);
  release.add_tensor(0, 2, 4'000);
  release.add_tensor(1, 1, 1);
  release.submit(0, 0);
  release.submit(1, 1);
  EXPECT_EQ(released(release, 1), (std::vector<Pair>{{0, 0}, {0, 1}}));
}

TEST(PartitionRelease, TakesTheMostUrgentThenTheFirst) {
  PartitionRelease release(policy("p3:partition=10KB,credit=10KB,startup=0"), 0);
  for (uint32_t i = 0; i < 3; ++i) release.add_tensor(TensorIndex(i), 2, 10'000);
  release.submit(2, 5);
  release.submit(0, 5);
  std::vector<Pair> order = released(release, 1);
  release.submit(1, 4);  // more urgent: before what is left of the others
  while (!order.empty() && order.size() < 6) {
    acknowledge(release, order.back());
    for (const Pair& next : released(release, 1)) order.push_back(next);
  }
  EXPECT_EQ(order, (std::vector<Pair>{{2, 0}, {1, 0}, {1, 1}, {2, 1}, {0, 0}, {0, 1}}));
}

TEST(PartitionRelease, TakesTheFirstWhereOrderIsFifo) {
  PartitionRelease release(policy("p3:partition=10KB,credit=1MB,startup=0,order=fifo"), 0);
  release.add_tensor(0, 2, 10'000);
  release.add_tensor(1, 1, 10'000);
  release.submit(0, 5);
  release.submit(1, 0);
  EXPECT_EQ(released(release, 1), (std::vector<Pair>{{0, 0}, {0, 1}, {1, 0}}));
}

TEST(PartitionRelease, StartsOneAfterAnother) {
  PartitionRelease release(policy("bytescheduler:partition=10KB,credit=1MB,startup=100ns"), 0);
  release.add_tensor(0, 2, 10'000);
  release.submit(0, 1);
  EXPECT_TRUE(released(release, 1000).empty());
  EXPECT_EQ(release.due_ns(), 1100U);
  acknowledge(release, {0, 0});  // nothing was released: means nothing
  EXPECT_EQ(release.due_ns(), 1100U);
  EXPECT_TRUE(released(release, 1099).empty());
  EXPECT_EQ(released(release, 1100), (std::vector<Pair>{{0, 0}}));
  EXPECT_EQ(release.due_ns(), 1200U);
  EXPECT_EQ(released(release, 1250), (std::vector<Pair>{{0, 1}}));
  EXPECT_EQ(release.due_ns(), kNever);
}

TEST(PartitionRelease, WithdrawsWhatWaitsAndWhatStarts) {
  PartitionRelease release(policy("p3:partition=10KB,credit=20KB,startup=100ns"), 0);
  for (uint32_t i = 0; i < 3; ++i) release.add_tensor(TensorIndex(i), 2, 10'000);
  for (uint32_t tensor = 0; tensor < 3; ++tensor) release.submit(TensorIndex(tensor), 0);
  EXPECT_TRUE(released(release, 0).empty());
  EXPECT_EQ(released(release, 100), (std::vector<Pair>{{0, 0}}));  // and {0, 1} starts
  release.withdraw(1);
  EXPECT_EQ(release.due_ns(), 200U) << "what starts is not disturbed";
  release.withdraw(1);  // again: means nothing
  acknowledge(release, {0, 0});
  release.withdraw(0);
  EXPECT_EQ(release.due_ns(), 0U);
  EXPECT_TRUE(released(release, 150).empty()) << "{2, 0} begins its start";
  EXPECT_EQ(released(release, 250), (std::vector<Pair>{{2, 0}}));
  EXPECT_EQ(released(release, 350), (std::vector<Pair>{{2, 1}})) << "nothing else holds the credit";
  acknowledge(release, {2, 0});
  acknowledge(release, {2, 1});
  release.submit(1, 0);
  release.submit(0, 0);
  EXPECT_TRUE(released(release, 1000).empty());
  std::vector<Pair> order;
  for (uint64_t now = 1100; now < 1600; now += 100) {
    for (const Pair& one : released(release, now)) {
      order.push_back(one);
      acknowledge(release, one);
    }
  }
  EXPECT_EQ(order, (std::vector<Pair>{{1, 0}, {1, 1}, {0, 0}, {0, 1}})) << "each waits once";
  EXPECT_EQ(release.due_ns(), kNever);
}

// Against a set in order: whichever is withdrawn, those that are left come in the order that they
// would have had.
TEST(PartitionRelease, KeepsTheOrderOfWhatIsLeft) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 generator(seed);
    const auto below = [&generator](uint32_t n) { return static_cast<uint32_t>(generator() % n); };
    const uint32_t tensors = 1 + below(64);
    PartitionRelease release(policy("p3:partition=10KB,credit=10KB,startup=0"), below(64));
    for (uint32_t i = 0; i < tensors; ++i) release.add_tensor(TensorIndex(i), 1, 10'000);
    std::set<std::tuple<uint16_t, uint32_t, uint32_t>> wait;  // priority, arrival, tensor
    std::vector<std::optional<uint16_t>> priority_of(tensors);
    std::vector<uint32_t> arrival_of(tensors);
    for (uint32_t step = 0; step < 500; ++step) {
      const uint32_t tensor = below(tensors);
      std::optional<uint16_t>& priority = priority_of[tensor];
      if (!priority) {
        priority = static_cast<uint16_t>(below(8));
        arrival_of[tensor] = step;
        wait.emplace(*priority, step, tensor);
        release.submit(TensorIndex(tensor), *priority);
      } else if (below(2) == 0) {
        wait.erase({*priority, arrival_of[tensor], tensor});
        priority.reset();
        release.withdraw(TensorIndex(tensor));
      } else {
        const uint32_t first = std::get<2>(*wait.begin());
        wait.erase(wait.begin());
        priority_of[first].reset();
        ASSERT_EQ(released(release, 0), (std::vector<Pair>{{first, 0}})) << "step " << step;
        acknowledge(release, {first, 0});
      }
    }
  }
}

TEST(PartitionRelease, SaysWhatWaitedOrStartedWhenItStops) {
  PartitionRelease release(policy("bytescheduler:partition=10KB,credit=1MB,startup=100ns"), 0);
  uint32_t tensors = 0;
  for (uint32_t partitions : {3U, 2U, 1U, 0U}) {
    release.add_tensor(TensorIndex(tensors++), partitions, 10'000);
  }
  release.add_tensor(7, 1, 10'000);  // others come later, or never
  EXPECT_FALSE(release.has(6));
  EXPECT_TRUE(release.has(7));
  for (uint32_t tensor = 0; tensor < 4; ++tensor) release.submit(TensorIndex(tensor), 0);
  EXPECT_TRUE(released(release, 0).empty());
  EXPECT_EQ(released(release, 100), (std::vector<Pair>{{0, 0}}));  // and {0, 1} starts
  release.stop();
  EXPECT_EQ(release.due_ns(), kNever);
  std::vector<Pair> rest;
  for (uint32_t tensor = 0; tensor < 10; ++tensor) {
    if (const auto first = release.waited_from(TensorIndex(tensor))) {
      rest.emplace_back(tensor, *first);
    }
  }
  EXPECT_EQ(rest, (std::vector<Pair>{{0, 1}, {1, 0}, {2, 0}}));
  uint32_t looks = 5;
  EXPECT_FALSE(release.drop(looks));
  EXPECT_EQ(looks, 0U) << "two of eight places are gone";
  looks = 26;
  EXPECT_TRUE(release.drop(looks));
  EXPECT_EQ(looks, 2U);
}

}  // namespace
}  // namespace mercury
