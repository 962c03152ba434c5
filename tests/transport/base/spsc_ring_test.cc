#include "transport/base/spsc_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace mercury {
namespace {

TEST(SpscRing, RefusesWhenFullAndKeepsOrder) {
  auto [in, out] = SpscRing<int>::create(4);
  EXPECT_FALSE(in.full());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(in.push(int{i}));
  EXPECT_TRUE(in.full());
  EXPECT_FALSE(in.push(4));
  for (int i = 0; i < 4; ++i) {
    int value = -1;
    ASSERT_TRUE(out.pop(value));
    EXPECT_EQ(value, i);
  }
  int value = 0;
  EXPECT_FALSE(out.pop(value));
  EXPECT_TRUE(out.empty());
}

TEST(SpscRing, TwoThreadsLoseAndReorderNothing) {
  constexpr uint64_t kItems = 200'000;
  auto [in, out] = SpscRing<std::unique_ptr<uint64_t>>::create(64);
  std::thread producer([&in = in] {
    for (uint64_t i = 0; i < kItems; ++i) {
      auto item = std::make_unique<uint64_t>(i);
      while (!in.push(std::move(item))) std::this_thread::yield();
    }
  });
  for (uint64_t i = 0; i < kItems; ++i) {
    std::unique_ptr<uint64_t> item;
    while (!out.pop(item)) std::this_thread::yield();
    ASSERT_EQ(*item, i);
  }
  producer.join();
}

}  // namespace
}  // namespace mercury
