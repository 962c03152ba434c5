// Whether the UDP ports of a configuration's engines are free, and who holds those that are not.
#pragma once

#include <vector>

#include "apps/stackd/config.h"
#include "transport/port/ethdev/checks.h"

namespace mercury {

// One check for each address that the kernel has too. Ports that the daemon of this very
// configuration holds are good.
std::vector<ethdev::Check> check_udp_ports(const StackdConfig& config);

}  // namespace mercury
