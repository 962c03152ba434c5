// Notices a path that carries small frames and no large ones: keepalives and acknowledgements
// arrive, so the peer seems alive, and what it waits for never comes. Frames with content
// (datagrams, control segments) of one size or more that are lost over and over for a whole peer
// time-out, and none of them delivered in between, mean that the session is of no use. Long before
// that the path is measured again, and what is more than it carries now goes in parts, where both
// sides can (wire/part.h). Where that does not help either the session ends with a reason.
//
// Which size that is nobody knows, so the losses of each power of two (below 512 bytes: together,
// as every path carries them) are a series of their own: a
// frame that is lost counts in its own series and in those of smaller ones, and one that arrives
// ends all that it is large enough for. So neither chance losses of what is carried nor one size
// beside another hides anything. What arrives after it was declared lost, as where the network
// reorders by more than losses are waited for, has arrived.
//
// Paper: RFC 8899 section 4.3 calls it black hole detection; a shorter frame would need the job to
// agree on another size.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/flow/ack_tracker.h"

namespace mercury {

class DeliveryWatch {
 public:
  explicit DeliveryWatch(uint64_t limit_ns) : limit_ms_(ms_of(limit_ns)) {}

  void on_delivered(uint32_t bytes) noexcept {
    if (losing_) [[unlikely]]
      end_series(bytes);
  }
  // What the peer says to have received: of the last few that were lost, those that are among it
  // were not.
  void on_ack(std::span<const NumberRange> ranges, uint64_t now_ns) noexcept {
    if (losing_) [[unlikely]]
      find_late(ranges, now_ns);
  }
  // It is noticed now, however long ago it was sent.
  [[gnu::cold]] void on_lost(uint64_t number, uint32_t bytes, uint64_t sent_ns,
                             uint64_t now_ns) noexcept;
  [[gnu::cold]] bool hopeless() const noexcept;
  // The path may carry less than it did. Asked before hopeless(), which lasts far longer: where
  // losses are noticed slowly, as after a round trip that was long, the second one must do.
  bool doubtful() const noexcept { return losing_ && any_doubtful(); }
  // The path is measured again, from now on.
  void doubted() noexcept {
    for (Series& series : series_) series.doubts = 0;
  }
  void forget() noexcept {
    series_ = {};
    lost_bytes_ = {};
    losing_ = false;
  }
  // Of the largest of the frames that are lost.
  [[gnu::cold]] uint32_t bytes() const noexcept;

 private:
  // Every session has these, so they are small: milliseconds, which may wrap around, and the size
  // of a UDP payload.
  struct Series {
    bool active() const noexcept { return losses > 0; }
    void count(uint16_t bytes, uint32_t now_ms) noexcept;

    uint32_t first_loss_ms = 0;
    uint32_t last_loss_ms = 0;
    uint32_t first_doubt_ms = 0;
    uint16_t most_bytes = 0;
    uint16_t least_bytes = UINT16_MAX;
    uint16_t delivered_bytes = 0;  // the most, since the first loss
    uint8_t losses = 0;            // or more
    uint8_t doubts = 0;            // of them, or more: since the path was measured again
  };

  // Of sizes: 9 are those below 512 bytes, 16 those up to the largest UDP payload.
  static constexpr size_t kSmallestBits = 9;
  static constexpr size_t kLargestBits = 16;
  static constexpr size_t kSeries = kLargestBits - kSmallestBits + 1;
  // Late is what takes longer than a loss is waited for. Then the window is a frame or two, so few
  // more are declared lost while one is on its way.
  static constexpr size_t kRemembered = 16;

  static uint32_t ms_of(uint64_t ns) noexcept { return static_cast<uint32_t>(ns / 1'000'000); }
  [[gnu::cold]] void end_series(uint32_t delivered_bytes) noexcept;
  [[gnu::cold]] void find_late(std::span<const NumberRange> ranges, uint64_t now_ns) noexcept;
  [[gnu::cold]] bool any_doubtful() const noexcept;
  // What the latest loss says nothing of may have ended long ago.
  bool goes_on(const Series& series) const noexcept {
    return series.active() && series.last_loss_ms == latest_loss_ms_;
  }

  uint32_t limit_ms_;
  uint32_t latest_loss_ms_ = 0;
  std::array<Series, kSeries> series_;
  std::array<uint32_t, kRemembered> lost_numbers_{};  // of the last ones: their lowest bits
  std::array<uint16_t, kRemembered> lost_bytes_{};    // 0: it arrived, or is none
  uint8_t next_lost_ = 0;
  bool losing_ = false;  // else every series is empty
};

}  // namespace mercury
