#include "aggregator/frame/contributors.h"

#include <cstring>

#include "transport/wire/be.h"

namespace mercury {

void encode_contributors(const WorkerSet& set, std::span<std::byte> out) noexcept {
  for (size_t word = 0; word < out.size() / sizeof(wire::Be64); ++word) {
    const wire::Be64 bits(set[word]);
    std::memcpy(out.data() + word * sizeof bits, &bits, sizeof bits);
  }
}

std::optional<WorkerSet> decode_contributors(std::span<const std::byte> bytes,
                                             uint32_t workers) noexcept {
  if (workers > kMaxWorkers || bytes.size() != contributor_bytes(workers)) return std::nullopt;
  WorkerSet set{};
  for (uint32_t word = 0; word < words_of(workers); ++word) {
    wire::Be64 bits;
    std::memcpy(&bits, bytes.data() + word * sizeof bits, sizeof bits);
    set[word] = bits.value();
    if ((set[word] & ~ranks_in_word(workers, word)) != 0) return std::nullopt;
  }
  return set;
}

}  // namespace mercury
