// What a ChannelMemory holds. Private to shim/channel; tests use it to reach the raw memory.
#pragma once

#include "shim/channel/channel.h"
#include "shim/channel/channel_layout.h"
#include "shim/channel/unique_fd.h"

namespace mercury {

struct ChannelMemory::State {
  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ChannelGeometry geometry;
  UniqueFd memfd_a, memfd_b;
  UniqueFd engine_doorbell;
  UniqueFd client_doorbell_read;
  UniqueFd client_doorbell_write;  // none on the program's side
  ChannelArea* a = nullptr;
  ChannelArea* b = nullptr;  // mapped read-only on the program's side
  size_t a_bytes = 0;
  size_t b_bytes = 0;
};

}  // namespace mercury
