#include "aggregator/kernels/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "aggregator/aggregator.h"
#include "scheduler/terms/members.h"
#include "tests/aggregator/harness.h"
#include "tests/aggregator/reference.h"

namespace mercury {
namespace {

using aggregation::KernelSet;
using aggregation::TypeKernels;

std::vector<const KernelSet*> available() {
  std::vector<const KernelSet*> sets;
  for (const KernelSet* set : {aggregation::scalar_kernels(), aggregation::avx2_kernels(),
                               aggregation::avx512_kernels()}) {
    if (set != nullptr) sets.push_back(set);
  }
  return sets;
}

const TypeKernels& of(const KernelSet* set, Dtype type, ReduceOp op = ReduceOp::kSum) {
  return set->types[aggregation::kernel_index(type, aggregation::merge_of(op))];
}

// A cache line more than needed, so that overruns show, and an aligned start.
struct Accumulator {
  explicit Accumulator(size_t size) : bytes((size + 191) / 64 * 64), memory(bytes / 64) {}
  struct alignas(64) Line {
    std::byte at[64];
  };
  size_t bytes;
  std::vector<Line> memory;
  std::byte* data() { return memory.data()->at; }
};

// Random bits, in which every seventh element is special: NaNs with payloads, signalling ones,
// infinities, zeros and denormals of both signs.
std::vector<std::byte> random_elements(std::mt19937_64& random, Dtype type, size_t elems) {
  const size_t size = size_of(type);
  std::vector<std::byte> out(elems * size);
  const uint64_t specials[] = {0x7ff8000000000000, 0xfff8000000000123, 0x7ff0000000000001,
                               0x7ff0000000000000, 0xfff0000000000000, 0x8000000000000000,
                               0x0000000000000000, 0x0000000000000001, 0x800fffffffffffff,
                               0x7fc000007fc00000, 0xffc00123ffc00123, 0x7f8000017f800001,
                               0x7f8000007f800000, 0xff800000ff800000, 0x7f7fffff7f7fffff,
                               0x7e017e017e017e01, 0xfc00fc00fc00fc00, 0x7c017c017c017c01,
                               0x7c007c007c007c00, 0x7bff7bff7bff7bff, 0x8001800180018001};
  for (size_t i = 0; i < elems; ++i) {
    uint64_t bits = random();
    if (bits % 7 == 0) bits = specials[random() % std::size(specials)];
    std::memcpy(out.data() + i * size, &bits, size);
  }
  return out;
}

TEST(Kernels, HaveWhatTheCpuAllows) {
  ASSERT_FALSE(available().empty());
  EXPECT_STREQ(aggregation_kernel(), available().back()->name);
}

TEST(Kernels, AreForcedByName) {
  const std::string chosen = aggregation_kernel();
  for (const KernelSet* set : available()) {
    EXPECT_TRUE(force_aggregation_kernel(set->name));
    EXPECT_STREQ(aggregation_kernel(), set->name);
    EXPECT_EQ(&aggregation::kernels(), set);
  }
  EXPECT_FALSE(force_aggregation_kernel("avx1024"));
  EXPECT_TRUE(force_aggregation_kernel(chosen.c_str()));
}

void check_any_length_and_alignment(ReduceOp op) {
  std::mt19937_64 random(1);
  for (const KernelSet* set : available()) {
    for (const Dtype type : kAllTypes) {
      const size_t size = size_of(type);
      for (size_t elems = 0; elems <= 140; ++elems) {
        SCOPED_TRACE(std::string(set->name) + " " + name_of(type) + " " + std::to_string(elems));
        std::vector<std::vector<std::byte>> payloads;
        for (int k = 0; k < 3; ++k) payloads.push_back(random_elements(random, type, elems));
        Accumulator sum(elems * aggregation::accumulator_bytes(type));
        std::memset(sum.data(), 0x5a, sum.bytes);
        for (size_t k = 0; k < payloads.size(); ++k) {
          std::vector<std::byte> shifted(elems * size + 3);
          std::byte* wire = shifted.data() + (elems + k) % 4;
          if (elems > 0) std::memcpy(wire, payloads[k].data(), elems * size);
          if (k > 0) {
            of(set, type, op).add(sum.data(), wire, elems);
          } else if (of(set, type).widen != nullptr) {
            of(set, type).widen(sum.data(), wire, elems);
          } else {
            std::memcpy(sum.data(), wire, elems * size);
          }
        }
        const bool divides = op == ReduceOp::kSum && elems % 2 != 0;
        const uint32_t divisor = of(set, type).finish != nullptr && divides ? 3 : 1;
        if (of(set, type).finish != nullptr) of(set, type).finish(sum.data(), elems, divisor);
        if (elems > 0) {
          const std::vector<std::byte> expected = reference::sum_of(type, payloads, divisor, op);
          EXPECT_EQ(std::memcmp(sum.data(), expected.data(), expected.size()), 0);
        }
        for (size_t i = elems * aggregation::accumulator_bytes(type); i < sum.bytes; ++i) {
          ASSERT_EQ(sum.data()[i], std::byte{0x5a}) << "wrote beyond the end";
        }
      }
    }
  }
}

TEST(Kernels, SumAnyLengthAndAlignmentAsTheReferenceDoes) {
  check_any_length_and_alignment(ReduceOp::kSum);
}
TEST(Kernels, TakeTheLeastAsTheReferenceDoes) { check_any_length_and_alignment(ReduceOp::kMin); }
TEST(Kernels, TakeTheGreatestAsTheReferenceDoes) { check_any_length_and_alignment(ReduceOp::kMax); }

// The least of random elements, of which many are special, is the same whoever comes first.
TEST(Kernels, NoOrderChangesTheLeastOrTheGreatest) {
  std::mt19937_64 random(3);
  for (const KernelSet* set : available()) {
    for (const Dtype type : kAllTypes) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        SCOPED_TRACE(std::string(set->name) + " " + name_of(type) + " " + name_of(op));
        constexpr size_t kElems = 3000;
        const Bytes a = random_elements(random, type, kElems);
        const Bytes b = random_elements(random, type, kElems);
        std::vector<Bytes> results;
        for (const auto& [first, second] : {std::pair(&a, &b), std::pair(&b, &a)}) {
          Accumulator sum(kElems * aggregation::accumulator_bytes(type));
          const TypeKernels& kernels = of(set, type, op);
          if (kernels.widen != nullptr) {
            kernels.widen(sum.data(), first->data(), kElems);
          } else {
            std::memcpy(sum.data(), first->data(), first->size());
          }
          kernels.add(sum.data(), second->data(), kElems);
          if (kernels.finish != nullptr) kernels.finish(sum.data(), kElems, 1);
          results.emplace_back(sum.data(), sum.data() + a.size());
        }
        EXPECT_EQ(results[0], results[1]);
      }
    }
  }
}

// Widening is exact for all 65,536 halves, and rounding gives each back.
void check_all_halves(Dtype type, reference::HalfFormat format) {
  std::vector<uint16_t> halves(65536);
  for (uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  const std::vector<std::byte> wire = bytes_of(halves);
  for (const KernelSet* set : available()) {
    SCOPED_TRACE(set->name);
    Accumulator sum(halves.size() * 4);
    of(set, type).widen(sum.data(), wire.data(), halves.size());
    for (uint32_t i = 0; i < 65536; ++i) {
      float value;
      std::memcpy(&value, sum.data() + i * 4, 4);
      const double expected = reference::half_value(halves[i], format);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(value),
                  std::bit_cast<uint32_t>(static_cast<float>(expected)))
            << i;
      }
    }
    of(set, type).finish(sum.data(), halves.size(), 1);
    const uint16_t nan = type == Dtype::kF16 ? 0x7e00 : 0x7fc0;
    for (uint32_t i = 0; i < 65536; ++i) {
      uint16_t half;
      std::memcpy(&half, sum.data() + i * 2, 2);
      const bool is_nan = std::isnan(reference::half_value(halves[i], format));
      ASSERT_EQ(half, is_nan ? nan : halves[i]) << i;
    }
  }
}
TEST(Kernels, WidenEveryF16Exactly) { check_all_halves(Dtype::kF16, reference::kF16Format); }
TEST(Kernels, WidenEveryBf16Exactly) { check_all_halves(Dtype::kBf16, reference::kBf16Format); }

// Every half, the middle to the next one, one float to either side of both, and random floats.
void check_rounding(Dtype type, reference::HalfFormat format) {
  std::vector<float> inputs;
  const uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const float low =
        static_cast<float>(reference::half_value(static_cast<uint16_t>(bits), format));
    const uint32_t next = bits + 1 < infinity ? bits + 1 : bits;
    const double high = reference::half_value(static_cast<uint16_t>(next), format);
    const double below =
        reference::half_value(static_cast<uint16_t>(bits > 0 ? bits - 1 : 0), format);
    // Beyond the largest half, the middle lies as far above it as the last step was long.
    const double middle = next != bits ? (low + high) / 2 : low + (low - below) / 2;
    for (const float centre : {low, static_cast<float>(middle)}) {
      for (const float value :
           {std::nextafterf(centre, 0.0F), centre, std::nextafterf(centre, HUGE_VALF)}) {
        inputs.push_back(value);
        inputs.push_back(-value);
      }
    }
  }
  std::mt19937_64 random(2);
  for (int i = 0; i < 200000; ++i) {
    inputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  for (const float value : {HUGE_VALF, -HUGE_VALF, 65519.996F, 65520.0F, 3.4e38F, 1e-45F}) {
    inputs.push_back(value);
  }
  std::vector<uint16_t> expected;
  for (const float value : inputs) expected.push_back(reference::nearest_half(value, format));

  const std::vector<std::byte> wire = bytes_of(inputs);
  for (const KernelSet* set : available()) {
    SCOPED_TRACE(set->name);
    Accumulator sum(wire.size());
    std::copy(wire.begin(), wire.end(), sum.data());
    of(set, type).finish(sum.data(), inputs.size(), 1);
    for (size_t i = 0; i < inputs.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, sum.data() + i * 2, 2);
      ASSERT_EQ(half, expected[i]) << inputs[i];
    }
  }
}
TEST(Kernels, RoundToTheNearestF16) { check_rounding(Dtype::kF16, reference::kF16Format); }
TEST(Kernels, RoundToTheNearestBf16) { check_rounding(Dtype::kBf16, reference::kBf16Format); }

TEST(Kernels, AverageDividesOnce) {
  const std::vector<float> sums = {1.0F, 10.0F, -7.5F, 3.4028235e38F, 1e-45F, -0.0F};
  for (const KernelSet* set : available()) {
    for (uint32_t divisor = 1; divisor <= kMaxWorkers; ++divisor) {
      Accumulator sum(sums.size() * 4);
      std::memcpy(sum.data(), sums.data(), sums.size() * 4);
      of(set, Dtype::kF32).finish(sum.data(), sums.size(), divisor);
      for (size_t i = 0; i < sums.size(); ++i) {
        float value;
        std::memcpy(&value, sum.data() + i * 4, 4);
        EXPECT_EQ(std::bit_cast<uint32_t>(value),
                  std::bit_cast<uint32_t>(sums[i] / static_cast<float>(divisor)));
      }
    }
  }
}

TEST(Kernels, IntegersWrap) {
  for (const KernelSet* set : available()) {
    Accumulator sum(64);
    const std::vector<int32_t> most(16, INT32_MAX);
    const std::vector<std::byte> wire = bytes_of(std::vector<int32_t>(16, 1));
    std::memcpy(sum.data(), most.data(), 64);
    of(set, Dtype::kI32).add(sum.data(), wire.data(), 16);
    for (size_t i = 0; i < 16; ++i) {
      int32_t value;
      std::memcpy(&value, sum.data() + i * 4, 4);
      EXPECT_EQ(value, INT32_MIN);
    }
  }
}

}  // namespace
}  // namespace mercury
