// Has a NIC put what comes for an engine's UDP port into that engine's queue, by rte_flow. Else
// frames are spread over the queues by a hash of their addresses and ports (RSS), and most cross
// from one core to another (Counter::kHandoffs). Owner/thread: whoever creates the device.
#pragma once

#include <cstdint>

namespace mercury::ethdev {

struct FlowPorts {
  uint16_t first = 0;    // UDP port of engine 0; engine e hears on first + e
  uint16_t engines = 1;  // e has queue e % queues
  uint16_t queues = 1;
  bool v4 = false;  // of which families frames come
  bool v6 = false;
  bool tagged = false;  // with a VLAN's tag
};

struct Steered {  // by rule; else by hash
  bool v4 = false;
  bool v6 = false;
};

// Of a device that was started, as stopping one may forget its rules. Of a family all rules are
// made or none.
Steered steer_to_engines(uint16_t dpdk_port, const FlowPorts& ports);

}  // namespace mercury::ethdev
