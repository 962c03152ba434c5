#include "transport/base/fifo.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace mercury {
namespace {

TEST(Fifo, IsAQueueWhateverIsPushedPoppedAndErased) {
  std::mt19937_64 random(1);
  Fifo<uint64_t> fifo;
  std::deque<uint64_t> model;
  for (uint64_t step = 0; step < 100'000; ++step) {
    const uint64_t what = random() % 100;
    if (what < 50) {
      fifo.push(step);
      model.push_back(step);
    } else if (what < 98 && !model.empty()) {
      ASSERT_EQ(fifo.front(), model.front());
      fifo.pop();
      model.pop_front();
    } else if (what >= 98) {
      const auto gone = [&](uint64_t item) { return item % 3 == step % 3; };
      fifo.erase_if(gone);
      std::erase_if(model, gone);
    }
    ASSERT_EQ(fifo.size(), model.size());
    ASSERT_EQ(fifo.empty(), model.empty());
  }
}

// Items stay where they are as long as nothing grows.
TEST(Fifo, MovesNoItemToOtherMemoryWithinItsRoom) {
  constexpr size_t kMost = 100;
  Fifo<int> fifo;
  fifo.reserve(kMost);
  fifo.push(0);
  const int* const begin = &fifo.front();
  for (int i = 1; i < 100'000; ++i) {
    fifo.push(i);
    if (fifo.size() == kMost) {
      for (int popped = 0; popped < i % 7 + 1; ++popped) fifo.pop();
    }
    ASSERT_GE(&fifo.front(), begin);
    ASSERT_LT(&fifo.front(), begin + 2 * kMost);
  }
}

}  // namespace
}  // namespace mercury
