// A finish with all that an optimiser on the server asks of the aggregator: numbers per element
// that outlive both generations, a rate that depends on the round, a part that cannot be copied,
// types that it refuses, and work for a job's only worker. The product has none yet.
//
// velocity = velocity / 2 + mean of the contributions; weight -= rate * velocity; the result is the
// weight. The rate is 1, 1/2, 1/4, 1/8, 1, ... so that small numbers come out exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "aggregator/finish/accumulated.h"
#include "aggregator/slot_memory.h"
#include "transport/base/result.h"

namespace mercury::aggregation {

inline double momentum_rate(uint32_t rounds_before) { return 1.0 / (1U << rounds_before % 4); }

class Momentum {
 public:
  static constexpr bool kNeededAlone = true;

  static Result<Momentum> create(const AggregationTensor& spec) {
    if (spec.dtype == Dtype::kBf16) return Error(Errc::kUnsupported, "no momentum in bf16");
    return Momentum(std::make_unique<const AggregationTensor>(spec));
  }

  static uint64_t state_bytes(const AggregationTensor& spec) noexcept {
    return spec.chunk_count * chunk_bytes(spec);
  }
  void place(const SlotMemory& memory) noexcept { state_ = memory.state(); }

  void finish(const Accumulated& chunk) noexcept {
    if (chunk.dtype == Dtype::kF64) {
      step<double>(chunk);
    } else {
      step<float>(chunk);
    }
    round_quotient(chunk, 1);
  }

 private:
  explicit Momentum(std::unique_ptr<const AggregationTensor> spec) noexcept
      : spec_(std::move(spec)) {}
  static uint64_t chunk_bytes(const AggregationTensor& spec) noexcept {
    return 2 * uint64_t{spec.chunk_elems} * accumulator_bytes(spec.dtype);
  }

  template <class T>
  void step(const Accumulated& chunk) noexcept {
    auto* const velocity = reinterpret_cast<T*>(state_ + chunk.index * chunk_bytes(*spec_));
    T* const weight = velocity + spec_->chunk_elems;
    auto* const sum = reinterpret_cast<T*>(chunk.sum);
    const auto rounds_before = static_cast<uint32_t>(chunk.round.since(spec_->first_round));
    const T rate = static_cast<T>(momentum_rate(rounds_before));
    for (uint32_t i = 0; i < chunk.elems; ++i) {
      velocity[i] = velocity[i] / 2 + sum[i] / static_cast<T>(chunk.contributions);
      weight[i] -= rate * velocity[i];
      sum[i] = weight[i];
    }
  }

  std::unique_ptr<const AggregationTensor> spec_;
  std::byte* state_ = nullptr;  // by chunk: its velocities, then its weights
};

}  // namespace mercury::aggregation
