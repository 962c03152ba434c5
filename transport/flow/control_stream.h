// Stream 0 of every session: an ordered byte stream in each direction (stream/), cut into messages
// that are each a u32 of their length (big-endian) and that many bytes. Two halves, one for each
// direction. Its window is fixed and needs no credit: messages are taken as they come.
//
// Cold path: both halves allocate, and hold no heap memory when all is acknowledged or delivered.
// Owner/thread: one engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/flow/stream/stream_receiver.h"
#include "transport/flow/stream/stream_sender.h"

namespace mercury {

inline constexpr size_t kMaxControlMessageBytes = 256 * 1024;
inline constexpr size_t kMaxControlUnacknowledgedBytes = 1024 * 1024;
// How far ahead of what is delivered the sender may be: what the receiver may have to keep.
inline constexpr uint64_t kControlWindowBytes = 256 * 1024;
// Fits the smallest path (1232 bytes of UDP payload) with both headers, so that no segment is ever
// too large for a path, and sending again needs no new cut.
inline constexpr uint32_t kControlSegmentBytes = 1184;

class ControlSender {
 public:
  // False when more than kMaxControlUnacknowledgedBytes would wait. `message` is at most
  // kMaxControlMessageBytes.
  bool push(std::span<const std::byte> message);

  // The first segment that waits, within the receiver's window; never sent and lost ones alike.
  // Small messages share one, as long as it was never sent.
  std::optional<StreamSender::Segment> next() const noexcept;
  void read(const StreamSender::Segment& segment, std::byte* out) const noexcept {
    out_.read(segment, out);
  }
  void on_sent(const StreamSender::Segment& segment) { out_.on_sent(segment); }
  void on_acked(uint32_t segment) noexcept { out_.on_acked(segment); }
  void on_lost(uint32_t segment) noexcept { out_.on_lost(segment); }

  bool waits() const noexcept { return out_.waits(); }
  bool idle() const noexcept { return out_.idle(); }
  uint64_t in_flight_bytes() const noexcept { return out_.in_flight_bytes(); }
  // Segments are so much smaller from now on: what stands beside them in each frame of the session.
  void leave_room(uint32_t bytes) noexcept { segment_bytes_ = kControlSegmentBytes - bytes; }

 private:
  StreamSender out_;
  uint32_t segment_bytes_ = kControlSegmentBytes;
};

class ControlReceiver {
 public:
  // `bytes` of the stream at `offset`. False when they are outside the window or too fragmented:
  // they must not be acknowledged. Whole messages are then had from next_message().
  bool on_bytes(uint64_t offset, std::span<const std::byte> bytes);
  enum class Next : uint8_t {
    kMessage,
    kNone,
    kBad,  // a length above kMaxControlMessageBytes: the peer broke the protocol
  };
  Next next_message(std::vector<std::byte>& message);

 private:
  StreamReceiver in_;
};

}  // namespace mercury
