// Sets of a job's workers, by rank, without allocation: a WorkerSet has room for the largest job.
// Where there is a set for each chunk it is as many words as the job needs (words_of), of the
// holder's memory, and is passed as a span.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "scheduler/terms/chunk.h"
#include "scheduler/terms/members.h"

namespace mercury {

// Bit r % 64, the lowest being 0, of word r / 64.
inline constexpr uint16_t kWorkerWords = kMaxWorkers / 64;
using WorkerSet = std::array<uint64_t, kWorkerWords>;

// Words that name the workers of a job with so many.
constexpr uint32_t words_of(uint32_t workers) noexcept { return (workers + 63) / 64; }
// The bits of one word that name workers of a job with so many.
constexpr uint64_t ranks_in_word(uint32_t workers, uint32_t word) noexcept {
  const uint32_t left = workers > word * 64 ? workers - word * 64 : 0;
  return left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
}

inline bool contains(std::span<const uint64_t> set, Rank rank) noexcept {
  return (set[rank.value / 64] >> (rank.value % 64) & 1) != 0;
}
inline void insert(std::span<uint64_t> set, Rank rank) noexcept {
  set[rank.value / 64] |= uint64_t{1} << (rank.value % 64);
}
inline void erase(std::span<uint64_t> set, Rank rank) noexcept {
  set[rank.value / 64] &= ~(uint64_t{1} << (rank.value % 64));
}
inline WorkerSet widened(std::span<const uint64_t> words) noexcept {
  WorkerSet set{};
  std::copy(words.begin(), words.end(), set.begin());
  return set;
}
inline WorkerSet without(WorkerSet set, const WorkerSet& these) noexcept {
  for (size_t word = 0; word < set.size(); ++word) set[word] &= ~these[word];
  return set;
}
// All of these are workers of the set's job.
inline bool contains(std::span<const uint64_t> set, const WorkerSet& all_of_these) noexcept {
  uint64_t missing = 0;
  for (size_t word = 0; word < set.size(); ++word) missing |= all_of_these[word] & ~set[word];
  return missing == 0;
}
inline uint32_t count(const WorkerSet& set) noexcept {
  uint32_t ranks = 0;
  for (const uint64_t word : set) ranks += static_cast<uint32_t>(std::popcount(word));
  return ranks;
}
// Of a job with so many workers, those that are not in the set.
inline WorkerSet complement(const WorkerSet& set, uint32_t workers) noexcept {
  WorkerSet others{};
  for (uint32_t word = 0; word < words_of(workers); ++word) {
    others[word] = ranks_in_word(workers, word) & ~set[word];
  }
  return others;
}

// Who is missing in the sums of several chunks: in some of them, and in all.
struct Absentees {
  WorkerSet in_some{};
  WorkerSet in_all{};

  static Absentees of_no_chunk() noexcept {  // to which others are added
    Absentees none;
    none.in_all.fill(~uint64_t{0});
    return none;
  }
  void add(const Absentees& more) noexcept { add(more.in_some, more.in_all); }
  void add(const WorkerSet& some, const WorkerSet& all) noexcept {
    for (size_t word = 0; word < in_some.size(); ++word) {
      in_some[word] |= some[word];
      in_all[word] &= all[word];
    }
  }
  friend bool operator==(const Absentees&, const Absentees&) = default;
};

}  // namespace mercury
