// The header of a PUSH or RESULT in its own words, for tests that change one word of it.
#pragma once

#include <cstdint>

#include "aggregator/frame/chunk_header.h"
#include "transport/wire/header.h"

namespace mercury::test {

struct ChunkFrame : ChunkHeader {
  wire::FrameType type = kPushFrame;
  uint16_t flags = 0;
  uint32_t payload_crc = 0;

  operator wire::Header() const {
    wire::Header header;
    header.type = type;
    header.flags = flags;
    header.payload_crc = payload_crc;
    write(header);
    return header;
  }
};

}  // namespace mercury::test
