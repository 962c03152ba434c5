#include "transport/wire/contributors.h"

#include <cstring>

#include "transport/wire/be.h"

namespace mercury::wire {

void encode_contributors(const WorkerSet& set, std::span<std::byte> out) noexcept {
  for (size_t word = 0; word < out.size() / sizeof(Be64); ++word) {
    const Be64 wire(set[word]);
    std::memcpy(out.data() + word * sizeof wire, &wire, sizeof wire);
  }
}

std::optional<WorkerSet> decode_contributors(std::span<const std::byte> bytes,
                                             uint32_t workers) noexcept {
  if (workers > kMaxWorkers || bytes.size() != contributor_bytes(workers)) return std::nullopt;
  WorkerSet set{};
  for (uint32_t word = 0; word < words_of(workers); ++word) {
    Be64 wire;
    std::memcpy(&wire, bytes.data() + word * sizeof wire, sizeof wire);
    set[word] = wire.value();
    if ((set[word] & ~ranks_in_word(workers, word)) != 0) return std::nullopt;
  }
  return set;
}

}  // namespace mercury::wire
