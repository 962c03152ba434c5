// An aggregator with one job, and the few words that its tests need.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "aggregator/aggregator.h"
#include "tests/milliseconds.h"
#include "transport/wire/crc32c.h"

namespace mercury {

using Bytes = std::vector<std::byte>;

inline constexpr Dtype kAllTypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBf16,
                                      Dtype::kI32, Dtype::kI64, Dtype::kI8,  Dtype::kU8};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}
inline Bytes floats(std::vector<float> values) { return bytes_of(values); }

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

inline constexpr JobSlot kJob{3};
inline uint32_t incarnation_of(uint32_t worker) { return 1000 + worker; }

// What replace and withdraw began is done at once. The rounds, if a worker is replaced.
inline std::vector<TensorRound> walk_to_the_end(Aggregator& aggregator) {
  ReplacedWorker replaced;
  for (uint32_t looks = 1'000'000; aggregator.is_replacing();) {
    (void)aggregator.take_replaced(looks, replaced);
  }
  return replaced.rounds;
}
inline std::vector<TensorRound> replace(Aggregator& aggregator, Rank worker, uint32_t incarnation) {
  EXPECT_TRUE(aggregator.replace(kJob, worker, incarnation));
  return walk_to_the_end(aggregator);
}
inline void withdraw(Aggregator& aggregator, Rank worker) {
  aggregator.withdraw(kJob, worker);
  walk_to_the_end(aggregator);
}

class Bench {
 public:
  explicit Bench(uint16_t workers, bool deterministic = false, uint64_t limit = 0)
      : aggregator(PortMemory{
            [](void* self, PayloadPin& pin) { return static_cast<Bench*>(self)->busy == &pin; },
            this}) {
    EXPECT_TRUE(aggregator.add_job(kJob, {.workers = workers,
                                          .terms = {.deterministic = deterministic},
                                          .memory_limit_bytes = limit}));
    for (uint16_t worker = 0; worker < workers; ++worker) {
      EXPECT_TRUE(aggregator.admit(kJob, Rank(worker), incarnation_of(worker)));
    }
  }

  // The pushes below go to this tensor: number 1, all chunks.
  void add_tensor(uint64_t numel, uint32_t chunk_elems, Dtype dtype = Dtype::kF32,
                  ReduceOp op = ReduceOp::kSum, uint32_t first_round = 1) {
    const uint64_t chunks = (numel + chunk_elems - 1) / chunk_elems;
    const Status added = aggregator.add_tensor(kJob, {.tensor = 1,
                                                      .numel = numel,
                                                      .dtype = dtype,
                                                      .op = op,
                                                      .chunk_elems = chunk_elems,
                                                      .chunk_count = static_cast<uint32_t>(chunks),
                                                      .first_round = Round(first_round)});
    ASSERT_TRUE(added) << added.error().message;
  }

  static Contribution contribution(uint32_t worker, uint32_t round, uint32_t chunk,
                                   const Bytes& elements) {
    return {.job = kJob,
            .worker = Rank(static_cast<uint16_t>(worker)),
            .incarnation = incarnation_of(worker),
            .tensor = 1,
            .round = Round(round),
            .chunk = ChunkIndex(chunk),
            .payload_crc = wire::crc32c(elements),
            .elements = elements};
  }
  PushVerdict push(uint32_t worker, uint32_t round, uint32_t chunk, const Bytes& elements) {
    return aggregator.push(contribution(worker, round, chunk, elements)).verdict;
  }
  // The same with a CRC that does not match.
  PushVerdict push_corrupt(uint32_t worker, uint32_t round, uint32_t chunk, const Bytes& elements) {
    Contribution damaged = contribution(worker, round, chunk, elements);
    damaged.payload_crc ^= 0x10;
    return aggregator.push(damaged).verdict;
  }
  // Empty if there is none.
  Bytes result(uint32_t round, uint32_t chunk) {
    ChunkResult out;
    if (!aggregator.result(kJob, {0, Round(round), ChunkIndex(chunk)}, out)) return {};
    EXPECT_EQ(out.crc, wire::crc32c(out.elements));
    return {out.elements.begin(), out.elements.end()};
  }
  template <class T>
  std::vector<T> values(uint32_t round, uint32_t chunk) {
    return values_of<T>(result(round, chunk));
  }

  PayloadPin* busy = nullptr;  // the pin that the port still reads
  Aggregator aggregator;
};

}  // namespace mercury
