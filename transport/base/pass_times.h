// How long the passes of an engine's loop took that found work: as long as one takes, no frame is
// received and none is sent. Counted by powers of two, so that years fit and nothing is sampled.
//
// Times are of the clock, so they include what other processes took from the engine's core.
//
// Owner/thread: one engine writes; any thread may read (relaxed).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace mercury {

class PassTimes {
 public:
  // Class i: below 2^i ns, and not below 2^(i-1). The last has all that are longer: 0.5 s and more.
  static constexpr size_t kClasses = 31;
  static constexpr uint64_t below_ns(size_t of_class) noexcept { return uint64_t{1} << of_class; }

  void add(uint64_t ns) noexcept {
    const size_t of_class = std::min<size_t>(static_cast<size_t>(std::bit_width(ns)), kClasses - 1);
    std::atomic<uint64_t>& cell = cells_[of_class];
    cell.store(cell.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    total_ns_.store(total_ns() + ns, std::memory_order_relaxed);
    if (ns > longest_ns()) longest_ns_.store(ns, std::memory_order_relaxed);
  }
  uint64_t count(size_t of_class) const noexcept {
    return cells_[of_class].load(std::memory_order_relaxed);
  }
  // Of all together: what an engine that polls without a pause spent on work, and not on looking.
  uint64_t total_ns() const noexcept { return total_ns_.load(std::memory_order_relaxed); }
  uint64_t longest_ns() const noexcept { return longest_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kClasses> cells_{};
  std::atomic<uint64_t> total_ns_{0};
  std::atomic<uint64_t> longest_ns_{0};
};

}  // namespace mercury
