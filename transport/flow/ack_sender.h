// What this side's acknowledgements say: which packet numbers arrived (ack_tracker.h), which of
// them carried datagrams that were refused for now (refused_numbers.h), how many of these frames
// the network marked, and what the peer may have in flight (credit.h decides).
//
// Invariant: a mark is counted with the frame that carried it, and once: what is not taken, or is a
// duplicate, counts nothing.
// Owner/thread: one engine. Nothing allocates, but the first refusal of a session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "transport/base/counters.h"
#include "transport/flow/ack_tracker.h"
#include "transport/flow/refused_numbers.h"
#include "transport/wire/ack.h"
#include "transport/wire/header.h"

namespace mercury {

class AckSender {
 public:
  AckSender(uint32_t every_packets, uint64_t max_delay_ns)
      : tracker_(every_packets, max_delay_ns) {}

  bool is_new(uint64_t number) const noexcept { return tracker_.is_new(number); }
  uint64_t largest() const noexcept { return tracker_.largest(); }
  Counter reason_of_drop(uint64_t number) const noexcept {  // of one that is not
    return tracker_.is_far_ahead(number) ? Counter::kDropFarAhead : Counter::kDropDuplicate;
  }
  // A frame that is to be acknowledged, and how it came.
  void on_received(uint64_t number, bool ack_now, uint64_t now_ns,
                   const Arrival& arrival) noexcept {
    const bool taken = tracker_.on_received(number, true, ack_now, now_ns, arrival);
    if (taken && arrival.ecn_ce) ++marked_;
  }
  // A datagram that arrived and is refused for now: said at once. False: it cannot be said, and the
  // number has not been received.
  bool on_refused(uint64_t number, uint64_t now_ns, const Arrival& arrival) noexcept {
    if (!refused_) refused_.reset(new (std::nothrow) RefusedNumbers);
    if (!refused_ || !refused_->add(number)) return false;
    on_received(number, true, now_ns, arrival);
    return true;
  }
  // An acknowledgement: its number leaves no gap, and nothing answers it.
  void on_ack_received(uint64_t number, uint64_t now_ns) noexcept {
    tracker_.on_received(number, false, false, now_ns);
  }
  // Units of wire::kGrantUnitBytes: now, and after a pause.
  void set_grant(uint16_t now_units, uint16_t idle_units) noexcept {
    grant_ = now_units;
    idle_grant_ = idle_units;
  }

  bool due(uint64_t now_ns) const noexcept { return tracker_.due(now_ns); }
  uint64_t deadline_ns() const noexcept { return tracker_.deadline_ns(); }  // as AckTracker's
  void expedite() noexcept { tracker_.expedite(); }
  // Fills the body and the header's grants, and takes the acknowledgement as sent.
  void report(wire::Ack& ack, wire::Header& header, uint64_t now_ns) noexcept {
    const uint64_t delay_us = tracker_.delay_ns(now_ns) / 1000;
    ack.delay_us = static_cast<uint32_t>(std::min<uint64_t>(delay_us, UINT32_MAX));
    ack.count = static_cast<uint16_t>(tracker_.report(ack.ranges));
    if (refused_) [[unlikely]]
      report_refused(ack);
    if (tracker_.delay_at_most()) header.flags |= wire::kFlagAtMost;
    ack.marked = marked_;
    header.grant = grant_;
    header.idle_grant = idle_grant_;
  }

  uint16_t marked() const noexcept { return marked_; }  // wraps
  bool take_missing() noexcept { return tracker_.take_missing(); }
  bool take_missing_for_long(uint64_t now_ns, uint64_t bear_ns) noexcept {
    return tracker_.take_missing_for_long(now_ns, bear_ns);
  }

 private:
  // `ack` has its ranges.
  [[gnu::cold]] void report_refused(wire::Ack& ack) noexcept {
    const uint64_t floor = refused_->floor();
    while (ack.count > 1 && ack.ranges[ack.count - 1].last < floor) --ack.count;
    if (ack.count == 0) return;
    wire::AckRange& lowest = ack.ranges[ack.count - 1];
    lowest.first = std::max(lowest.first, floor);
    ack.refused = static_cast<uint16_t>(refused_->report(ack.refused_ranges, tracker_.largest()));
  }

  AckTracker tracker_;
  std::unique_ptr<RefusedNumbers> refused_;  // once something was
  uint16_t marked_ = 0;
  uint16_t grant_ = 0;
  uint16_t idle_grant_ = 0;
};

}  // namespace mercury
