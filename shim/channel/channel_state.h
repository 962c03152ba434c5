// What a ChannelMemory holds. Private to shim/channel; tests use it to reach the raw memory.
#pragma once

#include "shim/channel/channel.h"
#include "shim/channel/channel_layout.h"
#include "shim/channel/unique_fd.h"
#include "transport/base/mapped_memory.h"

namespace mercury {

struct ChannelMemory::State {
  // The descriptors' memory, or without them anonymous memory.
  Status map(size_t a_bytes, size_t b_bytes, bool b_writable);

  ChannelGeometry geometry;
  UniqueFd memfd_a, memfd_b;
  UniqueFd engine_doorbell;
  UniqueFd client_doorbell_read;
  UniqueFd client_doorbell_write;  // none on the program's side
  MappedMemory a_memory;
  MappedMemory b_memory;  // read-only on the program's side
  ChannelArea* a = nullptr;
  ChannelArea* b = nullptr;
};

}  // namespace mercury
