#include "transport/flow/adaptive_window.h"

#include <algorithm>
#include <utility>

namespace mercury {
namespace {

// IPv6's least MTU without headers, until the path is measured.
constexpr uint32_t kFirstFrameBytes = 1232;
// Weight of the newest round in the marked share. DCTCP's 1/16 needs 16 rounds to believe a path
// that became ten times slower, while its queue overflows.
constexpr double kShareGain = 1.0 / 8;
// Of the window, per round: Swift's limit, and TCP's answer to loss.
constexpr double kMostCut = 0.5;
// Swift's beta: how much of the excess delay is taken back at once.
constexpr double kDelayGain = 0.8;
// Delay has in it what hosts do that no port sees (a late kernel, a processor that is not theirs):
// it alone never takes a window below this.
constexpr uint32_t kDelayFloorFrames = 4;
constexpr double kLossGain = 1.0 / 128;
constexpr double kLossBelieved = 1.0 / 8;
constexpr double kLossCut = 0.3;  // CUBIC's
constexpr uint64_t kLossDelayNs = 50'000;
constexpr uint32_t kPatientRounds = 4;
constexpr uint32_t kMostDoublings = 16;
constexpr uint64_t kBasePeriodNs = 60'000'000'000;

}  // namespace

AdaptiveWindow::AdaptiveWindow(const AdaptiveWindowConfig& config) noexcept
    : config_(config),
      window_bytes_(std::min(kFirstBytes, config.max_bytes)),
      threshold_bytes_(config.max_bytes),
      frame_bytes_(kFirstFrameBytes) {}

uint64_t AdaptiveWindow::base_rtt_ns() const noexcept {
  return std::min(base_rtt_ns_, previous_base_rtt_ns_);
}

// What a host's wait may hide is no queue of the network's, and no shorter way either.
void AdaptiveWindow::note_rtt(const AckSample& sample) noexcept {
  const uint64_t at_most_ns = std::max(sample.rtt_ns, sample.rtt_most_ns);
  if (sample.now_ns - period_began_ns_ >= kBasePeriodNs) {
    period_began_ns_ = sample.now_ns;
    marks_seen_ = std::exchange(marked_lately_, false);
    previous_base_rtt_ns_ = base_rtt_ns_;
    base_rtt_ns_ = at_most_ns;
  }
  base_rtt_ns_ = std::min(base_rtt_ns_, at_most_ns);
  round_.least_rtt_ns = std::min(round_.least_rtt_ns, sample.rtt_ns);
  round_.most_rtt_ns = std::max(round_.most_rtt_ns, sample.rtt_ns);
}

void AdaptiveWindow::on_ack(const AckSample& sample) noexcept {
  if (sample.packets == 0) return;
  if (sample.rtt_ns != 0) note_rtt(sample);
  round_.packets += sample.packets;
  round_.bytes += sample.bytes;
  round_.marked += std::min(sample.marked, sample.packets);
  round_.most_in_flight_bytes = std::max(round_.most_in_flight_bytes, sample.in_flight_bytes);
  loss_share_ *= 1 - std::min(0.5, kLossGain * sample.packets);
  if (sample.marked > 0) marks_seen_ = marked_lately_ = true;
  if (sample.newest_sent_ns < round_began_ns_) return;
  end_round();
  round_ = RoundSeen();
  round_began_ns_ = sample.now_ns;
}

void AdaptiveWindow::on_lost(bool silence, uint64_t now_ns) noexcept {
  ++round_.lost;
  loss_share_ += (1 - loss_share_) * kLossGain;
  if (!silence) return;
  // Nothing is known about a path that was silent: as at the start, half way to where it was.
  threshold_bytes_ = std::max(window_bytes_ / 2, kFirstBytes);
  set_window(static_cast<double>(std::min(window_bytes_, kFirstBytes)));
  starting_ = true;
  clean_rounds_ = 0;
  round_ = RoundSeen();
  round_began_ns_ = now_ns;
}

void AdaptiveWindow::end_round() noexcept {
  const double give_up = cut();
  if (give_up == 0) return grow();
  starting_ = false;
  clean_rounds_ = 0;
  set_window(static_cast<double>(window_bytes_) * (1 - give_up));
}

double AdaptiveWindow::cut() noexcept {
  const double marked = static_cast<double>(round_.marked) / static_cast<double>(round_.packets);
  share_ += (marked - share_) * kShareGain;
  double most = delay_cut();
  // The first marks end the doubling of the window and say nothing yet about their share.
  if (round_.marked > 0) most = std::max(most, starting_ ? marked / 2 : share_ / 2);
  if (loss_counts()) most = std::max(most, kLossCut);
  return std::min(most, kMostCut);
}

double AdaptiveWindow::delay_cut() const noexcept {
  if (config_.delay_target_ns == 0 || round_.most_rtt_ns == 0) return 0;
  if (window_bytes_ <= uint64_t{kDelayFloorFrames} * frame_bytes_) return 0;
  const uint64_t queued_ns = round_.least_rtt_ns - std::min(round_.least_rtt_ns, base_rtt_ns());
  if (queued_ns <= config_.delay_target_ns) return 0;
  return kDelayGain * static_cast<double>(queued_ns - config_.delay_target_ns) /
         static_cast<double>(queued_ns);
}

bool AdaptiveWindow::loss_counts() const noexcept {
  if (round_.lost == 0) return false;
  if (loss_share_ > kLossBelieved) return true;
  if (marks_seen_ || round_.most_rtt_ns == 0) return false;
  const uint64_t base_ns = base_rtt_ns();
  return round_.most_rtt_ns > base_ns + std::max(base_ns / 2, kLossDelayNs);
}

void AdaptiveWindow::grow() noexcept {
  if (round_.most_in_flight_bytes + frame_bytes_ < window_bytes_ / 2) return;
  const auto window = static_cast<double>(window_bytes_);
  if (starting_ && window_bytes_ < threshold_bytes_) {
    return set_window(std::min(2 * window, static_cast<double>(threshold_bytes_)));
  }
  starting_ = false;
  ++clean_rounds_;
  const uint32_t doublings = clean_rounds_ <= kPatientRounds
                                 ? 0
                                 : std::min(clean_rounds_ - kPatientRounds, kMostDoublings);
  const double frame = frame_bytes_;
  const double step = (window < frame ? frame / 8 : frame) * static_cast<double>(1U << doublings);
  set_window(window + std::min(step, std::max(window / 2, frame / 8)));
}

void AdaptiveWindow::set_window(double bytes) noexcept {
  const double least = static_cast<double>(frame_bytes_) / kLeastFraction;
  window_bytes_ = static_cast<uint64_t>(
      std::clamp(bytes, least, std::max(least, static_cast<double>(config_.max_bytes))));
}

}  // namespace mercury
