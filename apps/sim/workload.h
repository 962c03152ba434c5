// What the wire makes of a trace: how many frames its tensors take and what those weigh, and the
// chain that the model computes with.
#pragma once

#include <cstdint>

#include "apps/sim/options.h"
#include "apps/trace/trace.h"
#include "scheduler/model/chain.h"

namespace mercury::simulator {

// What a frame of the wire format takes on an Ethernet link beside its elements: preamble and start
// (8), Ethernet header (14), IP header (20 or 40), UDP header (8), Mercury's chunk header (48),
// checksum (4), gap (12).
struct Framing {
  uint32_t payload_bytes = 0;   // room for elements in a frame; of them whole vectors are used
  uint32_t overhead_bytes = 0;  // of each frame
};
Framing framing_of(const SimOptions& options);

// Frames of one tensor, in each direction.
uint64_t frames_of(const TraceTensor& tensor, const Framing& framing);

// One layer a tensor, in the trace's order.
model::Chain chain_of(const Trace& trace, const Framing& framing);
// The same without what frames add.
model::Chain without_framing(model::Chain chain);

// `options` with_all_links().
model::Cluster cluster_of(const SimOptions& options);

}  // namespace mercury::simulator
