#include "aggregator/frame/chunk_header.h"

#include "transport/wire/crc32c.h"

namespace mercury {

bool drop_unread(Counters& counters, Counter why, const wire::Header& header,
                 std::span<const std::byte> payload) noexcept {
  const bool intact = wire::crc32c(payload) == header.payload_crc;
  counters.add(intact ? why : Counter::kDropPayloadCrc);
  return intact;
}

}  // namespace mercury
