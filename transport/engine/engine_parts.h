// Engine: frames in parts, over paths that carry less than when their sessions opened. Included by
// engine.h only.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/engine/engine.h"
#include "transport/flow/handshake.h"
#include "transport/wire/part.h"

namespace mercury {

namespace detail {
// Of the parts of a frame, which begins with a header.
inline wire::Header header_of_parts(std::span<const std::byte> frame, const SessionEntry& entry) {
  wire::CommonHeader common;
  std::memcpy(&common, frame.data(), sizeof common);
  wire::Header header;
  header.type = wire::FrameType::kPart;
  header.session = common.session.value();
  header.packet_number = common.packet_number.value();
  header.tag = entry.tag.header;
  header.idle_grant = common.type;
  if (wire::is_datagram(static_cast<wire::FrameType>(common.type))) {
    wire::Be16 priority;
    std::memcpy(&priority, frame.data() + offsetof(wire::DatagramHeader, priority), 2);
    header.grant = priority.value();
  }
  return header;
}
}  // namespace detail

// What is left to do to a datagram's frame, whose header stands at `head`; `payload` behind it, or
// elsewhere. False: it lies in whole_, to go in parts.
template <Port P, Service S>
bool Engine<P, S>::seal_or_cut(std::span<const std::byte> payload, uint64_t number, std::byte* head,
                               const SessionEntry& entry) noexcept {
  if (entry.seals != nullptr) {  // of what travels: a program may write meanwhile
    entry.seals->seal(number, sizeof(wire::DatagramHeader), head, payload);
  }
  if (entry.head_bytes + payload.size() <= entry.whole_bytes) return true;
  std::ranges::copy(payload, std::copy_n(head, entry.head_bytes, whole_.begin()));
  return false;
}

// What lies in whole_; nothing is held of the port, which may have room for little more. Where it
// has too little, the frame is lost, and noticed as any other.
template <Port P, Service S>
void Engine<P, S>::send_in_parts(const SessionEntry& entry, uint32_t bytes) noexcept {
  constexpr uint32_t kHead = sizeof(wire::PlainHeader) + wire::kPartHeaderBytes;
  const wire::Header header = detail::header_of_parts(whole_, entry);
  const uint32_t most = entry.whole_bytes - kHead;
  for (uint32_t offset = 0; offset < bytes; offset += most) {
    TxFrame part;
    if (!port_.tx_alloc(part)) {
      counters_.add(Counter::kTxBackpressure);
      return;
    }
    const uint32_t piece = std::min(most, bytes - offset);
    const uint32_t body_bytes = uint32_t{wire::kPartHeaderBytes} + piece;
    std::byte* const body = part.data + sizeof(wire::PlainHeader);
    wire::encode_part(static_cast<uint16_t>(offset), static_cast<uint16_t>(bytes), body);
    std::memcpy(body + wire::kPartHeaderBytes, whole_.data() + offset, piece);
    const uint32_t crc = wire::crc32c(body, body_bytes) ^ entry.tag.payload;
    counters_.add(Counter::kPartsSent);
    send_own_frame(part, entry, finish_frame({part.data, part.capacity}, header, body_bytes, crc));
  }
}

// What became whole in the pass before, as if it came so now: there is one place that takes frames,
// so that all it calls is inlined there. It lies where it does until the next such pass, and not in
// memory of the port.
template <Port P, Service S>
uint32_t Engine<P, S>::take_wholes() {
  taken_wholes_ = std::exchange(wholes_, {});
  uint32_t count = 0;
  for (const WholeFrame& one : taken_wholes_) {
    wire::CommonHeader common;
    std::memcpy(&common, one.bytes.data(), sizeof common);
    const SessionEntry* const entry = sessions_.find(common.session.value());
    if (entry != nullptr && !entry->closed) {
      burst_[count++] = {one.bytes, one.source, one.marked};
    } else {
      counters_.add(Counter::kDropNoSession);
    }
  }
  return count;
}

// Such a frame shows no way back to who sent it.
template <Port P, Service S>
bool Engine<P, S>::came_in_parts(const RxFrame& frame) const noexcept {
  return std::ranges::any_of(taken_wholes_, [&frame](const WholeFrame& one) {
    return one.bytes.data() == frame.payload.data();
  });
}

template <Port P, Service S>
void Engine<P, S>::on_path_changed(SessionSlot slot, uint16_t frame_bytes) {
  SessionEntry& entry = sessions_.at(slot);
  entry.whole_bytes = frame_bytes;
  entry.seals_or_cuts = true;
}

}  // namespace mercury
