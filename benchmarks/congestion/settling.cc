#include "benchmarks/congestion/settling.h"

namespace mercury::congestion {
namespace {

bool in_band(std::span<const PathSample> samples, size_t i, const SettledBand& band) {
  if (samples[i].queue_ns > band.most_queue_ns) return false;
  if (samples[i].drops != samples[i - 1].drops) return false;
  const uint64_t carried = samples[i].carried_bytes - samples[i - band.window].carried_bytes;
  return static_cast<double>(carried) >= band.least_bytes;
}

}  // namespace

size_t samples_until_settled(std::span<const PathSample> samples, const SettledBand& band) {
  size_t i = samples.size();
  while (i > band.window && in_band(samples, i - 1, band)) --i;
  return i + 1;
}

}  // namespace mercury::congestion
