// Round-trip time of one session, and the time-outs that follow from it.
//
// Paper: RFC 9002 section 5 (estimator), 6.1.2 (time threshold), 6.2.1 (probe time-out).
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class RttEstimator {
 public:
  explicit RttEstimator(uint64_t initial_ns)
      : smoothed_ns_(initial_ns), variance_ns_(initial_ns / 2) {}

  // `ack_delay_ns` is what the peer says it waited; it is believed up to `max_ack_delay_ns` and not
  // below the smallest round trip seen.
  void sample(uint64_t rtt_ns, uint64_t ack_delay_ns, uint64_t max_ack_delay_ns) noexcept {
    rtt_ns = std::min(rtt_ns, kLongestNs);
    latest_ns_ = rtt_ns;
    if (!has_sample_) {
      has_sample_ = true;
      min_ns_ = rtt_ns;
      smoothed_ns_ = rtt_ns;
      variance_ns_ = rtt_ns / 2;
      return;
    }
    min_ns_ = std::min(min_ns_, rtt_ns);
    const uint64_t delay_ns = std::min(ack_delay_ns, max_ack_delay_ns);
    const uint64_t adjusted_ns = rtt_ns >= min_ns_ + delay_ns ? rtt_ns - delay_ns : rtt_ns;
    const uint64_t error_ns =
        smoothed_ns_ > adjusted_ns ? smoothed_ns_ - adjusted_ns : adjusted_ns - smoothed_ns_;
    variance_ns_ = (3 * variance_ns_ + error_ns) / 4;
    smoothed_ns_ = (7 * smoothed_ns_ + adjusted_ns) / 8;
  }
  // The latest took so long because a host stood still: what else was under way is given as long,
  // until the next sample. What is estimated stays.
  void stood_still(uint64_t rtt_ns) noexcept { latest_ns_ = std::min(rtt_ns, kLongestNs); }
  // A guess better than the initial one, before the first sample (the handshake: it includes the
  // time in which the peer's control plane decided, so it only ever lowers the guess).
  void hint(uint64_t rtt_ns) noexcept {
    if (has_sample_ || rtt_ns >= smoothed_ns_) return;
    smoothed_ns_ = rtt_ns;
    variance_ns_ = rtt_ns / 2;
  }

  uint64_t smoothed_ns() const noexcept { return smoothed_ns_; }
  // For pacing: at once when the path got faster, in time when it got slower.
  uint64_t pacing_ns() const noexcept {
    return latest_ns_ == 0 ? smoothed_ns_ : std::min(smoothed_ns_, latest_ns_);
  }
  uint64_t min_ns() const noexcept { return min_ns_; }  // 0 before the first sample
  // max(smoothed, latest) * eighths / 8, at least kGranularityNs.
  uint64_t loss_delay_ns(uint32_t eighths) const noexcept {
    return std::max(std::max(smoothed_ns_, latest_ns_) * eighths / 8, kGranularityNs);
  }
  uint64_t probe_timeout_ns(uint64_t max_ack_delay_ns) const noexcept {
    return smoothed_ns_ + std::max(4 * variance_ns_, kGranularityNs) + max_ack_delay_ns;
  }

 private:
  // A poll loop on a shared core is off by this much now and then; RFC 9002 says 1 ms for timers of
  // general-purpose systems, which is 20 round trips of a data centre.
  static constexpr uint64_t kGranularityNs = 100'000;
  // Longer is not a path but a host that was suspended, and its clock with it: what is lost next
  // would be taken for late for as long again.
  static constexpr uint64_t kLongestNs = 1'000'000'000;

  uint64_t smoothed_ns_;
  uint64_t variance_ns_;
  uint64_t latest_ns_ = 0;
  uint64_t min_ns_ = 0;
  bool has_sample_ = false;
};

}  // namespace mercury
