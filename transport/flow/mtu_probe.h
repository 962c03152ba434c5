// Finds the largest UDP payload that a path carries: a padded PING of the size that both ports can
// do first, then binary search between what arrived and what did not. A size is given up when
// kTries probes of it were overtaken by packets that arrived; losing one is neither congestion nor
// loss of data. Small PINGs escort each probe, so that something overtakes it. What was found is
// reported once. By chance it may be too little: it is asked again (probe_again.h).
//
// Paper: RFC 8899 (DPLPMTUD) sections 5.2 and 5.3, search by halves; black holes that appear later
// are found by loss (delivery_watch.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

// IPv6's smallest MTU less its header and UDP's; every path carries it.
inline constexpr uint16_t kBasePayloadBytes = 1232;
// The answer is at most this much below what the path carries; a further halving costs three probe
// time-outs and gains less than half a percent of a frame.
inline constexpr uint16_t kProbeGranularityBytes = 8;

class MtuProbe {
 public:
  // Not started: path_payload() is the base and nothing is due.
  MtuProbe() = default;
  // `largest` is what both ports can do; below the base it is the answer, unprobed. Again: where
  // the path may carry less than it did.
  void start(uint16_t largest) noexcept {
    good_ = std::min(largest, kBasePayloadBytes);
    start_above(largest);
  }
  // The same where it carries what was found, and may carry more.
  void start_above(uint16_t largest) noexcept {
    bad_ = static_cast<uint16_t>(std::min<uint32_t>(largest + 1U, UINT16_MAX));
    size_ = static_cast<uint16_t>(bad_ - 1);
    tries_ = 0;
    waiting_ = false;
    searching_ = size_ > good_;
    reported_ = false;
  }
  // UDP payload of the probe to send now, or 0.
  uint16_t due() const noexcept { return searching_ && !waiting_ ? size_ : uint16_t{0}; }
  void on_sent() noexcept {
    waiting_ = true;
    escorts_ = kEscorts;
  }
  // A PING to send behind the probe.
  bool escort_due() const noexcept { return escorts_ > 0; }
  void on_escort_sent() noexcept { --escorts_; }
  void on_acked(uint16_t size) noexcept {
    if (!searching_) return;
    good_ = std::max(good_, size);
    if (size >= bad_) bad_ = static_cast<uint16_t>(size + 1);  // given up, and arrived after all
    if (size >= size_) advance();
  }
  // `overtaken`: later packets arrived, so the size is to blame; else the path was silent.
  void on_lost(uint16_t size, bool overtaken) noexcept {
    if (!searching_ || size != size_) return;
    waiting_ = false;
    if (!overtaken || ++tries_ < kTries) return;
    bad_ = size_;
    advance();
  }
  // This side cannot send what was due: the port gave a smaller buffer.
  void give_up_size() noexcept {
    bad_ = size_;
    advance();
  }
  bool searching() const noexcept { return searching_; }
  // The search has ended, and nobody was told.
  bool unreported() const noexcept { return !searching_ && !reported_; }
  void on_reported() noexcept { reported_ = true; }
  uint16_t path_payload() const noexcept { return good_; }

 private:
  // RFC 8899 5.1.2 MAX_PROBES: at 20 % loss a size that fits is missed once in 125.
  static constexpr uint8_t kTries = 3;
  // So many that their arrival proves a probe's loss (RFC 9002 6.1.1): within a round trip, where a
  // probe time-out may still be that of a peer which stood still.
  static constexpr uint8_t kEscorts = 3;

  void advance() noexcept {
    tries_ = 0;
    waiting_ = false;
    searching_ = bad_ - good_ > kProbeGranularityBytes;
    size_ = static_cast<uint16_t>((good_ + bad_) / 2);
  }

  uint16_t good_ = kBasePayloadBytes;
  uint16_t bad_ = 0;
  uint16_t size_ = 0;
  uint8_t tries_ = 0;
  bool waiting_ = false;
  bool searching_ = false;
  bool reported_ = false;
  uint8_t escorts_ = 0;
};

}  // namespace mercury
