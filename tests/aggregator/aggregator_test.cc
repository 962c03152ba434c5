#include "aggregator/aggregator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <random>

#include "tests/aggregator/harness.h"
#include "tests/aggregator/reference.h"
#include "tests/allocations.h"

namespace mercury {
namespace {

TEST(Aggregator, AddsAllWorkersAndAnswersOnce) {
  Bench bench(3);
  bench.add_tensor(5, 3);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1, 2, 3})), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(2, 1, 0, floats({100, 200, 300})), PushVerdict::kAdded);
  EXPECT_TRUE(bench.result(1, 0).empty());
  EXPECT_EQ(bench.push(1, 1, 0, floats({10, 20, 30})), PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<float>(1, 0), (std::vector<float>{111, 222, 333}));
  ChunkResult result;
  ASSERT_TRUE(bench.aggregator.result(kJob, {0, 1, 0}, result));
  EXPECT_EQ(result.contributors, 3);
  EXPECT_TRUE(bench.result(1, 1).empty()) << "the other chunk has nothing yet";
}

TEST(Aggregator, SumsOfOneWorkerAreItsOwn) {
  Bench bench(1);
  bench.add_tensor(2, 2);
  for (uint32_t round = 1; round < 10; ++round) {
    const float value = static_cast<float>(round);
    EXPECT_EQ(bench.push(0, round, 0, floats({value, -value})), PushVerdict::kCompleted);
    EXPECT_EQ(bench.values<float>(round, 0), (std::vector<float>{value, -value}));
  }
}

// Its bytes are the contribution's, and so is its check, which result() looks at.
TEST(Aggregator, SumsOfOneWorkerCarryTheirOwnCheck) {
  for (const Dtype type : kAllTypes) {
    for (const unsigned fill : {0x00U, 0x3fU, 0xffU}) {  // zero, a number, a NaN of another form
      Bench bench(1);
      bench.add_tensor(40, 40, type);
      const Bytes payload(40 * size_of(type), static_cast<std::byte>(fill));
      EXPECT_EQ(bench.push(0, 1, 0, payload), PushVerdict::kCompleted);
      EXPECT_EQ(bench.result(1, 0), payload) << name_of(type) << " " << fill;
    }
  }
}

TEST(Aggregator, HoldsOnlyItsShareOfTheTensor) {
  Bench bench(1);
  ASSERT_TRUE(bench.aggregator.add_tensor(
      kJob, {.tensor = 1, .numel = 10, .chunk_elems = 4, .first_chunk = 1, .chunk_count = 2}));
  EXPECT_EQ(bench.push(0, 1, 0, floats({1, 2, 3, 4})), PushVerdict::kBadChunk);
  EXPECT_EQ(bench.push(0, 1, 3, floats({1, 2, 3, 4})), PushVerdict::kBadChunk);
  EXPECT_EQ(bench.push(0, 1, 1, floats({1, 2, 3, 4})), PushVerdict::kCompleted);
  EXPECT_EQ(bench.push(0, 1, 2, floats({1, 2})), PushVerdict::kCompleted) << "the short last chunk";
  EXPECT_TRUE(bench.result(1, 0).empty());
  EXPECT_EQ(bench.result(1, 2).size(), 8U);
}

TEST(Aggregator, RefusesOtherLengthsThanTheChunks) {
  Bench bench(1);
  bench.add_tensor(5, 3);
  for (size_t bytes = 1; bytes <= 20; ++bytes) {  // who contributes nothing has none
    if (bytes != 12) {
      EXPECT_EQ(bench.push(0, 1, 0, Bytes(bytes)), PushVerdict::kBadChunk) << bytes;
    }
    if (bytes != 8) {
      EXPECT_EQ(bench.push(0, 1, 1, Bytes(bytes)), PushVerdict::kBadChunk) << bytes;
    }
  }
}

TEST(Aggregator, CountsAWorkerOnce) {
  Bench bench(2);
  bench.add_tensor(1, 1);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kDuplicate);
  EXPECT_EQ(bench.push(1, 1, 0, floats({2})), PushVerdict::kCompleted);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kOldRound);
  EXPECT_EQ(bench.push(1, 1, 0, floats({2})), PushVerdict::kOldRound);
  EXPECT_EQ(bench.values<float>(1, 0), std::vector<float>{3});
}

// Executed against SwitchML's one-bit slot version this ends in 201.
TEST(Aggregator, LateDuplicateOfTwoRoundsAgoIsNotCounted) {
  Bench bench(2);
  bench.add_tensor(1, 1, Dtype::kI32);
  const auto value = [](int32_t v) { return bytes_of(std::vector<int32_t>{v}); };
  EXPECT_EQ(bench.push(0, 1, 0, value(1)), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(1, 1, 0, value(2)), PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<int32_t>(1, 0), std::vector<int32_t>{3});
  EXPECT_EQ(bench.push(0, 2, 0, value(10)), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(1, 2, 0, value(20)), PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<int32_t>(2, 0), std::vector<int32_t>{30});
  EXPECT_EQ(bench.push(0, 1, 0, value(1)), PushVerdict::kOldRound);
  EXPECT_EQ(bench.push(1, 3, 0, value(200)), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(0, 1, 0, value(1)), PushVerdict::kOldRound);
  EXPECT_EQ(bench.push(0, 3, 0, value(100)), PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<int32_t>(3, 0), std::vector<int32_t>{300});
}

TEST(Aggregator, TakesOnlyTheRoundAfterTheLastCompletedOne) {
  Bench bench(2);
  bench.add_tensor(1, 1);
  EXPECT_EQ(bench.push(0, 0, 0, floats({1})), PushVerdict::kOldRound);
  EXPECT_EQ(bench.push(0, 2, 0, floats({1})), PushVerdict::kNewRound);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kAdded);
  EXPECT_EQ(bench.push(1, 2, 0, floats({1})), PushVerdict::kNewRound);
  EXPECT_EQ(bench.push(1, 1, 0, floats({1})), PushVerdict::kCompleted);
  EXPECT_EQ(bench.push(0, 3, 0, floats({1})), PushVerdict::kNewRound);
  EXPECT_EQ(bench.push(0, 2, 0, floats({1})), PushVerdict::kAdded);
}

TEST(Aggregator, KeepsTheLastResultWhileTheNextRoundIsOpen) {
  Bench bench(2);
  bench.add_tensor(1, 1);
  for (uint32_t round = 1; round <= 6; ++round) {
    const float value = static_cast<float>(round);
    EXPECT_EQ(bench.push(0, round, 0, floats({value})), PushVerdict::kAdded);
    EXPECT_TRUE(bench.result(round, 0).empty());
    if (round > 1) {
      EXPECT_EQ(bench.values<float>(round - 1, 0), std::vector<float>{2 * value - 2});
    }
    if (round > 2) {
      EXPECT_TRUE(bench.result(round - 2, 0).empty());
    }
    EXPECT_EQ(bench.push(1, round, 0, floats({value})), PushVerdict::kCompleted);
    if (round > 1) {
      EXPECT_EQ(bench.values<float>(round - 1, 0), std::vector<float>{2 * value - 2});
    }
    EXPECT_TRUE(bench.result(round + 1, 0).empty());
  }
}

TEST(Aggregator, RoundsWrapAround) {
  Bench bench(2);
  const uint32_t first = 0xfffffffd;
  bench.add_tensor(1, 1, Dtype::kF32, ReduceOp::kSum, first);
  EXPECT_TRUE(bench.result(first - 1, 0).empty());
  for (uint32_t step = 0; step < 8; ++step) {
    const uint32_t round = first + step;
    const float value = static_cast<float>(step);
    EXPECT_EQ(bench.push(0, round + 1, 0, floats({value})), PushVerdict::kNewRound);
    EXPECT_EQ(bench.push(0, round - 1, 0, floats({value})), PushVerdict::kOldRound);
    EXPECT_EQ(bench.push(0, round, 0, floats({value})), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(1, round, 0, floats({1})), PushVerdict::kCompleted);
    EXPECT_EQ(bench.values<float>(round, 0), std::vector<float>{value + 1});
    if (step > 0) {
      EXPECT_EQ(bench.values<float>(round - 1, 0), std::vector<float>{value});
    }
    EXPECT_EQ(bench.push(0, round + 0x80000000, 0, floats({1})), PushVerdict::kNewRound);
  }
}

TEST(Aggregator, WaitsForTheNicBeforeItOverwrites) {
  Bench bench(1);
  bench.add_tensor(1, 1);
  ChunkResult first;
  ASSERT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kCompleted);
  ASSERT_TRUE(bench.aggregator.result(kJob, {0, 1, 0}, first));
  ASSERT_EQ(bench.push(0, 2, 0, floats({2})), PushVerdict::kCompleted) << "the other generation";
  bench.busy = first.pin;
  EXPECT_EQ(bench.push(0, 3, 0, floats({3})), PushVerdict::kSlotBusy);
  EXPECT_EQ(bench.push(0, 3, 0, floats({3})), PushVerdict::kSlotBusy);
  EXPECT_EQ(values_of<float>(first.elements), std::vector<float>{1}) << "what the NIC reads";
  EXPECT_EQ(bench.values<float>(1, 0), std::vector<float>{1});
  bench.busy = nullptr;
  EXPECT_EQ(bench.push(0, 3, 0, floats({3})), PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<float>(3, 0), std::vector<float>{3});
}

TEST(Aggregator, IsDrainedWhenNoResultIsReadAnyMore) {
  uint32_t looks = 8;
  EXPECT_TRUE(Bench(1).aggregator.drained(JobSlot{9}, looks)) << "no such job";
  for (uint32_t round = 1; round <= 2; ++round) {
    for (uint32_t busy = 0; busy < 3; ++busy) {
      Bench bench(1);
      bench.add_tensor(3, 1);
      for (uint32_t i = 0; i < 3 * round; ++i) {
        ASSERT_EQ(bench.push(0, 1 + i / 3, i % 3, floats({1})), PushVerdict::kCompleted);
      }
      ChunkResult result;
      ASSERT_TRUE(bench.aggregator.result(kJob, {0, Round(round), ChunkIndex(busy)}, result));
      bench.busy = result.pin;
      looks = 8;
      EXPECT_FALSE(bench.aggregator.drained(kJob, looks));
      EXPECT_EQ(looks, 7 - busy) << "it has come to what is read, and no further";
      EXPECT_FALSE(bench.aggregator.drained(kJob, looks));
      EXPECT_EQ(looks, 6 - busy) << "it has not begun anew";
      bench.busy = nullptr;
      EXPECT_TRUE(bench.aggregator.drained(kJob, looks));
      EXPECT_EQ(looks, 3U);
      EXPECT_TRUE(bench.aggregator.drained(kJob, looks)) << "and stays so";
      EXPECT_EQ(looks, 3U);
    }
  }
}

TEST(Aggregator, LooksAtNoMoreChunksOfAClosedJobThanItMay) {
  Bench bench(1);
  bench.add_tensor(3, 1);
  uint32_t looks = 2;
  EXPECT_FALSE(bench.aggregator.drained(kJob, looks)) << "one has not been looked at";
  EXPECT_EQ(looks, 0U);
  EXPECT_FALSE(bench.aggregator.drained(kJob, looks));
  looks = 2;
  EXPECT_TRUE(bench.aggregator.drained(kJob, looks));
  EXPECT_EQ(looks, 1U);
}

TEST(Aggregator, CorruptPayloadTouchesNoSum) {
  for (const bool deterministic : {false, true}) {
    for (const Dtype type : kAllTypes) {
      for (uint32_t position = 0; position < 4; ++position) {
        SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(position));
        std::mt19937 random(position);
        Bench bench(4, deterministic);
        bench.add_tensor(37, 37, type);
        const size_t bytes = 37 * size_of(type);
        std::vector<uint32_t> order = {0, 1, 2, 3};
        for (uint32_t round = 1; round <= 5; ++round) {
          std::shuffle(order.begin(), order.end(), random);
          std::vector<Bytes> payloads(4, Bytes(bytes));
          for (Bytes& payload : payloads) {
            for (std::byte& byte : payload) byte = static_cast<std::byte>(random() & 0x3f);
          }
          std::vector<Bytes> in_order;
          for (uint32_t at = 0; at < 4; ++at) {
            const Bytes& payload = payloads[order[at]];
            for (size_t flip = 0; at == position && flip < bytes * 8; flip += 5) {
              Bytes damaged = payload;
              damaged[flip / 8] ^= static_cast<std::byte>(1 << (flip % 8));
              Contribution c = Bench::contribution(order[at], round, 0, payload);
              c.elements = damaged;
              ASSERT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kCorrupt);
            }
            EXPECT_TRUE(bench.result(round, 0).empty());
            if (round > 1) {
              EXPECT_FALSE(bench.result(round - 1, 0).empty());
            }
            EXPECT_EQ(bench.push(order[at], round, 0, payload),
                      at < 3 ? PushVerdict::kAdded : PushVerdict::kCompleted);
            if (!deterministic) in_order.push_back(payload);
          }
          if (deterministic) in_order = payloads;
          EXPECT_EQ(bench.result(round, 0), reference::sum_of(type, in_order, 1));
        }
      }
    }
  }
}

TEST(Aggregator, AcceptsCurrentIncarnationsOnly) {
  Bench bench(2);
  bench.add_tensor(1, 1);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kAdded);
  replace(bench.aggregator, 0, 77);
  EXPECT_EQ(bench.push(0, 1, 0, floats({1})), PushVerdict::kBadIncarnation);
  Contribution restarted = Bench::contribution(0, 1, 0, floats({1}));
  const Bytes payload = floats({5});
  restarted.elements = payload;
  restarted.payload_crc = wire::crc32c(payload);
  restarted.incarnation = 77;
  EXPECT_EQ(bench.push(1, 1, 0, floats({2})), PushVerdict::kAdded);
  EXPECT_EQ(bench.aggregator.push(restarted).verdict, PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<float>(1, 0), std::vector<float>{7});
  restarted.round = 2;
  EXPECT_EQ(bench.aggregator.push(restarted).verdict, PushVerdict::kAdded);
}

// Three workers, three chunks: worker 0's first life is in chunk 0 alone, in chunk 1 with others,
// and in chunk 2 not at all; round 1 of chunk 2 is complete.
TEST(Aggregator, ARestartedWorkerLosesItsOwnPartOfOpenRoundsOnly) {
  for (const bool deterministic : {false, true}) {
    Bench bench(3, deterministic);
    bench.add_tensor(3, 1);
    for (uint32_t w = 0; w < 3; ++w) bench.push(w, 1, 2, floats({float(w + 1)}));
    bench.push(0, 1, 0, floats({10}));
    bench.push(1, 1, 1, floats({20}));
    bench.push(0, 1, 1, floats({10}));
    bench.push(1, 2, 2, floats({200}));
    const std::vector<TensorRound> rounds = replace(bench.aggregator, 0, 77);
    ASSERT_EQ(rounds.size(), 2U);
    EXPECT_EQ(rounds[0].round, Round(1)) << "the lowest";
    EXPECT_EQ(rounds[1].round, Round(2)) << "the highest";

    EXPECT_EQ(bench.values<float>(1, 2), std::vector<float>{6}) << "complete rounds stay";
    EXPECT_EQ(bench.push(1, 2, 2, floats({200})), PushVerdict::kDuplicate) << "others' too";
    EXPECT_EQ(bench.push(0, 1, 0, floats({10})), PushVerdict::kBadIncarnation);
    const auto again = [&](uint32_t round, uint32_t chunk, float value) {
      const Bytes payload = floats({value});
      Contribution c = Bench::contribution(0, round, chunk, payload);
      c.incarnation = 77;
      return bench.aggregator.push(c).verdict;
    };
    EXPECT_EQ(again(1, 2, 5), PushVerdict::kOldRound);
    EXPECT_EQ(again(1, 0, 11), PushVerdict::kAdded);
    EXPECT_EQ(again(1, 1, 11), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(2, 1, 1, floats({30})), PushVerdict::kAdded);
    EXPECT_EQ(bench.push(1, 1, 1, floats({20})), PushVerdict::kCompleted) << "had to come again";
    EXPECT_EQ(bench.values<float>(1, 1), std::vector<float>{61});
  }
}

TEST(Aggregator, WhatIsKeptApartIsTakenOutAlone) {
  Bench bench(3, true);
  bench.add_tensor(1, 1);
  bench.push(1, 1, 0, floats({20}));
  bench.push(2, 1, 0, floats({30}));
  replace(bench.aggregator, 2, 77);
  EXPECT_EQ(bench.push(1, 1, 0, floats({20})), PushVerdict::kDuplicate) << "still counted";
  EXPECT_EQ(bench.push(0, 1, 0, floats({10})), PushVerdict::kAdded);
  const Bytes payload = floats({31});
  Contribution c = Bench::contribution(2, 1, 0, payload);
  c.incarnation = 77;
  EXPECT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kCompleted);
  EXPECT_EQ(bench.values<float>(1, 0), std::vector<float>{61});
}

TEST(Aggregator, RefusesWhatItDoesNotKnow) {
  Bench bench(2);
  bench.add_tensor(1, 1);
  const Bytes payload = floats({1});
  Contribution c = Bench::contribution(0, 1, 0, payload);
  c.job = JobSlot{9};
  EXPECT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kUnknownTensor);
  c = Bench::contribution(0, 1, 0, payload);
  c.tensor = 2;
  EXPECT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kUnknownTensor);
  EXPECT_EQ(bench.push(2, 1, 0, payload), PushVerdict::kBadWorker);
  EXPECT_EQ(bench.push(65535, 1, 0, payload), PushVerdict::kBadWorker);
  EXPECT_EQ(bench.push(0, 1, 0xffffffff, payload), PushVerdict::kBadChunk);

  ASSERT_TRUE(bench.aggregator.add_job(JobSlot{0}, {.workers = 1}));
  ASSERT_TRUE(bench.aggregator.add_tensor(
      JobSlot{0}, {.tensor = 1, .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  c = Bench::contribution(0, 1, 0, payload);
  c.job = JobSlot{0};
  EXPECT_EQ(bench.aggregator.push(c).verdict, PushVerdict::kBadIncarnation) << "never admitted";
}

TEST(Aggregator, ServesAsManyWorkersAsAJobMayHave) {
  for (const auto& [workers, deterministic] : {std::pair<uint16_t, bool>{256, false},
                                               {257, true},
                                               {kMaxWorkers, false},
                                               {kMaxWorkers, true}}) {
    SCOPED_TRACE(workers);
    Bench bench(workers, deterministic);
    bench.add_tensor(3, 3, Dtype::kF32, ReduceOp::kAverage);
    std::vector<uint32_t> order(workers);
    std::iota(order.begin(), order.end(), 0U);
    std::mt19937 random(4);
    for (uint32_t round = 1; round <= 3; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i = 0; i < order.size(); ++i) {
        const float value = static_cast<float>(order[i]);
        EXPECT_EQ(bench.push(order[i], round, 0, floats({value, 1, -value})),
                  i + 1U < workers ? PushVerdict::kAdded : PushVerdict::kCompleted);
        if (i + 1U < workers) {
          EXPECT_EQ(bench.push(order[i], round, 0, floats({value, 1, -value})),
                    PushVerdict::kDuplicate);
        }
      }
      const float mean = static_cast<float>(workers - 1) / 2;
      EXPECT_EQ(bench.values<float>(round, 0), (std::vector<float>{mean, 1, -mean}));
    }
  }
}

TEST(Aggregator, AveragesHalvesInFullPrecision) {
  Bench bench(3);
  bench.add_tensor(1, 1, Dtype::kF16, ReduceOp::kAverage);
  // 65504 three times overflows an f16 sum, not an f32 one.
  const Bytes largest = bytes_of(std::vector<uint16_t>{0x7bff});
  for (uint32_t worker = 0; worker < 3; ++worker) bench.push(worker, 1, 0, largest);
  EXPECT_EQ(bench.result(1, 0), largest);
}

TEST(Aggregator, DeterministicSumsHaveTheSameBitsInEveryOrder) {
  for (const Dtype type : kAllTypes) {
    SCOPED_TRACE(name_of(type));
    std::mt19937_64 random(5);
    std::vector<Bytes> payloads(5, Bytes(19 * size_of(type)));
    for (Bytes& payload : payloads) {
      for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    }
    const Bytes expected = reference::sum_of(type, payloads, 1);
    std::vector<uint32_t> order = {0, 1, 2, 3, 4};
    Bench bench(5, true);
    bench.add_tensor(19, 19, type);
    uint32_t round = 1;
    do {
      for (const uint32_t worker : order) bench.push(worker, round, 0, payloads[worker]);
      ASSERT_EQ(bench.result(round++, 0), expected);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// Two workers need nothing kept apart: addition commutes, once NaNs are canonical.
TEST(Aggregator, TwoWorkersCommuteToTheBit) {
  const std::vector<float> a = {std::bit_cast<float>(0x7fc00001),
                                std::bit_cast<float>(0xff812345),
                                HUGE_VALF,
                                -0.0F,
                                0.0F,
                                -0.0F,
                                1e-45F};
  const std::vector<float> b = {
      std::bit_cast<float>(0xffc00777), 1.0F, -HUGE_VALF, 0.0F, -0.0F, -0.0F, -1e-45F};
  Bench bench(2, true);
  bench.add_tensor(a.size(), static_cast<uint32_t>(a.size()));
  bench.push(0, 1, 0, bytes_of(a));
  bench.push(1, 1, 0, bytes_of(b));
  bench.push(1, 2, 0, bytes_of(b));
  bench.push(0, 2, 0, bytes_of(a));
  EXPECT_EQ(bench.result(1, 0), bench.result(2, 0));
  const std::vector<uint32_t> bits = bench.values<uint32_t>(1, 0);
  EXPECT_EQ(bits, (std::vector<uint32_t>{0x7fc00000, 0x7fc00000, 0x7fc00000, 0, 0, 0x80000000, 0}));
}

TEST(Aggregator, EveryKernelGivesTheSameResult) {
  const std::string chosen = aggregation_kernel();
  for (const Dtype type : kAllTypes) {
    std::vector<Bytes> results;
    for (const char* kernel : {"scalar", "avx2", "avx512"}) {
      if (!force_aggregation_kernel(kernel)) continue;
      std::mt19937_64 random(6);
      Bench bench(4);
      bench.add_tensor(1000, 1000, type);
      Bytes payload(1000 * size_of(type));
      for (uint32_t worker = 0; worker < 4; ++worker) {
        for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
        bench.push(worker, 1, 0, payload);
      }
      results.push_back(bench.result(1, 0));
      EXPECT_EQ(results.back(), results.front()) << kernel << " " << name_of(type);
    }
  }
  ASSERT_TRUE(force_aggregation_kernel(chosen.c_str()));
}

TEST(Aggregator, PushAndResultAllocateNothing) {
  Bench bench(3, true);
  bench.add_tensor(1000, 100);
  const Bytes payload(400);
  const uint64_t before = allocations();
  for (uint32_t round = 1; round < 5; ++round) {
    for (uint32_t worker = 3; worker-- > 0;) {
      for (uint32_t chunk = 0; chunk < 10; ++chunk) bench.push(worker, round, chunk, payload);
    }
    ChunkResult result;
    ASSERT_TRUE(bench.aggregator.result(kJob, {0, Round(round), 9}, result));
  }
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace mercury
