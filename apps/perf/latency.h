// A histogram of times: each is known to a thousandth of itself, whatever it is, and recording one
// costs no allocation. There are 1,024 steps in each power of two.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace mercury::perf {

class LatencyHistogram {
 public:
  LatencyHistogram();
  void record(uint64_t ns);
  void add(const LatencyHistogram& more);
  uint64_t count() const { return count_; }
  uint64_t max_ns() const { return max_ns_; }
  // What `per_mille` thousandths of the times are at most. None where so few were recorded that no
  // time at all lies beyond it: that would be the maximum by another name.
  std::optional<uint64_t> percentile_ns(uint64_t per_mille) const;

 private:
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace mercury::perf
