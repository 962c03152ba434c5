// Who is in a partial sum: the bitmap before the elements of a RESULT with kFlagPartial.
//
// +---------------------------------------------------------------+ 0
// |  ranks 0 to 63: 64 bits, the lowest is rank 0                 |
// |                                                               |
// +---------------------------------------------------------------+ 8
// |  ranks 64 to 127, and so on: as many words as the job needs   |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "scheduler/terms/worker_set.h"
#include "transport/wire/header.h"

namespace mercury {

constexpr uint32_t contributor_bytes(uint32_t workers) { return words_of(workers) * 8; }
// Of a chunk's frame beside its elements, at most: a full chunk must have room for the bitmap.
constexpr uint32_t chunk_overhead(uint32_t workers) {
  return static_cast<uint32_t>(sizeof(wire::DatagramHeader)) + contributor_bytes(workers);
}

// `out` has contributor_bytes of the job's workers.
void encode_contributors(const WorkerSet& set, std::span<std::byte> out) noexcept;
// The same bytes. Nothing when they name a rank that a job with so many workers does not have.
std::optional<WorkerSet> decode_contributors(std::span<const std::byte> bytes,
                                             uint32_t workers) noexcept;

}  // namespace mercury
