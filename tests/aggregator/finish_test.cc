// A finish with state between rounds, in an aggregator that has one more than the product's.
#include "aggregator/finish/finish.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "tests/aggregator/harness.h"
#include "tests/aggregator/momentum/momentum.h"
#include "tests/aggregator/reference.h"
#include "tests/allocations.h"

namespace mercury {
namespace {

static_assert(!std::is_copy_constructible_v<aggregation::Finish>);

constexpr ReduceOp kMomentum = ReduceOp::kAverage;  // what this program's aggregator takes it for

// One element's, round after round.
class Trained {
 public:
  double step(double mean) {
    velocity_ = velocity_ / 2 + mean;
    weight_ -= aggregation::momentum_rate(rounds_++) * velocity_;
    return weight_;
  }

 private:
  double velocity_ = 0;
  double weight_ = 0;
  uint32_t rounds_ = 0;
};

AggregationTensor tensor_of(ReduceOp op, uint32_t chunks = 100) {
  return {.tensor = 1,
          .numel = uint64_t{chunks} * 1000,
          .op = op,
          .chunk_elems = 1000,
          .chunk_count = chunks};
}

TEST(StatefulFinish, KeepsItsNumbersBeyondBothGenerations) {
  Bench bench(2);
  bench.add_tensor(3, 2, Dtype::kF32, kMomentum, 0xfffffffe);  // the rounds wrap around
  Trained first;
  Trained second;
  Trained last;
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t round = 0xfffffffe + i;
    const float value = static_cast<float>(i + 1);
    EXPECT_EQ(bench.push(1, round, 0, floats({0, value})), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(0, round, 0, floats({2, -3})), PushVerdict::kCompleted);
    EXPECT_EQ(bench.push(0, round, 1, floats({value})), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(1, round, 1, floats({value})), PushVerdict::kCompleted);
    EXPECT_EQ(bench.values<float>(round, 0),
              (std::vector{static_cast<float>(first.step(1)),
                           static_cast<float>(second.step((value - 3.0) / 2))}));
    EXPECT_EQ(bench.values<float>(round, 1),
              (std::vector{static_cast<float>(last.step(double{value}))}));
  }
}

TEST(StatefulFinish, GetsARoundOnceWhenItIsComplete) {
  Bench bench(2);
  bench.add_tensor(1, 1, Dtype::kF64, kMomentum);
  const auto value = [](double v) { return bytes_of(std::vector{v}); };
  Trained trained;
  for (uint32_t round = 1; round <= 4; ++round) {
    EXPECT_EQ(bench.push_corrupt(0, round, 0, value(7)), PushVerdict::kCorrupt);
    EXPECT_EQ(bench.push(0, round, 0, value(7)), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(0, round, 0, value(7)), PushVerdict::kDuplicate);
    // Its next life takes that back, and the round begins anew.
    replace(bench.aggregator, 0, round);
    const Bytes again = value(1);
    Contribution next_life = Bench::contribution(0, round, 0, again);
    next_life.incarnation = round;
    EXPECT_EQ(bench.push(1, round, 0, value(3)), PushVerdict::kAdded);
    EXPECT_EQ(bench.aggregator.push(next_life).verdict, PushVerdict::kCompleted);
    EXPECT_EQ(bench.push(1, round, 0, value(3)), PushVerdict::kOldRound);
    EXPECT_EQ(bench.values<double>(round, 0), std::vector{trained.step(2)});
    replace(bench.aggregator, 0, incarnation_of(0));
  }
}

// In the types that are widened, too; a sum is still its contribution to the bit.
TEST(StatefulFinish, SaysThatItIsNeededForOneWorker) {
  Bench half(1);
  half.add_tensor(1, 1, Dtype::kF16, kMomentum);
  Bench single(1);
  single.add_tensor(1, 1, Dtype::kF32, kMomentum);
  Bench sum(1);
  sum.add_tensor(1, 1, Dtype::kF32, ReduceOp::kSum);
  Trained trained;
  for (uint32_t round = 1; round <= 4; ++round) {
    const uint16_t two = reference::nearest_half(2, reference::kF16Format);
    const auto expected = static_cast<float>(trained.step(2));
    ASSERT_EQ(half.push(0, round, 0, bytes_of(std::vector{two})), PushVerdict::kCompleted);
    EXPECT_EQ(half.values<uint16_t>(round, 0),
              std::vector{reference::nearest_half(expected, reference::kF16Format)});
    ASSERT_EQ(single.push(0, round, 0, floats({2})), PushVerdict::kCompleted);
    EXPECT_EQ(single.values<float>(round, 0), std::vector{expected});
    const Bytes other_nan(4, std::byte{0xff});
    ASSERT_EQ(sum.push(0, round, 0, other_nan), PushVerdict::kCompleted);
    EXPECT_EQ(sum.result(round, 0), other_nan);
  }
}

// What the rule keeps apart of a round and what the finish keeps between rounds do not touch.
TEST(StatefulFinish, HasOtherMemoryThanTheRule) {
  Bench bench(4, true);
  bench.add_tensor(40, 20, Dtype::kF32, kMomentum);
  Trained trained;
  for (uint32_t round = 1; round <= 6; ++round) {
    const std::vector expected(20, static_cast<float>(trained.step(2.5)));
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      for (uint32_t worker = 3; worker > 0; --worker) {  // all kept apart
        ASSERT_EQ(bench.push(worker, round, chunk,
                             floats(std::vector<float>(20, static_cast<float>(worker + 1)))),
                  PushVerdict::kAdded);
      }
      ASSERT_EQ(bench.push(0, round, chunk, floats(std::vector<float>(20, 1))),
                PushVerdict::kCompleted);
      EXPECT_EQ(bench.values<float>(round, chunk), expected);
    }
  }
}

TEST(StatefulFinish, FollowsAQuorum) {
  Aggregator aggregator({[](void*, PayloadPin&) { return false; }});
  ASSERT_TRUE(
      aggregator.add_job(kJob, {.workers = 3, .terms = {.quorum = 2, .patience_ms = 1000}}));
  for (uint16_t w = 0; w < 3; ++w) {
    ASSERT_TRUE(aggregator.admit(kJob, Rank(w), incarnation_of(w)));
  }
  ASSERT_TRUE(aggregator.add_tensor(
      kJob, {.tensor = 1, .numel = 1, .op = kMomentum, .chunk_elems = 1, .chunk_count = 1}));
  const auto push = [&](uint32_t worker, uint32_t round, float value) {
    const Bytes elements = floats({value});
    return aggregator.push(Bench::contribution(worker, round, 0, elements)).verdict;
  };
  Trained trained;
  for (uint32_t round = 1; round <= 4; ++round) {
    EXPECT_EQ(push(0, round, 2), PushVerdict::kAdded);
    EXPECT_EQ(push(1, round, 4), PushVerdict::kAdded);
    uint32_t looks = 10;
    OverdueChunk due;
    ASSERT_TRUE(aggregator.take_overdue(2'000'000'000, looks, due));
    EXPECT_EQ(push(2, round, 100), PushVerdict::kOldRound) << "too late for this one";
    ChunkResult out;
    ASSERT_TRUE(aggregator.result(kJob, {0, Round(round), 0}, out));
    EXPECT_EQ(out.crc, wire::crc32c(out.elements));
    EXPECT_TRUE(out.partial);
    EXPECT_EQ(values_of<float>(out.elements.last(4)),
              std::vector{static_cast<float>(trained.step(3))});
  }
}

TEST(StatefulFinish, CountsWhatItKeeps) {
  const auto bytes = [](ReduceOp op) {
    Bench bench(2);
    EXPECT_TRUE(bench.aggregator.add_tensor(kJob, tensor_of(op)));
    EXPECT_EQ(bench.aggregator.memory_bytes(), bench.aggregator.memory_bytes(kJob));
    return bench.aggregator.memory_bytes();
  };
  const uint64_t of_sums = bytes(ReduceOp::kSum);
  const uint64_t with_state = bytes(kMomentum);
  EXPECT_NEAR(static_cast<double>(with_state - of_sums), 2 * 4 * 100'000, 4096);

  Bench bench(2, false, with_state - 1);
  const Status refused = bench.aggregator.add_tensor(kJob, tensor_of(kMomentum));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kLimit);
  EXPECT_NE(refused.error().message.find(std::to_string(with_state)), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(bench.aggregator.memory_bytes(), 0U);
  EXPECT_TRUE(bench.aggregator.add_tensor(kJob, tensor_of(ReduceOp::kSum)));
}

TEST(StatefulFinish, MayBeImpossible) {
  Bench bench(2);
  AggregationTensor spec = tensor_of(kMomentum);
  spec.dtype = Dtype::kBf16;
  const Status refused = bench.aggregator.add_tensor(kJob, spec);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kUnsupported);
  EXPECT_EQ(refused.error().message, "no momentum in bf16");

  spec = tensor_of(kMomentum);
  spec.chunk_elems = 16384;
  spec.chunk_count = 0xffffffff;
  spec.numel = uint64_t{16384} * 0xffffffff;
  EXPECT_EQ(bench.aggregator.add_tensor(kJob, spec).error().code, Errc::kNoMemory);
  EXPECT_EQ(bench.aggregator.memory_bytes(), 0U);
  EXPECT_TRUE(bench.aggregator.add_tensor(kJob, tensor_of(kMomentum)));
}

TEST(StatefulFinish, AllocatesWhenItsTensorIsDeclaredAndNotLater) {
  Bench bench(1);
  bench.add_tensor(1, 1, Dtype::kF32, kMomentum);
  const Bytes elements = floats({2});
  const uint64_t before = allocations();
  for (uint32_t round = 1; round <= 4; ++round) bench.push(0, round, 0, elements);
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace mercury
