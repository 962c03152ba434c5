// Payload of a PART frame: a piece of a frame that is more than the path carries, as it would
// travel whole. The header's packet number is that frame's, and so are `grant`, its priority, and
// `idle_grant`, its type: for whoever looks on, and serves urgent frames first.
//
// +-------------------------------+-------------------------------+ 0
// |  offset of the piece in it    |       bytes of the frame      |
// +-------------------------------+-------------------------------+ 4
// |                             bytes                             |
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "transport/wire/be.h"
#include "transport/wire/header.h"
#include "transport/wire/seal.h"

namespace mercury::wire {

inline constexpr size_t kPartHeaderBytes = 4;

struct Part {
  uint16_t offset = 0;
  uint16_t total = 0;
  std::span<const std::byte> bytes;
};

// Writes what stands before the bytes, which follow at out + kPartHeaderBytes.
inline void encode_part(uint16_t offset, uint16_t total, std::byte* out) noexcept {
  const Be16 words[] = {Be16(offset), Be16(total)};
  std::memcpy(out, words, sizeof words);
}

// Whether `frame` says that it is one that may come in parts, with these numbers.
inline bool may_be_cut(std::span<const std::byte> frame, uint32_t session,
                       uint64_t packet_number) noexcept {
  CommonHeader common;
  if (frame.size() < sizeof common) return false;
  std::memcpy(&common, frame.data(), sizeof common);
  const auto type = static_cast<FrameType>(common.type);
  return (is_datagram(type) || type == FrameType::kStream) && common.session.value() == session &&
         common.packet_number.value() == packet_number;
}

// Nothing: a piece of nothing, or beyond the frame's end, or all of it.
inline std::optional<Part> decode_part(std::span<const std::byte> payload) noexcept {
  if (payload.size() <= kPartHeaderBytes) return std::nullopt;
  Be16 words[2];
  std::memcpy(words, payload.data(), sizeof words);
  const Part part{words[0].value(), words[1].value(), payload.subspan(kPartHeaderBytes)};
  if (part.offset + part.bytes.size() > part.total || part.bytes.size() == part.total) {
    return std::nullopt;
  }
  return part;
}

// The seal of a part (seal.h) is that of this piece of its packet number's frame.
inline uint32_t seal_piece(uint16_t offset) noexcept { return offset + 1U; }
// Of a frame whose header is decoded, and what stands behind that: the seal, then the payload.
inline uint32_t seal_piece(const Header& header, std::span<const std::byte> sealed) noexcept {
  Be16 offset;
  if (header.type != FrameType::kPart || sealed.size() < kSealBytes + sizeof offset) return 0;
  std::memcpy(&offset, sealed.data() + kSealBytes, sizeof offset);
  return seal_piece(offset.value());
}

}  // namespace mercury::wire
