// Two ports of one process joined back to back by rte_rings: the wire of tests and of engines that
// live in one program.
#pragma once

#include <cstdint>
#include <string>

#include "transport/base/result.h"

namespace mercury::ethdev {

// Makes one end of the pair `name`; the first two calls with a name get its two ends. Returns the
// DPDK port. Thread-safe. Errors: kBusy (both ends are taken), kConfig (queue counts differ).
Result<uint16_t> attach_ring_side(const std::string& name, uint16_t queues,
                                  const std::string& port_name);

// After the port was closed; the rings go with the second end.
void release_ring_side(const std::string& name);

}  // namespace mercury::ethdev
