#include "apps/perf/latency.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace mercury::perf {
namespace {

constexpr unsigned kStepBits = 10;  // of a power of two: an error of 1/1024 at most
constexpr size_t kSteps = size_t{1} << kStepBits;
// Below 2 * kSteps every value has a place of its own; above, each power of two has kSteps places.
constexpr size_t kPlaces = (64 - kStepBits + 1) * kSteps;

size_t place_of(uint64_t ns) {
  if (ns < 2 * kSteps) return ns;
  const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - kStepBits - 1;
  return shift * kSteps + (ns >> shift);
}

// The longest time that has this place.
uint64_t longest_at(size_t place) {
  if (place < 2 * kSteps) return place;
  const size_t shift = place / kSteps - 1;
  const uint64_t step = place - shift * kSteps;
  return (step << shift) + ((uint64_t{1} << shift) - 1);
}

}  // namespace

LatencyHistogram::LatencyHistogram() : counts_(kPlaces) {}

void LatencyHistogram::record(uint64_t ns) {
  ++counts_[place_of(ns)];
  ++count_;
  max_ns_ = std::max(max_ns_, ns);
}

void LatencyHistogram::add(const LatencyHistogram& more) {
  for (size_t place = 0; place < kPlaces; ++place) counts_[place] += more.counts_[place];
  count_ += more.count_;
  max_ns_ = std::max(max_ns_, more.max_ns_);
}

std::optional<uint64_t> LatencyHistogram::percentile_ns(uint64_t per_mille) const {
  if (count_ * (1000 - per_mille) < 1000) return std::nullopt;
  const uint64_t wanted = (count_ * per_mille + 999) / 1000;
  uint64_t seen = 0;
  size_t place = 0;
  while ((seen += counts_[place]) < wanted) ++place;
  return std::min(longest_at(place), max_ns_);
}

}  // namespace mercury::perf
