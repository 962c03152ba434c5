// When a path has settled after its rate changed: the settling time of control engineering. From
// then to the end of what was seen the queue stayed in its bound, nothing was dropped and every
// window carried enough. One window that did is not it: a queue that overflows all the time carries
// all that its link can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mercury::congestion {

struct PathSample {
  uint64_t carried_bytes = 0;  // so far
  uint64_t queue_ns = 0;
  uint64_t drops = 0;  // so far
};

struct SettledBand {
  size_t window = 1;       // samples that are looked at together
  double least_bytes = 0;  // that each window carries
  uint64_t most_queue_ns = 0;
};

// How many samples had passed; more than samples.size() if it had not at their end. `samples` begin
// with the change.
size_t samples_until_settled(std::span<const PathSample> samples, const SettledBand& band);

}  // namespace mercury::congestion
