#include "transport/flow/delivery_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace mercury {
namespace {

// Probe time-outs mostly back off to a quarter of a second: a time-out of 1 s sees so many. Where
// losses are noticed later than that, it takes longer.
constexpr uint32_t kLeastLosses = 4;
// Far more than probe time-outs of a path that works, far less than who waits is promised.
constexpr uint32_t kDoubtPart = 16;
constexpr uint32_t kSlowDoubtPart = 4;
constexpr uint32_t kForgottenAfter = 8;  // limits

uint16_t size_of(uint32_t bytes) noexcept {
  return static_cast<uint16_t>(std::min(bytes, uint32_t{UINT16_MAX - 1}));
}

uint8_t one_more(uint8_t count) noexcept {
  return count == UINT8_MAX ? count : static_cast<uint8_t>(count + 1);
}

}  // namespace

void DeliveryWatch::Series::count(uint16_t bytes, uint32_t now_ms) noexcept {
  if (losses == 0) first_loss_ms = now_ms;
  if (doubts == 0) first_doubt_ms = now_ms;
  losses = one_more(losses);
  doubts = one_more(doubts);
  last_loss_ms = now_ms;
  most_bytes = std::max(most_bytes, bytes);
  least_bytes = std::min(least_bytes, bytes);
}

void DeliveryWatch::end_series(uint32_t delivered_bytes) noexcept {
  losing_ = false;
  for (Series& series : series_) {
    if (delivered_bytes >= series.least_bytes) series = Series();
    if (!series.active()) continue;
    series.delivered_bytes = std::max(series.delivered_bytes, size_of(delivered_bytes));
    losing_ = true;
  }
}

void DeliveryWatch::find_late(std::span<const NumberRange> ranges, uint64_t now_ns) noexcept {
  // However late losses are noticed: nothing so large is sent any more.
  if (ms_of(now_ns) - latest_loss_ms_ > kForgottenAfter * limit_ms_) return forget();
  for (size_t i = 0; i < kRemembered; ++i) {
    if (lost_bytes_[i] == 0) continue;
    const bool arrived = std::ranges::any_of(ranges, [this, i](const NumberRange& range) {
      const uint32_t below_last = static_cast<uint32_t>(range.last) - lost_numbers_[i];
      return below_last <= range.last - range.first && below_last <= UINT32_MAX / 2;
    });
    if (arrived) on_delivered(std::exchange(lost_bytes_[i], uint16_t{0}));
  }
}

void DeliveryWatch::on_lost(uint64_t number, uint32_t bytes, uint64_t sent_ns,
                            uint64_t now_ns) noexcept {
  const size_t place = next_lost_++ % kRemembered;
  lost_numbers_[place] = static_cast<uint32_t>(number);
  lost_bytes_[place] = size_of(bytes);
  latest_loss_ms_ = ms_of(now_ns);
  const size_t bits = std::clamp<size_t>(std::bit_width(bytes), kSmallestBits, kLargestBits);
  const size_t own = bits - kSmallestBits;
  for (size_t i = 0; i <= own; ++i) {
    Series& series = series_[i];
    // What is lost is sent again at once, so a long silence after a loss is one in which there was
    // nothing to send: the lost frame was not needed any more.
    const uint32_t noticed_ms = ms_of(now_ns - std::min(sent_ns, now_ns));
    if (latest_loss_ms_ - series.last_loss_ms > limit_ms_ / 2 + noticed_ms) series = Series();
    // By chance, where as large a frame has arrived since.
    const bool carried = bytes <= series.delivered_bytes;
    if (!carried && (i == own || series.active())) series.count(size_of(bytes), latest_loss_ms_);
  }
  losing_ = true;
}

bool DeliveryWatch::hopeless() const noexcept {
  return std::ranges::any_of(series_, [this](const Series& series) {
    return goes_on(series) && series.losses >= kLeastLosses &&
           series.last_loss_ms - series.first_loss_ms >= limit_ms_;
  });
}

bool DeliveryWatch::any_doubtful() const noexcept {
  return std::ranges::any_of(series_, [this](const Series& series) {
    const uint32_t since_ms = series.last_loss_ms - series.first_doubt_ms;
    return goes_on(series) &&
           ((series.doubts >= kLeastLosses && since_ms >= limit_ms_ / kDoubtPart) ||
            (series.doubts >= 2 && since_ms >= limit_ms_ / kSlowDoubtPart));
  });
}

uint32_t DeliveryWatch::bytes() const noexcept {
  uint32_t most = 0;
  for (const Series& series : series_) {
    if (goes_on(series)) most = std::max<uint32_t>(most, series.most_bytes);
  }
  return most;
}

}  // namespace mercury
