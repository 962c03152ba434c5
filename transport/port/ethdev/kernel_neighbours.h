// What Neighbours asks the kernel, of an interface that it shares with us.
#pragma once

#include <optional>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {

// Two threads may use it at the same time, one for each function.
class KernelNeighbours {
 public:
  virtual ~KernelNeighbours() = default;
  // The neighbour that leads to `destination` over the interface: the destination itself, or a
  // gateway. At once: no lock of the kernel's is waited for. Errors: kNotFound (no route), kSystem.
  virtual Result<IpAddress> next_hop(const IpAddress& destination) = 0;
  // Has the kernel find the neighbour, or confirm it again if it is stale; its MAC address, if the
  // kernel holds one that it has not found to be dead. May wait as long as others configure the
  // host's network.
  virtual std::optional<MacAddress> ask(const IpAddress& ip) = 0;
};

}  // namespace mercury::ethdev
