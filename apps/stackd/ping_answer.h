// What the daemon answers to `mercuryctl ping`.
#pragma once

#include <cstdint>
#include <string>

#include "shim/socket/control/socket_manager.h"

namespace mercury {

// JSON. `link_bytes_per_second`: at which the engine that asked paces; 0: it does not.
std::string ping_answer(const PingReport& report, uint64_t link_bytes_per_second);

}  // namespace mercury
