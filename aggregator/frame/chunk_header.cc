#include "aggregator/frame/chunk_header.h"

#include "transport/wire/crc32c.h"

namespace mercury {

bool is_intact(const wire::Header& header, std::span<const std::byte> payload) noexcept {
  return wire::crc32c(payload) == header.payload_crc;
}

}  // namespace mercury
