// Who is in a partial sum: what stands before the elements of a RESULT with kFlagPartial. Which of
// two forms it has, and how long it is, follows from what both ends know: how many workers the job
// has, and how many of them the header says are in the sum.
//
// A bitmap, with up to 256 workers and wherever it is not longer than the other:
// +---------------------------------------------------------------+ 0
// |  ranks 0 to 63: 64 bits, the lowest is rank 0                 |
// |                                                               |
// +---------------------------------------------------------------+ 8
// |  ranks 64 to 127, and so on: as many words as the job needs   |
//
// A list of those who are missing, ascending, filled up to 8 bytes with 0xffff:
// +-------------------------------+-------------------------------+ 0
// |             rank              |             rank              |
// +-------------------------------+-------------------------------+ 4
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "scheduler/terms/worker_set.h"
#include "transport/wire/header.h"

namespace mercury {

// Releases before know no larger jobs, and no lists.
inline constexpr uint32_t kBitmapWorkers = 256;

constexpr uint32_t bitmap_bytes(uint32_t workers) { return words_of(workers) * 8; }
// Of a partial sum of a job with so many workers, with so many of them in it: whole words, so that
// elements stay aligned.
uint32_t contributor_bytes(uint32_t workers, uint32_t contributors) noexcept;
// The most that it is in a job with this quorum (0: none, so sums are complete): fewer than that
// are in no sum. A full chunk must have room for it. Up to 256 workers, as releases before.
uint32_t contributor_room(uint32_t workers, uint32_t quorum) noexcept;
// Of a chunk's frame beside its elements, at most.
inline uint32_t chunk_overhead(uint32_t workers, uint32_t quorum) noexcept {
  return static_cast<uint32_t>(sizeof(wire::DatagramHeader)) + contributor_room(workers, quorum);
}

// `set` has words_of the job's workers, and `out` contributor_bytes of these and of those in it.
void encode_contributors(std::span<const uint64_t> set, uint32_t workers,
                         std::span<std::byte> out) noexcept;
// The same bytes. Nothing when they name other workers, or another number of them, than there can
// be.
std::optional<WorkerSet> decode_contributors(std::span<const std::byte> bytes, uint32_t workers,
                                             uint32_t contributors) noexcept;

}  // namespace mercury
