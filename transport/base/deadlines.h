// The earliest of many deadlines, each set at any time: a tournament tree. Constant time for the
// earliest, logarithmic for a change; it allocates where it is made and where it grows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/base/types.h"

namespace mercury {

class Deadlines {
 public:
  explicit Deadlines(size_t count)
      : leaves_(std::bit_ceil(std::max<size_t>(count, 2))), tree_(2 * leaves_, kNever) {}

  // Room for `count` at least. What is set stays.
  void grow(size_t count) {
    if (count <= leaves_) return;
    Deadlines larger(count);
    for (size_t index = 0; index < leaves_; ++index) larger.set(index, at(index));
    *this = std::move(larger);
  }

  uint64_t earliest_ns() const noexcept { return tree_[1]; }
  uint64_t at(size_t index) const noexcept { return tree_[leaves_ + index]; }
  void set(size_t index, uint64_t ns) noexcept {
    size_t node = leaves_ + index;
    if (tree_[node] == ns) return;
    tree_[node] = ns;
    for (node /= 2; node > 0; node /= 2) {
      const uint64_t least = std::min(tree_[2 * node], tree_[2 * node + 1]);
      if (tree_[node] == least) return;
      tree_[node] = least;
    }
  }
  // Calls `due(index)` in the order of the indexes for all that are not later than `now_ns`, and
  // sets them to kNever before.
  template <class F>
  void take_due(uint64_t now_ns, F due) {
    while (tree_[1] <= now_ns) {
      size_t node = 1;
      while (node < leaves_) node = tree_[2 * node] <= now_ns ? 2 * node : 2 * node + 1;
      set(node - leaves_, kNever);
      due(node - leaves_);
    }
  }

 private:
  size_t leaves_;
  std::vector<uint64_t> tree_;
};

}  // namespace mercury
