// One direction of a link that sends one thing at a time, and a sender that releases partitions to
// it under a credit: the two parts of which predict.cc builds every policy. Times are seconds of
// the iteration. Pure functions. Ours, after the papers named below.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/model/chain.h"
#include "scheduler/model/equations.h"
#include "scheduler/policy.h"

namespace mercury::model {

struct Arrival {
  double at_s = 0;        // from when on it can be sent
  double duration_s = 0;  // that the link needs for it
  uint32_t layer = 0;
  uint32_t rank = 0;  // lower ones go first and preempt; equal ones in the order of arrival
};

// The link sent bytes of `layer` from begin to end.
struct Span {
  double begin_s = 0;
  double end_s = 0;
  uint32_t layer = 0;
};

// Sends what has arrived, never idle while something has; preemption is immediate, as in Algorithm
// 1. `arrivals` in the order of at_s. Spans in their order, one or more an arrival.
std::vector<Span> serve(std::span<const Arrival> arrivals);

// More partitions are not worth their memory: they are no chunk of any system.
inline constexpr uint64_t kMaxPartitions = 10'000'000;
uint64_t partition_count(const Chain& chain, uint64_t partition_bytes);

// Policy::Release::kPartition: tensors that are ready are released in partitions, the most urgent
// first, and sent first-in first-out at `rate` bytes per second. Start-ups follow each other; what
// is released and not yet sent is at most the credit, or one partition. Acknowledgements take no
// time beyond the start-up's. One span a partition.
// Paper: Mercury, sections III.A and IV.A (what start-up and credit are); ByteScheduler, SOSP 2019.
std::vector<Span> send_partitions(const Chain& chain, const Times& ready, const Policy& policy,
                                  double rate);

}  // namespace mercury::model
