#include "aggregator/frame/contributors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/wire/be.h"

namespace mercury {
namespace {

constexpr uint16_t kNoRank = 0xffff;  // fills a list up

template <class Be>
void put(Be value, std::span<std::byte> out, size_t index) noexcept {
  std::memcpy(out.data() + index * sizeof value, &value, sizeof value);
}
template <class Be>
auto get(std::span<const std::byte> bytes, size_t index) noexcept {
  Be value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value.value();
}

std::optional<WorkerSet> decode_bitmap(std::span<const std::byte> bytes,
                                       uint32_t workers) noexcept {
  WorkerSet set{};
  for (uint32_t word = 0; word < words_of(workers); ++word) {
    set[word] = get<wire::Be64>(bytes, word);
    if ((set[word] & ~ranks_in_word(workers, word)) != 0) return std::nullopt;
  }
  return set;
}

// In the one form that there is of a set: ascending, and nothing but fill behind.
std::optional<WorkerSet> decode_list(std::span<const std::byte> bytes, uint32_t workers,
                                     uint32_t absent) noexcept {
  WorkerSet set = complement(WorkerSet{}, workers);
  uint32_t next = 0;
  for (uint32_t i = 0; i < bytes.size() / sizeof(wire::Be16); ++i) {
    const uint16_t rank = get<wire::Be16>(bytes, i);
    if (i >= absent) {
      if (rank != kNoRank) return std::nullopt;
      continue;
    }
    if (rank < next || rank >= workers) return std::nullopt;
    erase(set, Rank(rank));
    next = rank + 1U;
  }
  return set;
}

}  // namespace

uint32_t contributor_bytes(uint32_t workers, uint32_t contributors) noexcept {
  if (workers <= kBitmapWorkers || contributors >= workers) return bitmap_bytes(workers);
  return std::min(bitmap_bytes(workers), (workers - contributors + 3) / 4 * 8);
}

uint32_t contributor_room(uint32_t workers, uint32_t quorum) noexcept {
  if (workers <= kBitmapWorkers) return bitmap_bytes(workers);
  return quorum == 0 || quorum >= workers ? 0 : contributor_bytes(workers, quorum);
}

void encode_contributors(std::span<const uint64_t> set, uint32_t workers,
                         std::span<std::byte> out) noexcept {
  if (out.size() == bitmap_bytes(workers)) {
    for (size_t word = 0; word < set.size(); ++word) put(wire::Be64(set[word]), out, word);
    return;
  }
  std::memset(out.data(), 0xff, out.size());  // kNoRank
  size_t listed = 0;
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = ranks_in_word(workers, word) & ~set[word]; left != 0; left &= left - 1) {
      const auto rank =
          static_cast<uint16_t>(word * 64 + static_cast<uint32_t>(std::countr_zero(left)));
      put(wire::Be16(rank), out, listed++);
    }
  }
}

std::optional<WorkerSet> decode_contributors(std::span<const std::byte> bytes, uint32_t workers,
                                             uint32_t contributors) noexcept {
  if (workers > kMaxWorkers || bytes.size() != contributor_bytes(workers, contributors)) {
    return std::nullopt;
  }
  const bool is_bitmap = bytes.size() == bitmap_bytes(workers);
  const std::optional<WorkerSet> set = is_bitmap
                                           ? decode_bitmap(bytes, workers)
                                           : decode_list(bytes, workers, workers - contributors);
  return set && count(*set) == contributors ? set : std::nullopt;
}

}  // namespace mercury
