// Which parts of something have been covered so far, in ranges that grow together.
// Owner/thread: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace mercury {

class Covered {
 public:
  using Range = std::pair<uint64_t, uint64_t>;  // from, to before

  // What of it was not covered, in order; now it is.
  std::vector<Range> add(uint64_t begin, uint64_t end) {
    std::vector<Range> gaps;
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) --next;
    Range all(begin, end);
    for (; next != ranges_.end() && next->first <= end; next = ranges_.erase(next)) {
      if (next->first > begin) gaps.emplace_back(begin, next->first);
      begin = std::max(begin, next->second);
      all = {std::min(all.first, next->first), std::max(all.second, next->second)};
    }
    if (begin < end) gaps.emplace_back(begin, end);
    if (all.first < all.second) ranges_.insert(all);
    return gaps;
  }

  bool empty() const { return ranges_.empty(); }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // disjoint, and no two meet
};

}  // namespace mercury
