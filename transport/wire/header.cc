#include "transport/wire/header.h"

#include <cstring>

#include "transport/wire/crc32c.h"

namespace mercury::wire {
namespace {

const std::byte* bytes_of(const ChunkHeader& wire) noexcept {
  return std::as_bytes(std::span(&wire, 1)).data();
}

}  // namespace

DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept {
  if (frame.size() < sizeof(PlainHeader)) return DecodeError::kTruncated;
  ChunkHeader wire;  // a plain header ends within it
  CommonHeader& common = wire.common;
  std::memcpy(&common, frame.data(), sizeof common);
  if (common.magic.value() != kMagic) return DecodeError::kBadMagic;
  if (common.version != kVersion) return DecodeError::kBadVersion;
  if (common.type == 0 || common.type > kMaxFrameType) return DecodeError::kBadType;
  header = Header{};
  header.type = static_cast<FrameType>(common.type);
  const size_t bytes = header_bytes(header.type);
  if (frame.size() < bytes) return DecodeError::kTruncated;
  std::memcpy(&wire, frame.data(), bytes);
  const uint32_t sum = common.header_crc.value();
  common.header_crc = Be32(0);
  header.tag = crc32c(bytes_of(wire), bytes) ^ sum;
  if (header.tag != 0 && !is_tagged(header.type)) return DecodeError::kBadHeaderCrc;
  header.flags = common.flags.value();
  header.payload_bytes = common.payload_bytes.value();
  header.session = common.session.value();
  header.packet_number = common.packet_number.value();
  if (frame.size() != bytes + header.payload_bytes) return DecodeError::kBadLength;
  payload = frame.subspan(bytes);
  if (!is_chunk(header.type)) {
    PlainHeader plain;
    std::memcpy(&plain, &wire, sizeof plain);
    header.payload_crc = plain.payload_crc.value();
    header.grant = plain.grant.value();
    header.idle_grant = plain.idle_grant.value();
    return DecodeError::kNone;
  }
  header.round = wire.round.value();
  header.tensor = wire.tensor.value();
  header.chunk = wire.chunk.value();
  header.priority = wire.priority.value();
  header.sender = wire.sender.value();
  header.incarnation = wire.incarnation.value();
  header.payload_crc = wire.payload_crc.value();
  return DecodeError::kNone;
}

void encode(const Header& header, std::byte* out) noexcept {
  ChunkHeader wire{};
  CommonHeader& common = wire.common;
  common.magic = Be16(kMagic);
  common.version = kVersion;
  common.type = static_cast<uint8_t>(header.type);
  common.flags = Be16(header.flags);
  common.payload_bytes = Be16(header.payload_bytes);
  common.session = Be32(header.session);
  common.packet_number = Be64(header.packet_number);
  const size_t bytes = header_bytes(header.type);
  if (is_chunk(header.type)) {
    wire.round = Be32(header.round);
    wire.tensor = Be32(header.tensor);
    wire.chunk = Be32(header.chunk);
    wire.priority = Be16(header.priority);
    wire.sender = Be16(header.sender);
    wire.incarnation = Be32(header.incarnation);
    wire.payload_crc = Be32(header.payload_crc);
  } else {
    const PlainHeader plain{common, Be32(header.payload_crc), Be16(header.grant),
                            Be16(header.idle_grant)};
    std::memcpy(&wire, &plain, sizeof plain);
  }
  common.header_crc = Be32(crc32c(bytes_of(wire), bytes) ^ header.tag);
  std::memcpy(out, &wire, bytes);
}

}  // namespace mercury::wire
