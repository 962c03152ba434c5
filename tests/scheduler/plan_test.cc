#include "scheduler/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace mercury {
namespace {

TEST(ChunkElems, RoundsDownToWholeRegistersWhereOneFits) {
  EXPECT_EQ(chunk_elems(1424, 4), 352u);
  EXPECT_EQ(chunk_elems(1424, 2), 704u);
  EXPECT_EQ(chunk_elems(64, 4), 16u);
  EXPECT_EQ(chunk_elems(63, 4), 15u);
  EXPECT_EQ(chunk_elems(8, 8), 1u);
}

TEST(ChunkElems, IsZeroWhenNothingFits) {
  EXPECT_EQ(chunk_elems(7, 8), 0u);
  EXPECT_EQ(chunk_elems(0, 4), 0u);
  EXPECT_EQ(chunk_elems(1424, 0), 0u);
}

TEST(ChunkCount, CountsTheShortLastChunk) {
  EXPECT_EQ(chunk_count(1, 352), 1u);
  EXPECT_EQ(chunk_count(352, 352), 1u);
  EXPECT_EQ(chunk_count(353, 352), 2u);
  EXPECT_EQ(chunk_count(0, 352), 0u);
}

TEST(ChunkCount, IsZeroWhenChunksCannotBeNumbered) {
  EXPECT_EQ(chunk_count(5, 0), 0u);
  EXPECT_EQ(chunk_count(std::numeric_limits<uint64_t>::max(), 1), 0u);
  EXPECT_EQ(chunk_count(uint64_t{1} << 32, 1), 0u);
  EXPECT_EQ(chunk_count((uint64_t{1} << 32) - 1, 1), std::numeric_limits<uint32_t>::max());
}

// Every chunk is in exactly one shard, and shards differ by at most one chunk.
void expect_partition(Shard first, uint32_t chunks, uint16_t shards) {
  std::vector<int> owner(chunks, -1);
  uint32_t least = chunks, most = 0;
  for (uint16_t shard = 0; shard < shards; ++shard) {
    const ChunkSpan span = ShardPlan(first, chunks, shards).span(Shard(shard));
    ASSERT_LE(uint64_t{span.first.value} + span.count, chunks);
    for (uint32_t i = 0; i < span.count; ++i) {
      ASSERT_EQ(owner[span.at(i).value], -1);
      owner[span.at(i).value] = shard;
      ASSERT_EQ(ShardPlan(first, chunks, shards).row_of(span.at(i)), i);
    }
    least = std::min(least, span.count);
    most = std::max(most, span.count);
  }
  for (int o : owner) ASSERT_NE(o, -1);
  EXPECT_LE(most - least, 1u);
}

TEST(ShardSpan, PartitionsEveryTensor) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Shard first(static_cast<uint16_t>(random()));
    const uint32_t chunks = static_cast<uint32_t>(random()) % 700;
    const auto shards = static_cast<uint16_t>(1 + random() % 40);
    SCOPED_TRACE(testing::Message() << first.value << " " << chunks << " " << shards);
    expect_partition(first, chunks, shards);
  }
}

// However many chunks each has, of those that are declared one after the other no shard has more
// than one chunk more than another, from whichever to whichever.
TEST(ShardTurn, SpreadsTensorsTogether) {
  std::mt19937 random(3);
  for (const uint16_t shards : std::initializer_list<uint16_t>{1, 2, 3, 8, 64, 256}) {
    for (int trial = 0; trial < 20; ++trial) {
      ShardTurn turn(shards);
      std::vector<uint32_t> held(shards);
      const int skipped = trial;
      for (int tensor = 0; tensor < 100; ++tensor) {
        const auto chunks = static_cast<uint32_t>(1 + random() % (trial % 2 == 0 ? 3 : 700));
        const ShardPlan plan(turn.take(chunks), chunks, shards);
        if (tensor < skipped) continue;
        for (uint16_t shard = 0; shard < shards; ++shard)
          held[shard] += plan.span(Shard(shard)).count;
        const auto [least, most] = std::minmax_element(held.begin(), held.end());
        ASSERT_LE(*most - *least, 1U) << shards << " shards, " << tensor - skipped << " tensors";
      }
    }
  }
}

TEST(ShardTurn, HoldsAtTheEdgesOfItsTypes) {
  constexpr uint32_t kAll = std::numeric_limits<uint32_t>::max();
  ShardTurn turn(65535);
  uint64_t chunks = 0;
  for (int i = 0; i < 9; ++i, chunks += kAll) EXPECT_EQ(turn.take(kAll).value, chunks % 65535);
}

TEST(ShardTurn, OfNumbersSpreadsTensorsOfOneChunkOverAllShards) {
  for (uint32_t tensor = 0; tensor < 12; ++tensor) {
    const ShardPlan plan(ShardTurn::of_number(TensorId(tensor), 4), 1, 4);
    for (uint16_t shard = 0; shard < 4; ++shard) {
      EXPECT_EQ(plan.span(Shard(shard)).count, tensor % 4 == shard ? 1U : 0U);
    }
  }
}

TEST(ShardSpan, HoldsAtTheEdgesOfItsTypes) {
  const uint32_t all = std::numeric_limits<uint32_t>::max();
  uint64_t sum = 0;
  for (uint32_t shard = 0; shard < 65535; ++shard) {
    sum += ShardPlan(77, all, 65535).span(Shard(static_cast<uint16_t>(shard))).count;
  }
  EXPECT_EQ(sum, all);
}

TEST(ShardSpan, IsEmptyBeyondTheShards) {
  EXPECT_EQ(ShardPlan(0, 10, 2).span(2).count, 0u);
  EXPECT_EQ(ShardPlan(0, 10, 0).span(0).count, 0u);
}

TEST(ShardPlan, PutsAWholeTensorWhereItsKeySays) {
  for (uint16_t shards = 1; shards < 9; ++shards) {
    for (uint32_t tensor = 0; tensor < 50; ++tensor) {
      const ShardPlan plan = ShardPlan::whole(TensorId(tensor), 77, shards);
      for (uint16_t shard = 0; shard < shards; ++shard) {
        const ChunkSpan span = plan.span(Shard(shard));
        EXPECT_EQ(span.count, shard == 9973 * tensor % shards ? 77U : 0U);
        EXPECT_EQ(span.first, ChunkIndex(0));
      }
      EXPECT_EQ(plan.span(Shard(shards)).count, 0U);
    }
  }
}

TEST(PartitionPlan, CutsEveryShareEvenlyAndInOrder) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const auto shards = static_cast<uint16_t>(1 + random() % 40);
    const Shard first(static_cast<uint16_t>(random()));
    const auto chunks = static_cast<uint32_t>(1 + random() % 2000);
    const PartitionPlan plan =
        PartitionPlan::make(first, chunks, shards, 1000, random() % 3 == 0 ? 0 : random() % 99'999);
    std::vector<uint32_t> sizes(plan.partitions());
    for (uint16_t shard = 0; shard < shards; ++shard) {
      const ChunkSpan share = ShardPlan(first, chunks, shards).span(Shard(shard));
      uint32_t next = share.first.value;
      for (uint32_t partition = 0; partition < plan.partitions(); ++partition) {
        const ChunkSpan span = plan.span(Shard(shard), partition);
        ASSERT_EQ(span.first.value, next);
        next += span.count;
        sizes[partition] += span.count;
        for (uint32_t i = 0; i < span.count; ++i) {
          ASSERT_EQ(plan.shard_of(span.at(i)), Shard(shard));
          ASSERT_EQ(plan.partition_of(span.at(i)), partition);
        }
      }
      ASSERT_EQ(next, share.end().value);
    }
    for (uint32_t partition = 0; partition + 1 < sizes.size(); ++partition) {
      ASSERT_EQ(sizes[partition], plan.partition_chunks);
    }
    ASSERT_LE(sizes.back(), plan.partition_chunks);
    ASSERT_GT(sizes.back(), 0U);
  }
}

TEST(PartitionPlan, TakesTheNearestNumberOfChunks) {
  EXPECT_EQ(PartitionPlan::make(0, 1000, 2, 8896, 160'000).partition_chunks, 18U);
  EXPECT_EQ(PartitionPlan::make(0, 1000, 2, 8896, 1).partition_chunks, 1U);
  EXPECT_EQ(PartitionPlan::make(0, 10, 2, 8896, 160'000).partition_chunks, 10U);
  EXPECT_EQ(PartitionPlan::make(0, 10, 2, 8896, 0).partitions(), 1U);
}

}  // namespace
}  // namespace mercury
