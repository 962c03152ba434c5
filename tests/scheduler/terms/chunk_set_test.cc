#include "scheduler/terms/chunk_set.h"

#include <gtest/gtest.h>

#include <vector>

namespace mercury {
namespace {

std::vector<uint32_t> in(const ChunkSet& set, uint32_t chunks) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < chunks; ++i) {
    if (set.contains(ChunkIndex(i))) found.push_back(i);
  }
  return found;
}

TEST(ChunkSet, HasWhatWasPutInOnBothSidesOfAWord) {
  constexpr uint32_t kChunks = 130;
  ChunkSet set(kChunks);
  EXPECT_TRUE(in(set, kChunks).empty());
  for (const ChunkIndex chunk : {ChunkIndex(0), ChunkIndex(63), ChunkIndex(64), ChunkIndex(129)}) {
    EXPECT_TRUE(set.insert(chunk));
    EXPECT_FALSE(set.insert(chunk)) << "twice";
  }
  EXPECT_EQ(in(set, kChunks), (std::vector<uint32_t>{0, 63, 64, 129}));
  set.erase(63);
  set.erase(65);  // it is not there
  EXPECT_EQ(in(set, kChunks), (std::vector<uint32_t>{0, 64, 129}));
  set.clear();
  EXPECT_TRUE(in(set, kChunks).empty());
}

}  // namespace
}  // namespace mercury
