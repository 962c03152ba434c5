#include "transport/flow/send_limit.h"

#include <algorithm>

#include "transport/wire/header.h"

namespace mercury {
namespace {

constexpr uint64_t kLongestIntervalNs = 250'000'000;  // as the longest probe time-out

}  // namespace

void SendLimit::on_ack(const AckSample& sample) noexcept {
  std::visit([&](auto& window) { window.on_ack(sample); }, window_);
}

void SendLimit::on_lost(bool silence, uint64_t now_ns) noexcept {
  std::visit([&](auto& window) { window.on_lost(silence, now_ns); }, window_);
}

void SendLimit::set_frame_bytes(uint32_t bytes) noexcept {
  std::visit([&](auto& window) { window.set_frame_bytes(bytes); }, window_);
}

void SendLimit::update() noexcept {
  bytes_ = std::visit([](const auto& window) { return window.window_bytes(); }, window_);
  const uint64_t granted_bytes = uint64_t{grant_} * wire::kGrantUnitBytes;
  granted_ = grant_ != 0 && granted_bytes < bytes_;
  if (granted_) bytes_ = granted_bytes;
  if (held_) bytes_ = 0;
}

void SendLimit::begin_burst() noexcept {
  if (idle_grant_ == 0) return;
  grant_ = grant_ == 0 ? idle_grant_ : std::min(grant_, idle_grant_);
  update();
}

uint64_t SendLimit::idle_interval_ns(uint32_t bytes) const noexcept {
  const uint64_t idle_bytes = uint64_t{idle_grant_} * wire::kGrantUnitBytes;
  return bytes <= idle_bytes || idle_bytes == 0 ? 0 : wire::kIdleGrantNs * bytes / idle_bytes;
}

uint64_t SendLimit::start_interval_ns(uint32_t bytes, const RttEstimator& rtt) const noexcept {
  const uint64_t idle_ns = idle_interval_ns(bytes);
  return idle_ns == 0 ? interval_ns(bytes, rtt) : std::min(idle_ns, kLongestIntervalNs);
}

// A grant is meant for the round trip behind the queue that all grants together make, and what was
// measured once per frame is that of another moment: who began behind a long queue would wait for
// many of them, and others for it in turn. So it waits no longer than an equal share of the link
// takes, and a quarter, in which the queue goes.
uint64_t SendLimit::interval_ns(uint32_t bytes, const RttEstimator& rtt) const noexcept {
  const uint64_t idle_ns = granted_ ? idle_interval_ns(bytes) : 0;
  // The receiver says so where nearly all that it expects send.
  if (idle_ns != 0 && grant_ == idle_grant_) return std::min(idle_ns, kLongestIntervalNs);
  const uint64_t rtt_ns = std::min(rtt.pacing_ns(), kLongestIntervalNs);
  const uint64_t ns = rtt_ns * bytes / std::max<uint64_t>(bytes_, 1);
  return std::min({ns, idle_ns != 0 ? idle_ns + idle_ns / 4 : ns, kLongestIntervalNs});
}

}  // namespace mercury
