// What a packet carried, kept until it is acknowledged or lost.
#pragma once

#include <cstdint>

#include "transport/wire/header.h"

namespace mercury {

struct SentTag {
  wire::FrameType type = wire::FrameType::kPing;  // kPush, kResult: a chunk; others: the session's
  uint16_t priority = 0;
  uint32_t round = 0;
  uint32_t tensor = 0;
  uint32_t chunk = 0;
};

}  // namespace mercury
