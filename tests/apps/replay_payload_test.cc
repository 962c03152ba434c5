#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "apps/replay/payload.h"
#include "apps/replay/payload_work.h"

namespace mercury {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array kDtypes = {Dtype::kF32,  Dtype::kF64, Dtype::kF16,
                                Dtype::kBf16, Dtype::kI32, Dtype::kI64};

double value_at(Dtype dtype, const Bytes& data, size_t index) {
  return std::stod(element_text(dtype, data.data() + index * size_of(dtype)));
}

Bytes contribution(Dtype dtype, uint32_t workers, uint32_t rank, uint32_t tensor, uint64_t round,
                   uint64_t numel) {
  Bytes data(numel * size_of(dtype));
  Payload(dtype, workers, rank).fill(tensor, round, 0, data);
  return data;
}

template <class T, class Sum>
void add_as(Bytes& sums, const Bytes& data) {
  for (size_t at = 0; at < sums.size(); at += sizeof(T)) {
    T left, right;
    std::memcpy(&left, sums.data() + at, sizeof left);
    std::memcpy(&right, data.data() + at, sizeof right);
    left = static_cast<T>(static_cast<Sum>(left) + static_cast<Sum>(right));
    std::memcpy(sums.data() + at, &left, sizeof left);
  }
}

// The sum of all workers' contributions by plain arithmetic of the type.
template <class T>
Bytes summed(Dtype dtype, uint32_t workers, uint32_t tensor, uint64_t round, uint64_t numel) {
  Bytes sums = contribution(dtype, workers, workers - 1, tensor, round, numel);
  for (uint32_t rank = 0; rank + 1 < workers; ++rank) {
    add_as<T, T>(sums, contribution(dtype, workers, rank, tensor, round, numel));
  }
  return sums;
}

class Summed {
 public:
  Summed() : data_(summed<float>(Dtype::kF32, 3, 5, 7, kNumel)) {}
  Payload::Verdict verdict() const { return payload_.verify(5, 7, 0, data_); }

  static constexpr uint64_t kNumel = 5 * Payload::kBlock + 17;
  const Payload payload_{Dtype::kF32, 3, 0};
  Bytes data_;
};

TEST(Payload, SumsOfWideTypesVerify) {
  for (const uint32_t workers : {1U, 2U, 3U, 17U, 256U}) {
    const uint64_t numel = 3 * Payload::kBlock + 1;
    EXPECT_EQ(Payload(Dtype::kF32, workers, 0)
                  .verify(1, 2, 0, summed<float>(Dtype::kF32, workers, 1, 2, numel))
                  .mismatches,
              0U);
    EXPECT_EQ(Payload(Dtype::kF64, workers, 0)
                  .verify(1, 2, 0, summed<double>(Dtype::kF64, workers, 1, 2, numel))
                  .mismatches,
              0U);
    EXPECT_EQ(Payload(Dtype::kI32, workers, 0)
                  .verify(1, 2, 0, summed<int32_t>(Dtype::kI32, workers, 1, 2, numel))
                  .mismatches,
              0U);
    EXPECT_EQ(Payload(Dtype::kI64, workers, 0)
                  .verify(1, 2, 0, summed<int64_t>(Dtype::kI64, workers, 1, 2, numel))
                  .mismatches,
              0U);
  }
}

// Every whole number that a 16-bit type holds, and its bits; of the two zeros, the positive one.
std::map<double, uint16_t> narrow_codes(Dtype dtype) {
  std::map<double, uint16_t> codes;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const double value = std::stod(element_text(dtype, std::as_bytes(std::span(&bits, 1)).data()));
    if (value == std::floor(value)) codes.emplace(value, bits);
  }
  return codes;
}

// The magnitudes' sum bounds every partial sum, in whatever order they are added.
TEST(Payload, SumsOfNarrowTypesAreExactInAnyOrder) {
  const uint64_t numel = Payload::kBlock;
  for (const auto& [dtype, limit] : {std::pair(Dtype::kBf16, 256.0), {Dtype::kF16, 2048.0}}) {
    const std::map<double, uint16_t> codes = narrow_codes(dtype);
    for (const uint32_t workers : {1U, 2U, 3U, 100U, 257U}) {
      std::vector<double> sums(numel), magnitudes(numel);
      for (uint32_t rank = 0; rank < workers; ++rank) {
        const Bytes data = contribution(dtype, workers, rank, 0, 0, numel);
        for (size_t n = 0; n < numel; ++n) {
          const double value = value_at(dtype, data, n);
          sums[n] += value;
          magnitudes[n] += std::abs(value);
        }
      }
      EXPECT_LE(*std::max_element(magnitudes.begin(), magnitudes.end()), limit);
      std::vector<uint16_t> encoded;
      for (const double sum : sums) encoded.push_back(codes.at(sum));
      const Payload payload(dtype, workers, 0);
      EXPECT_EQ(payload.verify(0, 0, 0, std::as_bytes(std::span(encoded))).mismatches, 0U);
    }
  }
}

TEST(Payload, EveryPieceOfATensorVerifiesByItself) {
  const Summed sum;
  const std::span all(sum.data_);
  for (uint64_t first = 0; first < Summed::kNumel; first += Payload::kBlock) {
    const uint64_t count = std::min<uint64_t>(Payload::kBlock, Summed::kNumel - first);
    EXPECT_EQ(sum.payload_.verify(5, 7, first, all.subspan(first * 4, count * 4)).mismatches, 0U);
  }
}

TEST(Payload, NamesTheFirstWrongElementAndCountsAll) {
  Summed sum;
  const uint64_t element = 2 * Payload::kBlock + 3;
  const std::string right = element_text(Dtype::kF32, sum.data_.data() + element * 4);
  const float wrong = 0.25F;
  std::memcpy(sum.data_.data() + element * 4, &wrong, 4);
  std::memcpy(sum.data_.data() + sum.data_.size() - 4, &wrong, 4);
  const Payload::Verdict verdict = sum.verdict();
  EXPECT_EQ(verdict.mismatches, 2U);
  ASSERT_TRUE(verdict.first);
  EXPECT_EQ(verdict.first->element, element);
  EXPECT_EQ(verdict.first->got, "0.25");
  EXPECT_EQ(verdict.first->expected, right);
}

TEST(Payload, FindsEverySingleFlippedBit) {
  Summed sum;
  std::mt19937 random(3);  // NOLINT: the same bits in every run
  for (int n = 0; n < 500; ++n) {
    const size_t at = random() % sum.data_.size();
    const auto flip = static_cast<std::byte>(1U << (random() % 8));
    sum.data_[at] ^= flip;
    EXPECT_EQ(sum.verdict().mismatches, 1U) << "byte " << at;
    sum.data_[at] ^= flip;
  }
}

// At least nine of ten elements must tell: what happens to coincide is small.
TEST(Payload, FindsLostDoubledAndMisplacedContributions) {
  const uint64_t numel = Summed::kNumel, most = numel * 9 / 10;
  const Bytes third = contribution(Dtype::kF32, 3, 2, 5, 7, numel);
  Summed doubled;
  add_as<float, float>(doubled.data_, third);
  EXPECT_GT(doubled.verdict().mismatches, most);

  Summed lost;
  lost.data_ = contribution(Dtype::kF32, 3, 0, 5, 7, numel);
  add_as<float, float>(lost.data_, third);
  EXPECT_GT(lost.verdict().mismatches, most);

  Summed shifted;
  std::rotate(shifted.data_.begin(), shifted.data_.begin() + 4, shifted.data_.end());
  EXPECT_GT(shifted.verdict().mismatches, most);

  Summed swapped;  // two blocks in each other's place
  std::swap_ranges(swapped.data_.begin(), swapped.data_.begin() + Payload::kBlock * 4,
                   swapped.data_.begin() + 3 * Payload::kBlock * 4);
  EXPECT_GT(swapped.verdict().mismatches, 2 * Payload::kBlock * 9 / 10);

  const Summed other;
  EXPECT_GT(other.payload_.verify(5, 8, 0, other.data_).mismatches, most) << "another round's";
  EXPECT_GT(other.payload_.verify(6, 7, 0, other.data_).mismatches, most) << "another tensor's";
}

TEST(Payload, WritesElementsAsNumbers) {
  const auto text = [](Dtype dtype, auto value) {
    std::array<std::byte, 8> data{};
    std::memcpy(data.data(), &value, sizeof value);
    return element_text(dtype, data.data());
  };
  EXPECT_EQ(text(Dtype::kF32, -1.5F), "-1.5");
  EXPECT_EQ(text(Dtype::kF64, 1e300), "1.0000000000000001e+300");
  EXPECT_EQ(text(Dtype::kF16, uint16_t{0x3c00}), "1");
  EXPECT_EQ(text(Dtype::kF16, uint16_t{0xe800}), "-2048");
  EXPECT_EQ(text(Dtype::kF16, uint16_t{0x0001}), "5.96046448e-08");
  EXPECT_EQ(text(Dtype::kF16, uint16_t{0xfc00}), "-inf");
  EXPECT_EQ(text(Dtype::kF16, uint16_t{0x7e00}), "nan");
  EXPECT_EQ(text(Dtype::kBf16, uint16_t{0xc380}), "-256");
  EXPECT_EQ(text(Dtype::kI32, int32_t{-7}), "-7");
  EXPECT_EQ(text(Dtype::kI64, int64_t{1} << 40), "1099511627776");
}

// One worker, so that its own gradient is the sum that comes back.
class Work {
 public:
  explicit Work(bool verify = true) {
    for (const Dtype dtype : kDtypes) {
      TraceTensor tensor;
      tensor.name = name_of(dtype);
      tensor.numel = 40 * Payload::kBlock + 5;
      tensor.dtype = dtype;
      trace_.tensors.push_back(tensor);
      memory_.emplace_back(tensor.bytes());
    }
    work_.emplace(trace_, std::vector<std::span<std::byte>>(memory_.begin(), memory_.end()), 1, 0,
                  verify);
    work_->fill_all(0);
  }

  Trace trace_;
  std::vector<Bytes> memory_;
  std::optional<PayloadWork> work_;
};

TEST(PayloadWork, VerifiesAndRefillsInSlicesRoundAfterRound) {
  Work work;
  uint64_t elements = 0;
  for (uint64_t round = 0; round < 4; ++round) {
    for (uint32_t tensor = 0; tensor < kDtypes.size(); ++tensor) {
      work.work_->add(tensor, round, round == 3);
      work.work_->slice();
      elements += work.trace_.tensors[tensor].numel;
    }
    EXPECT_TRUE(work.work_->finish(2));
    EXPECT_FALSE(work.work_->finish(2));
    work.work_->finish_all();
    EXPECT_FALSE(work.work_->pending());
  }
  EXPECT_EQ(work.work_->found().verified_elements, elements);
  EXPECT_EQ(work.work_->found().mismatches, 0U) << work.work_->found().first;
}

TEST(PayloadWork, KeepsTheLastSums) {
  Work work;
  const Bytes before = work.memory_[0];
  work.work_->add(0, 0, true);
  work.work_->finish_all();
  EXPECT_EQ(work.memory_[0], before);
  work.work_->add(0, 0, false);
  work.work_->finish_all();
  EXPECT_NE(work.memory_[0], before);
}

TEST(PayloadWork, NamesTensorIterationAndElementOfTheFirstMismatch) {
  Work work;
  const uint32_t tensor = 4;  // i32
  const size_t element = 33 * Payload::kBlock + 9;
  const std::string right = element_text(Dtype::kI32, work.memory_[tensor].data() + element * 4);
  const int32_t wrong = 1 << 30;
  std::memcpy(work.memory_[tensor].data() + element * 4, &wrong, 4);
  work.work_->add(tensor, 0, false);
  work.work_->finish_all();
  EXPECT_EQ(work.work_->found().mismatches, 1U);
  EXPECT_EQ(work.work_->found().first, "tensor i32, iteration 0, element " +
                                           std::to_string(element) + ": got 1073741824, expected " +
                                           right);
}

TEST(PayloadWork, ComparesNothingWhenTold) {
  Work work(false);
  work.memory_[0][0] ^= std::byte{1};
  work.work_->add(0, 0, false);
  work.work_->finish_all();
  EXPECT_EQ(work.work_->found().verified_elements, 0U);
  EXPECT_EQ(work.work_->found().mismatches, 0U);
}

}  // namespace
}  // namespace mercury
