// A tensor that a program has declared to the daemon of the client's tests, in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shim/channel/attach.h"

namespace mercury::testing {

struct ClientTensor {
  attach::DeclaredTensor wire;
  std::byte* data = nullptr;
  std::vector<uint32_t> rounds;  // per engine

  // An engine's share of the sum of `workers` equal gradients, in place.
  void add_all_workers(size_t engine, uint16_t workers) const {
    auto* values = reinterpret_cast<float*>(data);
    const uint64_t n = wire.numel, engines = rounds.size();
    for (uint64_t i = n * engine / engines; i < n * (engine + 1) / engines; ++i) {
      values[i] *= static_cast<float>(workers);
    }
  }
};

}  // namespace mercury::testing
