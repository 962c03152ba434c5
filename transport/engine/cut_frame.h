// A frame that is more than its path carries, and what of it is still to be sent, part by part
// (wire/part.h). Where the port has no room for the next it goes on later from where it stopped:
// half a frame would be sent in vain.
//
// Invariant: all parts of one frame are cut to one size, whatever the path turns out to carry
// meanwhile, so that none of them is all of it.
// Owner/thread: one engine. Nothing allocates after construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "transport/engine/session_table.h"
#include "transport/flow/frame_keys.h"
#include "transport/flow/handshake.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/part.h"

namespace mercury {

// Where the payload of a datagram lies that is ready to leave.
enum class PayloadPlace : uint8_t {
  kWhereItWas,
  kBehindHeader,  // and the seal: it was elsewhere, and is encrypted
  kInCutFrame,    // with its header
};

class CutFrame {
 public:
  explicit CutFrame(uint32_t largest) : frame_(largest) {}

  // Where the frame is written before cut(), as it would travel whole.
  std::byte* data() noexcept { return frame_.data(); }
  // It has so many `bytes`, more than entry.whole_bytes, and goes to this session's peer.
  void cut(const SessionEntry& entry, uint32_t bytes) noexcept {
    session_ = entry.session->local_number();
    bytes_ = bytes;
    offset_ = 0;
    most_ = entry.whole_bytes - head_bytes(entry) - uint32_t{wire::kPartHeaderBytes};
  }
  bool waits() const noexcept { return offset_ < bytes_; }
  uint32_t session() const noexcept { return session_; }
  void drop() noexcept { offset_ = bytes_; }

  // Writes the next part, of a session whose number is session(). Its bytes.
  uint32_t write_part(const SessionEntry& entry, std::span<std::byte> out) noexcept {
    const uint32_t head = head_bytes(entry);
    const uint32_t piece = std::min(most_, bytes_ - offset_);
    const std::span<std::byte> body = out.subspan(head, wire::kPartHeaderBytes + piece);
    wire::encode_part(static_cast<uint16_t>(offset_), static_cast<uint16_t>(bytes_), body.data());
    std::memcpy(body.data() + wire::kPartHeaderBytes, frame_.data() + offset_, piece);
    const uint32_t bytes = head + static_cast<uint32_t>(body.size());
    const wire::Header header = header_of_part(entry);
    finish_frame(out, header, bytes - uint32_t{sizeof(wire::PlainHeader)},
                 wire::crc32c(body) ^ entry.tag.payload);
    if (entry.seals != nullptr) {
      entry.seals->seal(header.packet_number, sizeof(wire::PlainHeader), out.data(), body,
                        wire::seal_piece(static_cast<uint16_t>(offset_)));
    }
    offset_ += piece;
    return bytes;
  }

 private:
  static uint32_t head_bytes(const SessionEntry& entry) noexcept {
    return static_cast<uint32_t>(sizeof(wire::PlainHeader) +
                                 (entry.seals == nullptr ? 0 : wire::kSealBytes));
  }
  wire::Header header_of_part(const SessionEntry& entry) const noexcept {
    wire::CommonHeader common;
    std::memcpy(&common, frame_.data(), sizeof common);
    wire::Header header;
    header.type = wire::FrameType::kPart;
    header.flags = entry.frame_flags;
    header.session = common.session.value();
    header.packet_number = common.packet_number.value();
    header.tag = entry.tag.header;
    header.idle_grant = common.type;
    if (wire::is_datagram(static_cast<wire::FrameType>(common.type))) {
      wire::Be16 priority;
      std::memcpy(&priority, frame_.data() + offsetof(wire::DatagramHeader, priority), 2);
      header.grant = priority.value();
    }
    return header;
  }

  std::vector<std::byte> frame_;
  uint32_t session_ = 0;  // this side's number for it
  uint32_t bytes_ = 0;
  uint32_t offset_ = 0;  // of the next part
  uint32_t most_ = 0;    // of the frame in each part
};

}  // namespace mercury
