// Jobs, tensors and memory: what is accepted, what is refused, and what it says.
#include <gtest/gtest.h>

#include <string>

#include "aggregator/aggregator.h"
#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

TEST(AggregatorLimits, JobsHaveFromOneWorkerToTheMost) {
  Bench bench(1);
  EXPECT_EQ(bench.aggregator.add_job(JobSlot{0}, {.workers = 0}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(bench.aggregator.add_job(JobSlot{0}, {.workers = kMaxWorkers + 1}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(bench.aggregator.add_job(kJob, {.workers = 1}).error().code, Errc::kExists);
  EXPECT_TRUE(bench.aggregator.add_job(JobSlot{65535}, {.workers = kMaxWorkers}));
}

TEST(AggregatorLimits, UnknownJobsAndWorkersAreNamed) {
  Bench bench(2);
  EXPECT_EQ(bench.aggregator.admit(JobSlot{8}, 0, 1).error().code, Errc::kNotFound);
  EXPECT_EQ(bench.aggregator.admit(kJob, 2, 1).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(bench.aggregator.add_tensor(JobSlot{8}, {}).error().code, Errc::kNotFound);
  EXPECT_EQ(bench.aggregator.memory_bytes(JobSlot{8}), 0U);
  bench.aggregator.remove_job(JobSlot{8});
}

TEST(AggregatorLimits, ImpossibleTensorsAreRefused) {
  Bench bench(2);
  const AggregationTensor good{.tensor = 1, .numel = 10, .chunk_elems = 4, .chunk_count = 3};
  const auto code = [&](auto change) {
    AggregationTensor spec = good;
    change(spec);
    const Status status = bench.aggregator.add_tensor(kJob, spec);
    return status ? Errc::kOk : status.error().code;
  };
  using T = AggregationTensor;
  EXPECT_EQ(code([](T& t) { t.numel = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.chunk_elems = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.chunk_elems = 16385; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.chunk_count = 4; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.first_chunk = 1; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.first_chunk = 0xffffffff; }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.dtype = static_cast<Dtype>(8); }), Errc::kInvalidArgument);
  EXPECT_EQ(code([](T& t) { t.op = static_cast<ReduceOp>(4); }), Errc::kInvalidArgument);
  for (const Dtype type : {Dtype::kI32, Dtype::kI64, Dtype::kI8, Dtype::kU8}) {
    EXPECT_EQ(code([&](T& t) { t.dtype = type, t.op = ReduceOp::kAverage; }), Errc::kUnsupported);
  }
  EXPECT_EQ(bench.aggregator.memory_bytes(), 0U);
  EXPECT_EQ(code([](T&) {}), Errc::kOk);
  EXPECT_EQ(code([](T&) {}), Errc::kExists);
}

TEST(AggregatorLimits, AllJobsTogetherHaveALimit) {
  Aggregator aggregator({[](void*, PayloadPin&) { return false; }}, 10'000);
  constexpr JobSlot kOther{1};
  for (const JobSlot job : {kJob, kOther}) ASSERT_TRUE(aggregator.add_job(job, {.workers = 1}));
  const AggregationTensor tensor{
      .tensor = 7, .numel = 600, .chunk_elems = 300, .chunk_count = 2};  // two pages
  ASSERT_TRUE(aggregator.add_tensor(kJob, tensor));
  const Status refused = aggregator.add_tensor(kOther, tensor);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kLimit);
  EXPECT_NE(refused.error().message.find("needs 8192 bytes; all jobs have 8192 of their limit of "
                                         "10000"),
            std::string::npos)
      << refused.error().message;
  aggregator.remove_job(kJob);
  EXPECT_TRUE(aggregator.add_tensor(kOther, tensor));
}

TEST(AggregatorLimits, ATensorBeyondAllMemoryIsAnError) {
  Bench bench(256, true);
  const Status status = bench.aggregator.add_tensor(kJob, {.tensor = 1,
                                                           .numel = uint64_t{16384} * 0xffffffff,
                                                           .chunk_elems = 16384,
                                                           .chunk_count = 0xffffffff});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kNoMemory);
  EXPECT_EQ(bench.aggregator.memory_bytes(), 0U);
}

TEST(AggregatorLimits, MemoryIsAccountedAndBounded) {
  constexpr uint64_t kLimit = 1 << 20;
  Bench bench(2, false, kLimit);
  AggregationTensor spec{.tensor = 1, .numel = 100000, .chunk_elems = 1000, .chunk_count = 100};
  ASSERT_TRUE(bench.aggregator.add_tensor(kJob, spec));
  const uint64_t used = bench.aggregator.memory_bytes(kJob);
  EXPECT_GE(used, 2 * 4 * 100000U) << "two generations";
  EXPECT_LE(used, 2 * 4 * 100000U * 11 / 10);
  spec.tensor = 2;
  const Status status = bench.aggregator.add_tensor(kJob, spec);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kLimit);
  for (const std::string& number :
       {std::to_string(used), std::to_string(kLimit), std::string("tensor 2")}) {
    EXPECT_NE(status.error().message.find(number), std::string::npos) << status.error().message;
  }
  EXPECT_EQ(bench.aggregator.memory_bytes(kJob), used);
  spec = {.tensor = 2, .numel = 100, .chunk_elems = 100, .chunk_count = 1};
  EXPECT_TRUE(bench.aggregator.add_tensor(kJob, spec)) << "a smaller one still fits";
}

TEST(AggregatorLimits, HalvesNeedRoomForTheirFloats) {
  const auto bytes = [](Dtype type, uint16_t workers, bool deterministic) {
    Bench bench(workers, deterministic);
    bench.add_tensor(1000000, 1000, type);
    return static_cast<double>(bench.aggregator.memory_bytes(kJob)) / 1e6;
  };
  EXPECT_NEAR(bytes(Dtype::kF32, 4, false), 8.2, 0.3);
  EXPECT_NEAR(bytes(Dtype::kF16, 4, false), 8.2, 0.3);
  EXPECT_NEAR(bytes(Dtype::kF64, 4, false), 16.2, 0.3);
  EXPECT_NEAR(bytes(Dtype::kF32, 4, true), 8.2 + 12, 0.5);
  EXPECT_NEAR(bytes(Dtype::kBf16, 4, true), 8.2 + 6, 0.5);
  EXPECT_NEAR(bytes(Dtype::kF32, 2, true), 8.2, 0.3) << "order cannot matter";
  EXPECT_NEAR(bytes(Dtype::kI32, 4, true), 8.2, 0.3) << "order cannot matter";
}

TEST(AggregatorLimits, AnEmptyShareCostsNothing) {
  Bench bench(2);
  ASSERT_TRUE(bench.aggregator.add_tensor(
      kJob, {.tensor = 1, .numel = 10, .chunk_elems = 4, .first_chunk = 3, .chunk_count = 0}));
  EXPECT_EQ(bench.aggregator.memory_bytes(kJob), 0U);
  EXPECT_EQ(bench.push(0, 1, 0, Bytes(16)), PushVerdict::kBadChunk);
  EXPECT_EQ(bench.push(0, 1, 3, Bytes(16)), PushVerdict::kBadChunk);
  EXPECT_TRUE(bench.result(1, 0).empty());
}

TEST(AggregatorLimits, ThousandsOfTensorsAreFoundAgain) {
  Bench bench(1);
  for (uint32_t i = 0; i < 5000; ++i) {
    ASSERT_TRUE(bench.aggregator.add_tensor(
        kJob, {.tensor = TensorId(i * 0x10001), .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  }
  for (uint32_t i = 0; i < 5000; ++i) {
    const Bytes payload = bytes_of(std::vector<float>{static_cast<float>(i)});
    Contribution c = Bench::contribution(0, 1, 0, payload);
    c.tensor = TensorId(i * 0x10001);
    const Pushed pushed = bench.aggregator.push(c);
    ASSERT_EQ(pushed.verdict, PushVerdict::kCompleted);
    ASSERT_EQ(pushed.tensor, TensorIndex(i));
    c.tensor = TensorId(i * 0x10001 + 1);
    ASSERT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kUnknownTensor);
  }
  for (uint32_t i = 0; i < 5000; ++i) {
    ChunkResult result;
    ASSERT_TRUE(bench.aggregator.result(kJob, {TensorIndex(i), 1, 0}, result));
    EXPECT_EQ(values_of<float>(result.elements), std::vector<float>{static_cast<float>(i)});
  }
  ChunkResult none;
  EXPECT_FALSE(bench.aggregator.result(kJob, {5000, 1, 0}, none));
}

TEST(AggregatorLimits, ARemovedJobGivesItsMemoryBack) {
  Bench bench(1);
  bench.add_tensor(1000, 100);
  ASSERT_TRUE(bench.aggregator.add_job(JobSlot{4}, {.workers = 1}));
  ASSERT_TRUE(bench.aggregator.add_tensor(
      JobSlot{4}, {.tensor = 1, .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  const uint64_t other = bench.aggregator.memory_bytes(JobSlot{4});
  EXPECT_EQ(bench.aggregator.memory_bytes(), bench.aggregator.memory_bytes(kJob) + other);
  bench.aggregator.remove_job(kJob);
  EXPECT_EQ(bench.aggregator.memory_bytes(kJob), 0U);
  EXPECT_EQ(bench.aggregator.memory_bytes(), other);
  EXPECT_EQ(bench.push(0, 1, 0, Bytes(400)), PushVerdict::kUnknownTensor);
  ASSERT_TRUE(bench.aggregator.add_job(kJob, {.workers = 1}));
  EXPECT_EQ(bench.push(0, 1, 0, Bytes(400)), PushVerdict::kBadIncarnation);
  ASSERT_TRUE(bench.aggregator.admit(kJob, 0, incarnation_of(0)));
  bench.add_tensor(1000, 100);
  EXPECT_EQ(bench.push(0, 1, 0, Bytes(400)), PushVerdict::kCompleted);
}

}  // namespace
}  // namespace mercury
