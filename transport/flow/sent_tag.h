// What a packet carried, in the words of who sent it: kept until it is acknowledged or lost, and
// then given back. A chunk's words are the service's, all others' the session's.
#pragma once

#include <array>
#include <cstdint>

#include "transport/wire/header.h"

namespace mercury {

struct SentTag {
  wire::FrameType type = wire::FrameType::kPing;
  uint16_t half_word = 0;
  std::array<uint32_t, 3> words{};
};

}  // namespace mercury
