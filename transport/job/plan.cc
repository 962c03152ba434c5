#include "transport/job/plan.h"

#include <algorithm>
#include <limits>

namespace mercury {

namespace {
constexpr uint32_t kVectorElems = 16;  // one AVX-512 register of f32
}

uint32_t chunk_elems(uint32_t chunk_bytes, uint32_t element_bytes) {
  if (element_bytes == 0) return 0;
  const uint32_t fit = chunk_bytes / element_bytes;
  return fit < kVectorElems ? fit : fit - fit % kVectorElems;
}

uint32_t chunk_count(uint64_t numel, uint32_t elems_per_chunk) {
  if (elems_per_chunk == 0) return 0;
  const uint64_t count = numel / elems_per_chunk + (numel % elems_per_chunk != 0 ? 1 : 0);
  return count > std::numeric_limits<uint32_t>::max() ? 0 : static_cast<uint32_t>(count);
}

ChunkSpan shard_span(uint32_t tensor, uint32_t chunks, uint16_t shard, uint16_t shards) {
  if (shard >= shards) return {};
  // Range 0, which is never shorter than another, goes to shard `tensor % shards`.
  const uint32_t rotation = tensor % shards;
  const uint32_t range = (shard + shards - rotation) % shards;
  const uint32_t each = chunks / shards;
  const uint32_t longer = chunks % shards;  // so many ranges hold one chunk more
  return {range * each + std::min(range, longer), each + (range < longer ? 1 : 0)};
}

}  // namespace mercury
