// The sending half of one ordered byte stream: bytes are kept until they are acknowledged, cut into
// segments when they are first sent, and a segment that is lost is sent again as it was cut.
//
// Invariants: segments follow each other without gaps, from base() on; before it all is
// acknowledged.
// Owner/thread: one engine. Allocates as windows and lists grow, not for each segment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/flow/stream/byte_window.h"

namespace mercury {

class StreamSender {
 public:
  explicit StreamSender(BlockPool* pool = nullptr) : bytes_(pool) {}

  void append(std::span<const std::byte> bytes);
  // The same in place: room for `bytes`, and how many were written there.
  size_t reserve(size_t bytes, std::span<iovec> parts) {
    return bytes_.reserve(end_, bytes, parts);
  }
  void appended(size_t bytes);
  void finish() noexcept { finished_ = true; }  // nothing is appended any more

  struct Segment {
    uint32_t number = 0;  // names it in the calls below; may wrap
    uint32_t bytes = 0;
    uint64_t offset = 0;
    bool end = false;  // the stream ends behind it; only then it may be empty
  };
  // What goes next: the first segment that was lost, or else a new one of at most `most` bytes
  // which ends at or before `limit`, if one of any size may go. nullopt: nothing.
  std::optional<Segment> next(uint32_t most, uint64_t limit) const noexcept;
  void read(const Segment& segment, std::byte* out) const noexcept {
    bytes_.read(segment.offset, {out, segment.bytes});
  }
  uint32_t read_crc32c(uint32_t crc, const Segment& segment, std::byte* out) const noexcept {
    return bytes_.read_crc32c(crc, segment.offset, {out, segment.bytes});
  }
  void on_sent(const Segment& segment);
  void on_acked(uint32_t number) noexcept;
  void on_lost(uint32_t number) noexcept;
  // Forgets all that is kept; nothing is sent any more. The offset that new bytes had reached.
  uint64_t abandon() noexcept;

  uint64_t sent_end() const noexcept { return cut_; }  // of all that was ever sent
  uint64_t unsent_bytes() const noexcept { return end_ - cut_; }
  bool finished() const noexcept { return finished_; }
  uint64_t kept_bytes() const noexcept { return end_ - base(); }
  // Of what was appended: not acknowledged yet.
  uint64_t unacknowledged_bytes() const noexcept { return unacknowledged_bytes_; }
  uint64_t in_flight_bytes() const noexcept { return in_flight_bytes_; }
  uint64_t base() const noexcept { return segments() == 0 ? cut_ : segments_[head_].offset; }
  size_t segments() const noexcept { return segments_.size() - head_; }  // sent, not yet behind
  // Whether bytes wait to be sent, be it that there is credit for them or not.
  bool waits() const noexcept { return lost_ > 0 || cut_ < end_; }
  // Nothing waits for anything.
  bool idle() const noexcept { return segments() == 0 && cut_ == end_; }
  // All of it, its end too, has arrived.
  bool all_acknowledged() const noexcept { return end_cut_ && segments() == 0; }

 private:
  enum class Place : uint8_t { kInFlight, kLost, kAcked };
  struct Record {
    uint64_t offset = 0;
    uint32_t bytes = 0;
    Place place = Place::kInFlight;
    bool end = false;
  };
  Record* find(uint32_t number) noexcept;
  void drop_acknowledged() noexcept;

  ByteWindow bytes_;
  std::vector<Record> segments_;  // from head_ on
  size_t head_ = 0;
  uint32_t first_number_ = 0;  // of segments_[head_]
  uint32_t lost_ = 0;          // of the segments
  size_t first_lost_ = 0;      // none before it, counted from head_
  uint64_t cut_ = 0;           // all before it is in a segment or acknowledged
  uint64_t end_ = 0;
  uint64_t unacknowledged_bytes_ = 0;
  uint64_t in_flight_bytes_ = 0;
  bool finished_ = false;
  bool end_cut_ = false;  // a segment says that the stream ends
};

}  // namespace mercury
