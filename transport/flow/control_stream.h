// The ordered, reliable byte stream of a session, cut into messages: each is a u32 of its length
// (big-endian) and that many bytes. Two halves, one for each direction.
//
// Cold path: both halves allocate, and hold no heap memory when all is acknowledged or delivered.
// Owner/thread: one engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

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

  struct Segment {
    uint64_t offset = 0;
    std::span<const std::byte> bytes;  // empty: nothing to send
  };
  // The first segment that waits, within the receiver's window; never sent and lost ones alike.
  Segment next() const noexcept;
  void on_sent(uint64_t offset) noexcept;
  void on_acked(uint64_t offset) noexcept;
  void on_lost(uint64_t offset) noexcept;

  bool idle() const noexcept { return segments_.empty(); }
  uint64_t in_flight_bytes() const noexcept { return in_flight_bytes_; }

 private:
  enum class Place : uint8_t { kWaiting, kInFlight, kAcked };
  struct Piece {
    uint64_t offset = 0;
    Place place = Place::kWaiting;
    bool sent = false;  // its length is on the wire: nothing may be added
    std::vector<std::byte> bytes;
  };
  void append(std::span<const std::byte> bytes);
  Piece* find(uint64_t offset) noexcept;

  std::vector<Piece> segments_;  // ascending; all before the first are acknowledged
  size_t first_waiting_ = 0;     // no segment before it waits
  uint64_t end_ = 0;             // offset of the next byte pushed
  uint64_t unacknowledged_bytes_ = 0;
  uint64_t in_flight_bytes_ = 0;
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
  // A hostile peer could send one byte in each frame, and each piece costs a map node.
  static constexpr size_t kMaxPieces = 256;

  bool keep(uint64_t offset, std::span<const std::byte> bytes);
  void deliver(std::span<const std::byte> bytes);

  uint64_t next_ = 0;             // all before it has arrived
  std::vector<std::byte> ready_;  // in order
  size_t taken_ = 0;              // of ready_, handed out: a length stands behind it
  std::map<uint64_t, std::vector<std::byte>> pieces_;  // out of order
  uint64_t pieces_bytes_ = 0;
};

}  // namespace mercury
