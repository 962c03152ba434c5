// What `mercuryctl doctor` says about a DPDK device, found out without opening it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/port/ethdev/config.h"

namespace mercury::ethdev {

struct Check {
  std::string name;     // "offload", "privileges", ...
  bool ok = true;       // false: the device will not work, or not with every peer
  std::string message;  // what was found
  std::string fix;      // the command that changes it, or betters what is ok; empty: nothing to do
};

// In the network namespace and with the privileges of the caller. Opens, changes and attaches
// nothing; needs no EAL.
std::vector<Check> check_device(const EthdevConfig& config);

// Whether an af_packet port's own interface merges frames that arrive, which a packet socket cannot
// take. None: it could not be asked.
std::optional<Check> check_merging(const std::string& interface);

// Whether what a kernel socket at this address sends in batches (UDP_SEGMENT) reaches DPDK hosts as
// frames that they can take. None: no interface has the address, or the loopback, or it could not
// be asked.
std::optional<Check> check_segmentation(const IpAddress& ip);

}  // namespace mercury::ethdev
