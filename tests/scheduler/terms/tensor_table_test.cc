#include "scheduler/terms/tensor_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "transport/base/random.h"

namespace mercury {
namespace {

struct NumberedTensor {
  TensorId number;
  TensorIndex tensor_index;
  TensorId id() const noexcept { return number; }
};

// Numbers as programs choose them: one after the other, far apart, all of them in one place.
std::vector<uint32_t> numbers_of(uint32_t kind, uint32_t count) {
  std::vector<uint32_t> numbers;
  Random random(7);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t scattered = static_cast<uint32_t>(random.next()) << 16 | i;
    numbers.push_back(kind == 0 ? i : kind == 1 ? scattered & 0x7fffffffU : i << 12);
  }
  return numbers;
}

TEST(TensorTable, FindsEveryTensorAtEveryMomentOfItsGrowth) {
  constexpr uint32_t kCount = 3000;  // several tables
  for (uint32_t kind = 0; kind < 3; ++kind) {
    const std::vector<uint32_t> numbers = numbers_of(kind, kCount);
    TensorTable<NumberedTensor> table;
    EXPECT_EQ(table.find(TensorId(numbers[0])), nullptr);
    std::vector<const NumberedTensor*> where;
    for (uint32_t i = 0; i < kCount; ++i) {
      NumberedTensor& added = *table.insert({TensorId(numbers[i]), {}});
      EXPECT_EQ(added.tensor_index.value, i);
      where.push_back(&added);
      ASSERT_EQ(table.size(), i + 1);
      if (i + 1 < kCount) {
        ASSERT_EQ(table.find(TensorId(numbers[i + 1])), nullptr) << "kind " << kind << ", " << i;
      }
      for (uint32_t old = i % 7; old <= i; old += 7) {
        ASSERT_EQ(table.find(TensorId(numbers[old])), where[old])
            << "kind " << kind << ", " << old << " of " << i;
      }
    }
    for (uint32_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(&table.at(TensorIndex(i)), where[i]) << "none has moved";
    }
    EXPECT_FALSE(table.has(TensorIndex(kCount)));
  }
}

TEST(TensorTable, FindsNoneOnceOneIsDropped) {
  TensorTable<NumberedTensor> table;
  for (uint32_t i = 0; i < 500; ++i) table.insert({TensorId(i), {}});
  table.drop_last();
  EXPECT_EQ(table.size(), 499U);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(499), nullptr);
  EXPECT_EQ(table.at(TensorIndex(498)).id().value, 498U);
  while (table.size() > 0) table.drop_last();
  EXPECT_FALSE(table.has(TensorIndex(0)));
}

}  // namespace
}  // namespace mercury
