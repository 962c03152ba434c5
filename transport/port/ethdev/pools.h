// Buffer pools, laid out as each driver needs them.
#pragma once

#include <cstdint>
#include <string>

#include "transport/port/ethdev/config.h"

struct rte_mempool;

namespace mercury::ethdev {

// Null if there is not enough memory. `data_room` includes the headroom.
rte_mempool* create_frame_pool(DeviceKind kind, const std::string& name, uint32_t data_room,
                               uint32_t mbufs);
// Of mbufs without room of their own.
rte_mempool* create_gather_pool(const std::string& name, uint32_t mbufs);

}  // namespace mercury::ethdev
