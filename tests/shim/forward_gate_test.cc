// What a gate lets through, against what a plain list of chunks says: a group goes when the last of
// its chunks is complete, what was answered before the gate was there is not waited for, and what
// is drained or dropped half way is all there was.
#include "shim/exchange/server/forward_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

using Chunks = std::set<std::pair<uint32_t, uint32_t>>;  // tensor, chunk

class ForwardGateTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kChunkBytes = 1024;

  void add(uint32_t chunks, uint16_t shards, Shard shard, uint32_t group_chunks) {
    const Shard first(static_cast<uint16_t>(plans_.size()));
    plans_.push_back(PartitionPlan::make(first, chunks, shards, kChunkBytes,
                                         uint64_t{group_chunks} * kChunkBytes));
    shards_.push_back(shard);
    gate_.add_tensor(plans_.back(), shard);
  }
  // In a random order, the chunks of a tensor that this engine holds.
  std::vector<ChunkIndex> share_of(uint32_t tensor, Random& random) const {
    const ChunkSpan share = gate_.share_of(TensorIndex(tensor));
    std::vector<ChunkIndex> all;
    for (uint32_t i = 0; i < share.count; ++i) all.push_back(share.at(i));
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
    return all;
  }
  std::pair<uint32_t, uint32_t> group_of(uint32_t tensor, ChunkIndex chunk) const {
    return {tensor, plans_[tensor].partition_of(chunk)};
  }
  void note(const ChunkRange& range, Round round, Chunks& all) {
    EXPECT_EQ(range.round, round);
    EXPECT_EQ(range.priority, priority_of(range.tensor.value));
    for (uint32_t i = 0; i < range.chunks.count; ++i) {
      EXPECT_TRUE(all.emplace(range.tensor.value, range.chunks.at(i).value).second) << "twice";
    }
  }
  Chunks complete(uint32_t tensor, ChunkIndex chunk, Round round) {
    Chunks all;
    gate_.complete({TensorIndex(tensor), round, {chunk, 1}, priority_of(tensor)},
                   [&](const ChunkRange& range) { note(range, round, all); });
    return all;
  }
  Chunks drain(Random& random, Round round) {
    Chunks all;
    for (bool empty = false; !empty;) {
      uint32_t looks = 1 + static_cast<uint32_t>(random.below(4));
      const uint32_t before = looks;
      uint32_t chunks = 0;
      empty = gate_.drain(looks, [&](const ChunkRange& range) {
        note(range, round, all);
        chunks += range.chunks.count;
      });
      EXPECT_LE(chunks, 8 * before) << "in one step";
      EXPECT_TRUE(empty || looks == 0);
    }
    return all;
  }
  static uint16_t priority_of(uint32_t tensor) { return static_cast<uint16_t>(100 + tensor); }

  ForwardGate gate_;
  std::vector<PartitionPlan> plans_;
  std::vector<Shard> shards_;
};

TEST_F(ForwardGateTest, AGroupGoesWithItsLastChunk) {
  add(5, 1, Shard(0), 2);
  EXPECT_TRUE(complete(0, ChunkIndex(1), Round(7)).empty());
  EXPECT_TRUE(complete(0, ChunkIndex(3), Round(7)).empty());
  EXPECT_EQ(complete(0, ChunkIndex(0), Round(7)), (Chunks{{0, 0}, {0, 1}}));
  EXPECT_EQ(complete(0, ChunkIndex(4), Round(7)), (Chunks{{0, 4}})) << "the last group is shorter";
  EXPECT_EQ(complete(0, ChunkIndex(2), Round(7)), (Chunks{{0, 2}, {0, 3}}));
  EXPECT_TRUE(complete(0, ChunkIndex(0), Round(8)).empty()) << "each round anew";
  EXPECT_EQ(complete(0, ChunkIndex(1), Round(8)), (Chunks{{0, 0}, {0, 1}}));
}

TEST_F(ForwardGateTest, WhatWasAnsweredBeforeIsNotWaitedFor) {
  add(4, 1, Shard(0), 4);
  gate_.answered(TensorIndex(0), ChunkIndex(2));
  gate_.answered(TensorIndex(0), ChunkIndex(0));
  EXPECT_TRUE(complete(0, ChunkIndex(3), Round(1)).empty());
  EXPECT_EQ(complete(0, ChunkIndex(1), Round(1)), (Chunks{{0, 1}, {0, 3}}));
}

TEST_F(ForwardGateTest, KeepsAndGivesBackWhatAListWould) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    gate_ = ForwardGate();
    plans_.clear();
    shards_.clear();
    const auto tensors = static_cast<uint32_t>(1 + random.below(5));
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      const auto shards = static_cast<uint16_t>(1 + random.below(3));
      add(static_cast<uint32_t>(1 + random.below(60)), shards,
          Shard(static_cast<uint16_t>(random.below(shards))),
          static_cast<uint32_t>(random.below(20)));
    }
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> missing;  // by group
    std::map<std::pair<uint32_t, uint32_t>, Chunks> held;
    for (Round round(1); round.since(Round(1)) < 3; round = round.next()) {
      for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
        const std::vector<ChunkIndex> chunks = share_of(tensor, random);
        for (const ChunkIndex chunk : chunks) ++missing[group_of(tensor, chunk)];
        size_t next = 0;
        // The first round was open when the gate came.
        const size_t before = round == Round(1) ? random.below(chunks.size() + 1) : 0;
        for (; next < before; ++next) {
          gate_.answered(TensorIndex(tensor), chunks[next]);
          --missing[group_of(tensor, chunks[next])];
        }
        // The last one is not finished.
        const bool last = round.since(Round(1)) == 2;
        const size_t end = last ? random.below(chunks.size() + 1) : chunks.size();
        for (; next < end; ++next) {
          const auto group = group_of(tensor, chunks[next]);
          held[group].emplace(tensor, chunks[next].value);
          Chunks expected;
          if (--missing[group] == 0) expected.swap(held[group]);
          ASSERT_EQ(complete(tensor, chunks[next], round), expected);
        }
      }
    }
    Chunks left;
    for (const auto& [group, chunks] : held) left.insert(chunks.begin(), chunks.end());
    if (random.chance(0.8)) {
      ASSERT_EQ(drain(random, Round(3)), left);
    }
    for (uint32_t looks = 5; !gate_.drop(looks); looks = 5) ASSERT_EQ(looks, 0U);
  }
}

}  // namespace
}  // namespace mercury
