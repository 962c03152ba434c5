// Payload of a CONTROL frame: a piece of the session's ordered control stream, which holds messages
// that each begin with their length (32 bits).
//
// +---------------------------------------------------------------+ 0
// |          offset of the first byte in the stream (64)          |
// +---------------------------------------------------------------+ 8
// |                             bytes                             |
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "transport/wire/be.h"

namespace mercury::wire {

inline constexpr size_t kControlHeaderBytes = 8;

struct ControlPiece {
  uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

// Writes the offset; the bytes follow at out + kControlHeaderBytes.
inline void encode_control_offset(uint64_t offset, std::byte* out) noexcept {
  const Be64 wire(offset);
  std::memcpy(out, &wire, sizeof wire);
}

inline std::optional<ControlPiece> decode_control(std::span<const std::byte> payload) noexcept {
  if (payload.size() <= kControlHeaderBytes) return std::nullopt;
  Be64 offset;
  std::memcpy(&offset, payload.data(), sizeof offset);
  return ControlPiece{offset.value(), payload.subspan(kControlHeaderBytes)};
}

}  // namespace mercury::wire
