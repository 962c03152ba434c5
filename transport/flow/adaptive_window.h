// A window that follows the path: additive increase, multiplicative decrease, once per round trip.
//
// Signals, in this order of trust: the share of frames that the network marked (ECN); the queueing
// delay, where even the fastest packet of a round trip waited longer than the target; loss. The
// first two come before queues overflow. Loss alone is believed where the path has marked nothing
// for a minute or two and packets waited, or where an eighth of all packets are lost: random loss
// of a few per cent is repaired, not obeyed. Because marks and delay are obeyed at once and windows
// go down to a fraction of a frame, Mercury yields to traffic that fills queues.
//
// Start: kFirstBytes, doubled per round trip until the first sign of congestion. Increase:
// one frame per round trip (an eighth of one while the window is below a frame), doubled each round
// trip after kPatientRounds without congestion, by half the window at most, so that a path that got
// ten times faster is found in a few. The window grows only while it is what limits the sender.
//
// Paper: DCTCP (Alizadeh et al., SIGCOMM 2010, sections 3.1 and 3.2) for marks; Swift (Kumar et
// al., SIGCOMM 2020, sections 3.1 and 3.4) for delay and windows below one packet; TIMELY (Mittal
// et al., SIGCOMM 2015, section 4.3) for the doubled increase. Which and why:
// docs/reliability.md.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <cstdint>

#include "transport/flow/congestion.h"

namespace mercury {

struct AdaptiveWindowConfig {
  uint64_t max_bytes = 0;        // never above
  uint64_t delay_target_ns = 0;  // queueing delay that is tolerated; 0 = delay is not looked at
};

class AdaptiveWindow {
 public:
  // RFC 6928's ten packets of 1,500 bytes: what a queue of a few hundred kilobytes takes from some
  // tens of senders at once.
  static constexpr uint64_t kFirstBytes = 16 * 1024;
  // Of a frame: 64 senders of jumbo frames then have four of them under way at least. Much lower,
  // and one that was pushed down would not learn for long that the path is free again.
  static constexpr uint32_t kLeastFraction = 16;

  explicit AdaptiveWindow(const AdaptiveWindowConfig& config) noexcept;

  void set_frame_bytes(uint32_t bytes) noexcept { frame_bytes_ = bytes; }
  void on_ack(const AckSample& sample) noexcept;
  void on_lost(bool silence, uint64_t now_ns) noexcept;
  uint64_t window_bytes() const noexcept { return window_bytes_; }

  double marked_share() const noexcept { return share_; }  // DCTCP's alpha
  uint64_t base_rtt_ns() const noexcept;                   // least in the last minute or two
  bool starting() const noexcept { return starting_; }

 private:
  struct RoundSeen {  // what was seen since the round began
    uint64_t packets = 0;
    uint64_t marked = 0;
    uint64_t lost = 0;
    uint64_t bytes = 0;
    uint64_t least_rtt_ns = ~uint64_t{0};
    uint64_t most_rtt_ns = 0;
    uint64_t most_in_flight_bytes = 0;
  };

  void note_rtt(const AckSample& sample) noexcept;
  void end_round() noexcept;
  double cut() noexcept;  // share of the window to give up
  double delay_cut() const noexcept;
  bool loss_counts() const noexcept;
  void grow() noexcept;
  void set_window(double bytes) noexcept;

  AdaptiveWindowConfig config_;
  uint64_t window_bytes_;
  uint64_t threshold_bytes_;  // doubling ends here
  uint32_t frame_bytes_;
  uint32_t clean_rounds_ = 0;
  bool starting_ = true;
  bool marks_seen_ = false;  // the path marks, so what it drops it drops for another reason
  bool marked_lately_ = false;
  double share_ = 0;
  double loss_share_ = 0;  // of the last hundred packets or so
  RoundSeen round_;
  uint64_t round_began_ns_ = 0;
  // Two periods, so that a path that got longer, or is another one, is believed after two of them.
  uint64_t base_rtt_ns_ = ~uint64_t{0};
  uint64_t previous_base_rtt_ns_ = ~uint64_t{0};
  uint64_t period_began_ns_ = 0;
};
static_assert(CongestionControl<AdaptiveWindow>);

}  // namespace mercury
