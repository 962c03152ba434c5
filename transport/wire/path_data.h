// Payload of PATH_CHALLENGE and PATH_RESPONSE: eight bytes, of which the response has the
// challenge's.
//
// Paper: RFC 9000 sections 19.17 and 19.18.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "transport/wire/be.h"

namespace mercury::wire {

inline constexpr size_t kPathDataBytes = 8;

inline void encode_path_data(uint64_t data, std::byte* out) noexcept {
  const Be64 wire(data);
  std::memcpy(out, &wire, sizeof wire);
}

inline std::optional<uint64_t> decode_path_data(std::span<const std::byte> payload) noexcept {
  if (payload.size() != kPathDataBytes) return std::nullopt;
  Be64 data;
  std::memcpy(&data, payload.data(), sizeof data);
  return data.value();
}

}  // namespace mercury::wire
