// When gradients are reduced over another library, and how many at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/trace/trace.h"
#include "benchmarks/emulation/exchange.h"

namespace mercury::emulation {
namespace {

using Numels = std::vector<uint64_t>;
using Ends = std::vector<size_t>;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Fusion kDdp = {.bytes = 25 * kMiB, .first_bytes = kMiB};

struct Calls {
  std::mutex mutex;
  std::vector<size_t> numels;  // of each all-reduce
  uint64_t others_ready = 0;   // what least() finds elsewhere
};

// What an all-reduce of a single rank does, beside others that are as far as they are told to be.
class Alone : public Collective {
 public:
  explicit Alone(Calls& calls) : calls_(calls) {}
  Status all_reduce(const float* in, float* out, size_t numel, uint32_t) override {
    const std::lock_guard lock(calls_.mutex);
    calls_.numels.push_back(numel);
    std::copy_n(in, numel, out);
    return {};
  }
  Result<uint64_t> least(uint64_t mine) override {
    const std::lock_guard lock(calls_.mutex);
    const bool ending = mine == std::numeric_limits<uint64_t>::max();
    return ending ? mine : std::min(mine, calls_.others_ready);
  }
  int threads() const override { return 1; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string version() const override { return "alone"; }

 private:
  Calls& calls_;
};

class AllReduce : public testing::Test {
 protected:
  // Tensors in the order of the forward pass.
  void make(const Numels& numels, const Fusion& fusion) {
    Trace trace;
    for (uint64_t numel : numels) {
      TraceTensor tensor;
      tensor.numel = numel;
      trace.tensors.push_back(tensor);
    }
    tensors_ = numels.size();
    exchange_ = make_all_reduce(trace, std::make_unique<Alone>(calls_), fusion);
  }
  void push_all() {
    for (size_t i = tensors_; i-- > 0;) exchange_->push(i);
  }
  void wait_for_all() {
    for (size_t i = 0; i < tensors_; ++i) ASSERT_TRUE(exchange_->wait(i));
  }
  std::vector<size_t> reduced() {
    const std::lock_guard lock(calls_.mutex);
    return calls_.numels;
  }
  void let_others_be_ready(uint64_t tensors) {
    const std::lock_guard lock(calls_.mutex);
    calls_.others_ready = tensors;
  }

  Calls calls_;
  size_t tensors_ = 0;
  std::unique_ptr<Exchange> exchange_;
};

TEST(BucketEnds, AreThoseOfDistributedDataParallel) {
  // The first of 1 MiB, then of 25; what makes a bucket full is in it, however large.
  EXPECT_EQ(bucket_ends(Numels{1000, 262144, 3000000, 3000000, 3000000, 1000}, kDdp),
            (Ends{2, 5, 6}));
  EXPECT_EQ(bucket_ends(Numels{1000, 102760448, 10}, kDdp), (Ends{2, 3}));
  EXPECT_EQ(bucket_ends(Numels{10, 10}, kDdp), (Ends{2}));
  EXPECT_EQ(bucket_ends(Numels{10, 20, 30}, Fusion{}), (Ends{1, 2, 3}));
}

TEST_F(AllReduce, ABucketGoesWhenItsLastGradientIsReadyAndNotBefore) {
  make({1000, 2000, 7000000, 262144}, kDdp);
  for (int iteration = 1; iteration <= 3; ++iteration) {
    exchange_->push(3);
    ASSERT_TRUE(exchange_->wait(3));
    const auto before = static_cast<size_t>(3 * iteration - 2);
    EXPECT_EQ(reduced().size(), before);
    exchange_->push(2);
    ASSERT_TRUE(exchange_->wait(2));
    exchange_->push(1);  // less than a bucket
    EXPECT_EQ(reduced().size(), before + 1);
    exchange_->push(0);
    wait_for_all();
    EXPECT_EQ(reduced().size(), before + 2);
  }
  EXPECT_EQ(reduced().back(), 3000U);
  EXPECT_TRUE(exchange_->all_hold());
}

TEST_F(AllReduce, EachByItselfWithoutFusion) {
  make({10, 20, 30}, Fusion{});
  push_all();
  wait_for_all();
  EXPECT_EQ(reduced(), (std::vector<size_t>{30, 20, 10}));
  EXPECT_TRUE(exchange_->all_hold());
}

TEST_F(AllReduce, WhatIsReadyOnAllRanksGoesAtOnceUpToTheLimit) {
  make({100, 600, 300, 400}, {.rule = Fusion::Rule::kReady, .bytes = 4000, .cycle_ns = 1000});
  push_all();
  let_others_be_ready(4);
  wait_for_all();
  EXPECT_EQ(reduced(), (std::vector<size_t>{700, 700}));  // a third tensor would be too much
  push_all();
  let_others_be_ready(5);
  ASSERT_TRUE(exchange_->wait(3));
  EXPECT_EQ(reduced().size(), 3U);
  let_others_be_ready(8);
  wait_for_all();
  EXPECT_EQ(reduced(), (std::vector<size_t>{700, 700, 400, 1000}));
  EXPECT_TRUE(exchange_->all_hold());
}

}  // namespace
}  // namespace mercury::emulation
