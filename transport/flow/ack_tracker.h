// Which packet numbers of the peer have arrived, and when to acknowledge them.
//
// Acknowledgements are not themselves acknowledged, so the peer never says which ranges it knows. A
// range is therefore reported in kReports acknowledgements after it last changed and then left out:
// if all of those are lost, the peer sends again what had arrived, and the copy is dropped above.
//
// Paper: RFC 9000 section 13.2 (when to acknowledge, limiting ranges).
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "transport/base/arrival.h"
#include "transport/base/types.h"
#include "transport/wire/ack.h"

namespace mercury {

using NumberRange = wire::AckRange;  // first to last, both included

class AckTracker {
 public:
  // Gaps that are remembered. With more, the lowest range is forgotten: what is missing below it
  // counts as arrived, so a late packet there is dropped and sent again in a new one.
  static constexpr uint32_t kMaxRanges = wire::kMaxAckRanges;

  AckTracker(uint32_t every_packets, uint64_t max_delay_ns)
      : max_delay_ns_(max_delay_ns), every_packets_(every_packets) {}

  // A number so far above the largest was never sent: all that a peer sends while nothing of it
  // arrives is less, until it counts as lost.
  static constexpr uint64_t kMostAhead = uint64_t{1} << 32;

  bool is_new(uint64_t number) const noexcept {
    return is_next(number) || is_new_elsewhere(number);
  }
  // Why it is not: too far ahead.
  bool is_far_ahead(uint64_t number) const noexcept {
    return is_ahead(number) && number - ranges_[count_ - 1].last > kMostAhead;
  }
  // False, and nothing changes, when !is_new(number). Packets that do not elicit acknowledgement
  // (acknowledgements, handshake) are recorded so that they leave no gaps.
  // `arrival`: it may have come before `now_ns`, when it was taken.
  bool on_received(uint64_t number, bool eliciting, bool ack_now, uint64_t now_ns,
                   const Arrival& arrival = {}) noexcept {
    if (!is_next(number)) [[unlikely]]
      return on_out_of_order(number, eliciting, ack_now, now_ns, arrival);
    next_ = number + 1;
    ranges_[count_ - 1].last = number;
    reports_[count_ - 1] = kReports;
    largest_at_ns_ = now_ns;
    largest_arrival_ = arrival;
    if (eliciting) note_eliciting(ack_now, now_ns);
    return true;
  }

  bool due(uint64_t now_ns) const noexcept { return now_ns >= deadline_ns_; }
  uint64_t deadline_ns() const noexcept {
    return deadline_ns_;
  }  // 0: at once; kNever: nothing to say
  // Makes an acknowledgement due now.
  void expedite() noexcept { deadline_ns_ = 0; }

  // Fills `out` with the ranges to report, highest first, and takes the acknowledgement as sent.
  uint32_t report(std::span<NumberRange> out) noexcept;
  // How long the highest number has waited here, for the peer's round-trip time; exactly, or at
  // most so long.
  uint64_t delay_ns(uint64_t now_ns) const noexcept {
    return now_ns - largest_at_ns_ + largest_arrival_.waited_ns;
  }
  bool delay_at_most() const noexcept { return largest_arrival_.at_most; }
  uint32_t ranges() const noexcept { return count_; }
  uint64_t largest() const noexcept { return count_ == 0 ? 0 : ranges_[count_ - 1].last; }
  // Whether numbers are missing, with so many behind them that they seem lost, where they did not
  // when this was last asked. What was overtaken and has come since is not among them, and hides
  // none that is: a lost frame's number is not sent again.
  bool take_missing() noexcept { return count_ > 1 && find_missing(); }
  // The same of a peer whose packets take several paths and overtake each other in earnest: whether
  // of numbers that seemed lost some have not come `bear_ns` later.
  [[gnu::cold]] bool take_missing_for_long(uint64_t now_ns, uint64_t bear_ns) noexcept;

 private:
  // Nearly all are.
  bool is_next(uint64_t number) const noexcept { return number == next_ && number != 0; }
  bool is_new_elsewhere(uint64_t number) const noexcept;
  bool is_ahead(uint64_t number) const noexcept {
    return count_ > 0 && number > ranges_[count_ - 1].last;
  }
  static constexpr uint64_t kOvertaking = 3;  // RFC 9002 6.1.1's packet threshold
  static constexpr uint8_t kReports = 16;     // 0.2^16: all lost only when the path is down

  bool on_out_of_order(uint64_t number, bool eliciting, bool ack_now, uint64_t now_ns,
                       const Arrival& arrival) noexcept;
  void note_eliciting(bool ack_now, uint64_t now_ns) noexcept {
    ++unacknowledged_;
    if (ack_now || unacknowledged_ >= every_packets_) {
      deadline_ns_ = 0;
    } else if (deadline_ns_ == kNever) {
      deadline_ns_ = now_ns + max_delay_ns_;
    }
  }
  bool find_missing() noexcept;
  uint32_t find(uint64_t number) const noexcept;
  void insert_range(uint32_t index, uint64_t number) noexcept;
  void erase_range(uint32_t index) noexcept;
  void record(uint64_t number) noexcept;

  // Ascending, disjoint, not adjacent.
  std::array<NumberRange, kMaxRanges> ranges_;
  std::array<uint8_t, kMaxRanges> reports_{};
  uint32_t count_ = 0;
  uint64_t next_ = 0;           // after the largest; 0: there is none
  uint64_t floor_ = 0;          // numbers below are not new
  uint64_t largest_at_ns_ = 0;  // when it was taken
  Arrival largest_arrival_;
  uint64_t deadline_ns_ = kNever;
  uint64_t max_delay_ns_;
  uint32_t every_packets_;
  uint64_t missing_below_ = 0;   // this number, which arrived, is what was told of
  uint64_t watched_from_ = 0;    // it arrived, and between it and watched_to_ some seemed lost
  uint64_t watched_to_ = 0;      // it arrived; 0: none
  uint64_t watched_ns_ = 0;      // since when
  uint32_t unacknowledged_ = 0;  // eliciting packets since the last report
};

}  // namespace mercury
