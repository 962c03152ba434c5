// The port is told of the memory that results lie in, and of nothing else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

// A port's memory, that takes so many mappings.
class Mappings {
 public:
  explicit Mappings(size_t most) : most_(most) {}
  PortMemory port() {
    return {[](void*, PayloadPin&) { return false; }, this,
            [](void* self, std::span<std::byte> memory) {
              return static_cast<Mappings*>(self)->map(memory);
            },
            [](void* self, MemoryKey key) {
              EXPECT_EQ(static_cast<Mappings*>(self)->mapped.erase(key.value), 1U);
            }};
  }
  bool holds(std::span<const std::byte> payload) const {
    for (const auto& [key, memory] : mapped) {
      if (payload.data() >= memory.data() &&
          payload.data() + payload.size() <= memory.data() + memory.size()) {
        return true;
      }
    }
    return false;
  }
  std::map<uint32_t, std::span<std::byte>> mapped;

 private:
  Result<MemoryKey> map(std::span<std::byte> memory) {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    EXPECT_FALSE(memory.empty());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % page, 0U);
    EXPECT_EQ(memory.size() % page, 0U);
    if (mapped.size() == most_) return Error(Errc::kLimit, "no more mappings");
    mapped.emplace(next_, memory);
    return MemoryKey(next_++);
  }
  size_t most_;
  uint32_t next_ = 7;  // of no tensor
};

constexpr uint32_t kElems = 100;
constexpr uint32_t kChunks = 90;

void add(Aggregator& aggregator, uint32_t tensor, uint16_t workers, uint16_t quorum = 0) {
  if (tensor == 0) {
    ASSERT_TRUE(aggregator.add_job(
        kJob,
        {.workers = workers, .terms = {.quorum = quorum, .patience_ms = quorum > 0 ? 1U : 0U}}));
    for (uint16_t w = 0; w < workers; ++w) {
      ASSERT_TRUE(aggregator.admit(kJob, Rank(w), incarnation_of(w)));
    }
  }
  ASSERT_TRUE(aggregator.add_tensor(kJob, {.tensor = TensorId(tensor),
                                           .numel = kElems * kChunks,
                                           .chunk_elems = kElems,
                                           .chunk_count = kChunks}));
}

// Round `round` of one chunk: its result.
ChunkResult sum(Aggregator& aggregator, uint32_t tensor, uint32_t round, uint32_t chunk,
                uint16_t workers) {
  const Bytes elements = bytes_of(std::vector<float>(kElems, 3));
  for (uint32_t w = 0; w < workers; ++w) {
    Contribution c = Bench::contribution(w, round, chunk, elements);
    c.tensor = TensorId(tensor);
    EXPECT_EQ(aggregator.push(c).verdict,
              w + 1 < workers ? PushVerdict::kAdded : PushVerdict::kCompleted);
  }
  ChunkResult out;
  EXPECT_TRUE(aggregator.result(kJob, {TensorIndex(tensor), Round(round), ChunkIndex(chunk)}, out));
  return out;
}

TEST(AggregatorMapping, HoldsEveryResultUntilTheJobIsRemoved) {
  for (const uint16_t quorum : {uint16_t{0}, uint16_t{2}}) {
    Mappings mappings(100);
    Aggregator aggregator(mappings.port());
    for (uint32_t tensor = 0; tensor < 3; ++tensor) add(aggregator, tensor, 2, quorum);
    EXPECT_EQ(mappings.mapped.size(), 3U);
    for (uint32_t tensor = 0; tensor < 3; ++tensor) {
      for (uint32_t round = 1; round < 4; ++round) {
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
          const ChunkResult result = sum(aggregator, tensor, round, chunk, 2);
          EXPECT_TRUE(mappings.holds(result.elements));
          EXPECT_NE(result.pin, nullptr);
        }
      }
    }
    EXPECT_EQ(aggregator.unmapped_bytes(), 0U);
    aggregator.remove_job(kJob);
    EXPECT_TRUE(mappings.mapped.empty());
  }
}

// What only some of a job's workers are in stands behind a bitmap.
TEST(AggregatorMapping, HoldsPartialResults) {
  Mappings mappings(100);
  Aggregator aggregator(mappings.port());
  add(aggregator, 0, 3, 1);
  const Bytes zeros(4 * kElems);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    Contribution c = Bench::contribution(1, 1, chunk, zeros);
    c.tensor = 0;
    ASSERT_EQ(aggregator.push(c).verdict, PushVerdict::kAdded);
  }
  OverdueChunk overdue;
  uint32_t looks = 10 * kChunks;
  uint32_t found = 0;
  while (aggregator.take_overdue(10'000'000, looks, overdue)) {
    ChunkResult result;
    ASSERT_TRUE(aggregator.result(kJob, overdue.key, result));
    EXPECT_TRUE(result.partial);
    EXPECT_TRUE(mappings.holds(result.elements));
    ++found;
  }
  EXPECT_EQ(found, kChunks);
}

TEST(AggregatorMapping, AnEmptyShareIsNotMapped) {
  Mappings mappings(100);
  Aggregator aggregator(mappings.port());
  ASSERT_TRUE(aggregator.add_job(kJob, {.workers = 1}));
  ASSERT_TRUE(aggregator.add_tensor(kJob, {.tensor = 1, .numel = 1000, .chunk_elems = 100}));
  EXPECT_TRUE(mappings.mapped.empty());
  aggregator.remove_job(kJob);
}

TEST(AggregatorMapping, WhatThePortCannotMapIsCopiedAndCounted) {
  Mappings mappings(1);
  Aggregator aggregator(mappings.port());
  add(aggregator, 0, 1);
  const uint64_t each = aggregator.memory_bytes();
  add(aggregator, 1, 1);
  add(aggregator, 2, 1);
  EXPECT_EQ(aggregator.unmapped_bytes(), 2 * each);
  EXPECT_NE(sum(aggregator, 0, 1, 5, 1).pin, nullptr);
  for (uint32_t tensor = 1; tensor < 3; ++tensor) {
    const ChunkResult result = sum(aggregator, tensor, 1, 5, 1);
    EXPECT_EQ(result.pin, nullptr);
    EXPECT_EQ(values_of<float>(result.elements), std::vector<float>(kElems, 3));
  }
  aggregator.remove_job(kJob);
  EXPECT_TRUE(mappings.mapped.empty());
  EXPECT_EQ(aggregator.unmapped_bytes(), 0U);
  add(aggregator, 0, 1);
  EXPECT_EQ(mappings.mapped.size(), 1U) << "there is room again";
}

// A host that stops destroys its port first.
TEST(AggregatorMapping, NothingIsAskedOfAPortThatMayBeGone) {
  Mappings mappings(100);
  {
    Aggregator aggregator(mappings.port());
    add(aggregator, 0, 1);
  }
  EXPECT_EQ(mappings.mapped.size(), 1U);
}

}  // namespace
}  // namespace mercury
