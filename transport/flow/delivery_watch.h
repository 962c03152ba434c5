// Notices a path that carries small frames and no large ones: keepalives and acknowledgements
// arrive, so the peer seems alive, and what it waits for never comes. Frames with content
// (datagrams, control segments) of one size or more that are lost over and over for a whole peer
// time-out, and none of them delivered in between, mean that the session is of no use. Long before
// that the path is measured again, and what is more than it carries now goes in parts, where both
// sides can (wire/part.h). Where that does not help either the session ends with a reason.
//
// Which size that is nobody knows, so the losses of each power of two are a series of their own: a
// frame that is lost counts in its own series and in those of smaller ones, and one that arrives
// ends all that it is large enough for. So neither chance losses of what is carried nor one size
// beside another hides anything. What arrives after it was declared lost, as where the network
// reorders by more than losses are waited for, has arrived.
//
// Paper: RFC 8899 section 4.3 calls it black hole detection; a shorter frame would need the job to
// agree on another size.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "transport/flow/ack_tracker.h"

namespace mercury {

class DeliveryWatch {
 public:
  explicit DeliveryWatch(uint64_t limit_ns) : limit_ms_(ms_of(limit_ns)) {}

  void on_delivered(uint32_t bytes) noexcept {
    if (!losing_) return;
    losing_ = false;
    for (Series& series : series_) {
      if (bytes >= series.least_bytes) series = Series();
      if (!series.active()) continue;
      series.delivered_bytes = std::max(series.delivered_bytes, size_of(bytes));
      losing_ = true;
    }
  }
  // What the peer says to have received: of the last few that were lost, those that are among it
  // were not.
  void on_ack(std::span<const NumberRange> ranges) noexcept {
    if (!losing_) [[likely]]
      return;
    for (size_t i = 0; i < kRemembered; ++i) {
      if (lost_bytes_[i] == 0) continue;
      const bool arrived = std::ranges::any_of(ranges, [this, i](const NumberRange& range) {
        return lost_numbers_[i] - static_cast<uint32_t>(range.first) <= range.last - range.first;
      });
      if (arrived) on_delivered(std::exchange(lost_bytes_[i], uint16_t{0}));
    }
  }
  // It is noticed now, however long ago it was sent.
  void on_lost(uint64_t number, uint32_t bytes, uint64_t sent_ns, uint64_t now_ns) noexcept {
    const size_t place = next_lost_++ % kRemembered;
    lost_numbers_[place] = static_cast<uint32_t>(number);
    lost_bytes_[place] = size_of(bytes);
    latest_loss_ms_ = ms_of(now_ns);
    const size_t own = series_of(bytes);
    for (size_t i = 0; i <= own; ++i) {
      Series& series = series_[i];
      // What is lost is sent again at once, so a long silence after a loss is one in which there
      // was nothing to send: the lost frame was not needed any more.
      const auto silent_ms = static_cast<int32_t>(ms_of(sent_ns) - series.last_loss_ms);
      if (silent_ms > static_cast<int32_t>(limit_ms_ / 2)) series = Series();
      // By chance, where as large a frame has arrived since.
      const bool carried = bytes <= series.delivered_bytes;
      if (!carried && (i == own || series.active())) series.count(size_of(bytes), latest_loss_ms_);
    }
    losing_ = true;
  }
  bool hopeless() const noexcept {
    return std::ranges::any_of(series_, [this](const Series& series) {
      return goes_on(series) && series.losses >= kLeastLosses &&
             series.last_loss_ms - series.first_loss_ms >= limit_ms_;
    });
  }
  // The path may carry less than it did. Asked before hopeless(), which lasts far longer: where
  // losses are noticed slowly, as after a round trip that was long, the second one must do.
  bool doubtful() const noexcept {
    return losing_ && std::ranges::any_of(series_, [this](const Series& series) {
             const uint32_t since_ms = series.last_loss_ms - series.first_doubt_ms;
             return goes_on(series) &&
                    ((series.doubts >= kLeastLosses && since_ms >= limit_ms_ / kDoubtPart) ||
                     (series.doubts >= 2 && since_ms >= limit_ms_ / kSlowDoubtPart));
           });
  }
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
  uint32_t bytes() const noexcept {
    uint32_t most = 0;
    for (const Series& series : series_) {
      if (goes_on(series)) most = std::max<uint32_t>(most, series.most_bytes);
    }
    return most;
  }

 private:
  // Every session has these, so they are small: milliseconds, which may wrap around, and the size
  // of a UDP payload.
  struct Series {
    bool active() const noexcept { return losses > 0; }
    void count(uint16_t bytes, uint32_t now_ms) noexcept {
      if (losses == 0) first_loss_ms = now_ms;
      if (doubts == 0) first_doubt_ms = now_ms;
      losses = std::max<uint8_t>(losses, losses + 1);
      doubts = std::max<uint8_t>(doubts, doubts + 1);
      last_loss_ms = now_ms;
      most_bytes = std::max(most_bytes, bytes);
      least_bytes = std::min(least_bytes, bytes);
    }

    uint32_t first_loss_ms = 0;
    uint32_t last_loss_ms = 0;
    uint32_t first_doubt_ms = 0;
    uint16_t most_bytes = 0;
    uint16_t least_bytes = UINT16_MAX;
    uint16_t delivered_bytes = 0;  // the most, since the first loss
    uint8_t losses = 0;            // or more
    uint8_t doubts = 0;            // of them, or more: since the path was measured again
  };

  // Probe time-outs mostly back off to a quarter of a second: a time-out of 1 s sees so many. Where
  // losses are noticed later than that, it takes longer.
  static constexpr uint32_t kLeastLosses = 4;
  // Far more than probe time-outs of a path that works, far less than who waits is promised.
  static constexpr uint32_t kDoubtPart = 16;
  static constexpr uint32_t kSlowDoubtPart = 4;
  // From what every path carries to the largest UDP payload.
  static constexpr size_t kSmallestBits = 9;
  static constexpr size_t kSeries = 16 - kSmallestBits + 1;
  // A path of which all frames are late has so many on it whose windows are small.
  static constexpr size_t kRemembered = 16;

  static uint32_t ms_of(uint64_t ns) noexcept { return static_cast<uint32_t>(ns / 1'000'000); }
  static uint16_t size_of(uint32_t bytes) noexcept {
    return static_cast<uint16_t>(std::min(bytes, uint32_t{UINT16_MAX - 1}));
  }
  static size_t series_of(uint32_t bytes) noexcept {
    const size_t bits = std::bit_width(bytes);
    return std::clamp(bits, kSmallestBits, kSmallestBits + kSeries - 1) - kSmallestBits;
  }
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
