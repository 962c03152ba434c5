// The noun that all of Mercury turns on: a chunk, what one frame carries of one round of one
// tensor. Whoever names one says it with these types, so that no number stands for two things.
#pragma once

#include <compare>
#include <cstdint>

#include "transport/base/types.h"

namespace mercury {

// The number that a job's members agreed on for a tensor: on the wire, and in the C API.
using TensorId = Id<struct TensorIdTag, uint32_t>;
// Its place in one table: that of the job's tensors in one half of one engine, in the order of
// their declaration there. Means nothing to another half, engine or host.
using TensorIndex = Id<struct TensorIndexTag, uint32_t>;
// Of a whole tensor's chunks, whoever holds them.
using ChunkIndex = Id<struct ChunkIndexTag, uint32_t>;

// One lane (one engine) of one server of a job: server * lanes + lane. Each has a part of every
// tensor (scheduler/plan).
using Shard = Id<struct ShardTag, uint16_t>;

// A worker's place among a job's workers, below kMaxWorkers. Servers have places of their own,
// which are no Ranks.
using Rank = Id<struct RankTag, uint16_t>;

// Which sum of a tensor; the first is 1. A serial number (RFC 1982 with 32 bits): it wraps around,
// so rounds have no order, only distances.
struct Round {
  uint32_t value = 0;
  constexpr Round() = default;
  constexpr explicit Round(uint32_t v) : value(v) {}
  consteval Round(int literal) : value(static_cast<uint32_t>(literal)) {}
  friend constexpr bool operator==(Round, Round) = default;
  constexpr Round next() const { return Round(value + 1); }
  constexpr Round previous() const { return Round(value - 1); }
  // Negative: this one comes before.
  constexpr int32_t since(Round other) const { return static_cast<int32_t>(value - other.value); }
};

// One chunk of one of a job's tensors, as one half of one engine knows it.
struct ChunkKey {
  TensorIndex tensor;
  Round round;
  ChunkIndex chunk;
  friend constexpr bool operator==(const ChunkKey&, const ChunkKey&) = default;
};

// Consecutive chunks.
struct ChunkSpan {
  ChunkIndex first;
  uint32_t count = 0;
  friend constexpr bool operator==(const ChunkSpan&, const ChunkSpan&) = default;
  constexpr bool contains(ChunkIndex chunk) const { return chunk.value - first.value < count; }
  constexpr ChunkIndex at(uint32_t offset) const { return ChunkIndex(first.value + offset); }
  constexpr ChunkIndex end() const { return at(count); }  // behind the last
  constexpr ChunkIndex take_first() {                     // of a span that is not empty
    --count;
    return ChunkIndex(first.value++);
  }
};

// Where a job's members stand with a tensor.
struct TensorRound {
  TensorId tensor;
  Round round;
  friend constexpr bool operator==(const TensorRound&, const TensorRound&) = default;
};

}  // namespace mercury
