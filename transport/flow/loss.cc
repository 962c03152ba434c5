#include "transport/flow/loss.h"

#include <algorithm>
#include <limits>

#include "transport/base/random.h"

namespace mercury {

bool LossDetector::on_sent(SentKind kind, uint64_t number, const SentTag& tag, uint32_t bytes,
                           uint64_t now_ns) noexcept {
  if (!history_.append(kind, number, tag, bytes, now_ns)) return false;
  probe_base_ns_ = std::max(probe_base_ns_, now_ns);
  return true;
}

uint64_t LossDetector::backed_off_ns() const noexcept {
  const uint64_t least_ns =
      config_.min_probe_timeout_ns / (timeouts_in_a_row_ == 0 ? kFirstProbePart : 1);
  const uint64_t once_ns = std::max(rtt_.probe_timeout_ns(config_.max_ack_delay_ns), least_ns);
  const uint64_t limit_ns = std::max(config_.max_probe_timeout_ns, once_ns);
  const uint64_t wait_ns = std::min(once_ns << std::min(timeouts_in_a_row_, 16U), limit_ns);
  // Up to an eighth more, the same for one time-out however often it is asked for.
  // Engines that start together must not probe together, and a seed must repeat a run.
  uint64_t seed = config_.jitter_seed + probe_timeouts_;
  const uint64_t random = split_mix(seed);
  return wait_ns + ((wait_ns / 8) * (random >> 32) >> 32);
}

uint64_t LossDetector::deadline_ns() const noexcept {
  if (history_.packets_in_flight() == 0) return kNever;
  if (loss_time_ns_ != kNever) return loss_time_ns_;
  return probe_base_ns_ + backed_off_ns();
}

void LossDetector::clear() noexcept {
  history_.clear();
  loss_time_ns_ = kNever;
  probes_due_ = 0;
}

void LossDetector::move(uint64_t number, bool other_path, uint64_t now_ns) noexcept {
  moved_number_ = number;
  history_.weigh_nothing();
  declared_.fill({});
  declared_count_ = declared_next_ = 0;
  real_losses_ = 0;
  note_progress(now_ns);
  if (!other_path) return;
  rtt_ = RttEstimator(config_.initial_rtt_ns);
  packet_threshold_ = kFirstPacketThreshold;
  time_eighths_ = kFirstTimeEighths;
  late_ns_ = lately_ns_ = trips_ = 0;
  stood_still_ns_ = 0;
}

// Twice what was seen: a packet that was late by less than the threshold would teach nothing else.
void LossDetector::note_reordering(uint64_t distance, uint64_t took_ns) noexcept {
  const uint64_t wanted = std::min<uint64_t>(2 * distance, kMaxPacketThreshold);
  packet_threshold_ = std::max(packet_threshold_, static_cast<uint32_t>(wanted));
  const uint64_t late_ns = std::min(took_ns * kFirstTimeEighths / 8, most_delay_ns());
  late_ns_ = std::max(late_ns_, late_ns);
  lately_ns_ = std::max(lately_ns_, late_ns);
}

// As long as silence is borne with.
uint64_t LossDetector::most_delay_ns() const noexcept {
  return std::max(rtt_.probe_timeout_ns(config_.max_ack_delay_ns), config_.min_probe_timeout_ns);
}

// A host that stood still for longer than silence is borne with does not do so at every round trip,
// so it counts as a probe time-out, and once for all that was sent before. Waits that stay long are
// followed within some round trips. What else was under way is waited for as long as this one: its
// acknowledgement may lie behind.
void LossDetector::note_long_wait(const SentRecord& record, uint64_t ack_delay_ns,
                                  uint64_t waited_ns, uint64_t now_ns) noexcept {
  const uint64_t whole_ns = now_ns - record.sent_ns;
  const bool beyond = waited_ns == std::numeric_limits<uint32_t>::max();
  const uint64_t waits_ns = beyond ? whole_ns : std::min(ack_delay_ns + waited_ns, whole_ns);
  const uint64_t most_ns = most_delay_ns();
  if (waits_ns <= most_ns) {
    return rtt_.sample(whole_ns, ack_delay_ns, config_.max_ack_delay_ns);
  }
  if (record.sent_ns >= stood_still_ns_) {
    stood_still_ns_ = now_ns;
    rtt_.sample(std::max(whole_ns - waits_ns, most_ns), 0, config_.max_ack_delay_ns);
  }
  rtt_.stood_still(whole_ns);
}

// Time in which nothing is acknowledged says nothing of paths.
void LossDetector::age_lateness(uint64_t now_ns) noexcept {
  if (now_ns - trip_ns_ < rtt_.smoothed_ns()) return;
  trip_ns_ = now_ns;
  if (++trips_ < kTripsRemembered) return;
  late_ns_ = std::max(late_ns_ / 2, lately_ns_);
  lately_ns_ = trips_ = 0;
}

void LossDetector::note_loss(const SentRecord& record) noexcept {
  if (sent_before_move(record.number)) return;
  if (declared_[declared_next_].distance != 0 && ++real_losses_ == kRemembered) {
    real_losses_ = 0;
    late_ns_ /= 2;
    lately_ns_ = 0;
  }
  const uint64_t newest = newest_of_path(record);
  const uint64_t distance = newest > record.number ? newest - record.number : 1;
  declared_[declared_next_] = {
      record.number, record.sent_ns,
      static_cast<uint32_t>(std::min<uint64_t>(distance, kMaxPacketThreshold)),
      static_cast<uint8_t>(record.tag.path() % kMostPaths)};
  declared_next_ = (declared_next_ + 1) % kRemembered;
  declared_count_ = std::min(declared_count_ + 1, kRemembered);
}

void LossDetector::note_spurious(std::span<const NumberRange> ranges, uint64_t now_ns) noexcept {
  if (declared_count_ == 0) return;
  for (uint32_t i = 0; i < declared_count_; ++i) {
    Declared& declared = declared_[i];
    if (declared.distance == 0) continue;
    for (const NumberRange& range : ranges) {
      if (declared.number > range.last) break;
      if (declared.number < range.first) continue;
      ++spurious_losses_;
      const uint64_t newest = newest_ == nullptr ? largest_acked_ : (*newest_)[declared.path];
      const uint64_t distance = newest > declared.number ? newest - declared.number : 0;
      note_reordering(std::max<uint64_t>(declared.distance, distance), now_ns - declared.sent_ns);
      real_losses_ = 0;
      time_eighths_ = std::min(time_eighths_ + 1, kMaxTimeEighths);
      declared.distance = 0;
      break;
    }
  }
}

}  // namespace mercury
