#include "transport/wire/header.h"

#include <cstring>

#include "transport/wire/crc32c.h"

namespace mercury::wire {
namespace {

constexpr size_t kCrcOffset = offsetof(CommonHeader, header_crc);
constexpr size_t kShortestEthernetPayload = 64;  // Ethernet pads below this

uint32_t header_crc(const std::byte* header, size_t bytes) noexcept {
  constexpr std::byte kZero[sizeof(Be32)]{};
  const uint32_t before = crc32c(header, kCrcOffset);
  const uint32_t field = crc32c_extend(before, kZero, sizeof kZero);
  const size_t after = kCrcOffset + sizeof kZero;
  return crc32c_extend(field, header + after, bytes - after);
}

}  // namespace

DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept {
  if (frame.size() < sizeof(PlainHeader)) return DecodeError::kTruncated;
  CommonHeader common;
  std::memcpy(&common, frame.data(), sizeof common);
  if (common.magic.value() != kMagic) return DecodeError::kBadMagic;
  if (common.version != kVersion) return DecodeError::kBadVersion;
  if (common.type == 0 || common.type > kMaxFrameType) return DecodeError::kBadType;
  header = Header{};
  header.type = static_cast<FrameType>(common.type);
  const size_t bytes = header_bytes(header.type);
  if (frame.size() < bytes) return DecodeError::kTruncated;
  if (header_crc(frame.data(), bytes) != common.header_crc.value()) {
    return DecodeError::kBadHeaderCrc;
  }
  header.flags = common.flags.value();
  header.payload_bytes = common.payload_bytes.value();
  header.session = common.session.value();
  header.packet_number = common.packet_number.value();
  const size_t end = bytes + header.payload_bytes;
  if (end > frame.size()) return DecodeError::kBadLength;
  if (end < frame.size() && frame.size() > kShortestEthernetPayload) return DecodeError::kBadLength;
  payload = frame.subspan(bytes, header.payload_bytes);
  if (!is_chunk(header.type)) {
    PlainHeader plain;
    std::memcpy(&plain, frame.data(), sizeof plain);
    header.payload_crc = plain.payload_crc.value();
    return DecodeError::kNone;
  }
  ChunkHeader chunk;
  std::memcpy(&chunk, frame.data(), sizeof chunk);
  header.round = chunk.round.value();
  header.tensor = chunk.tensor.value();
  header.chunk = chunk.chunk.value();
  header.priority = chunk.priority.value();
  header.sender = chunk.sender.value();
  header.incarnation = chunk.incarnation.value();
  header.payload_crc = chunk.payload_crc.value();
  return DecodeError::kNone;
}

void encode(const Header& header, std::byte* out) noexcept {
  ChunkHeader chunk{};
  chunk.common.magic = Be16(kMagic);
  chunk.common.version = kVersion;
  chunk.common.type = static_cast<uint8_t>(header.type);
  chunk.common.flags = Be16(header.flags);
  chunk.common.payload_bytes = Be16(header.payload_bytes);
  chunk.common.session = Be32(header.session);
  chunk.common.header_crc = Be32(0);
  chunk.common.packet_number = Be64(header.packet_number);
  const size_t bytes = header_bytes(header.type);
  if (is_chunk(header.type)) {
    chunk.round = Be32(header.round);
    chunk.tensor = Be32(header.tensor);
    chunk.chunk = Be32(header.chunk);
    chunk.priority = Be16(header.priority);
    chunk.sender = Be16(header.sender);
    chunk.incarnation = Be32(header.incarnation);
    chunk.payload_crc = Be32(header.payload_crc);
    std::memcpy(out, &chunk, sizeof chunk);
  } else {
    const PlainHeader plain{chunk.common, Be32(header.payload_crc), Be32(0)};
    std::memcpy(out, &plain, sizeof plain);
  }
  const Be32 crc(crc32c(out, bytes));
  std::memcpy(out + kCrcOffset, &crc, sizeof crc);
}

}  // namespace mercury::wire
