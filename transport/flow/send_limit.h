// How much a session may have in flight: what congestion control (congestion.h) and the peer's
// grant (credit.h) allow, the smaller; and, for a frame that is larger than that, which share of a
// link it stands for: the interval until the next.
//
// Invariant: bytes() is the window or the grant as of the last update(), or begin_burst(), or 0
// while it is held. Between the losses and acknowledgements of one frame it does not move.
// Units: bytes of UDP payload; grants in wire::kGrantUnitBytes, 0 = none.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <cstdint>
#include <variant>

#include "transport/flow/adaptive_window.h"
#include "transport/flow/congestion.h"
#include "transport/flow/rtt.h"

namespace mercury {

class SendLimit {
 public:
  using Window = std::variant<FixedWindow, AdaptiveWindow>;

  explicit SendLimit(const Window& window) : window_(window) { update(); }

  uint64_t bytes() const noexcept { return bytes_; }

  // What congestion control is told; see there.
  void on_ack(const AckSample& sample) noexcept;
  void on_lost(bool silence, uint64_t now_ns) noexcept;
  void set_frame_bytes(uint32_t bytes) noexcept;
  // The newest ACK's: for now, and for what is sent after a pause.
  void take_grants(uint16_t now_units, uint16_t idle_units) noexcept {
    grant_ = now_units;
    idle_grant_ = idle_units;
  }
  void update() noexcept;
  // The peer is elsewhere: what it grants stays.
  void begin_path(const Window& window) {
    window_ = window;
    update();
  }
  // The peer's service has no room: nothing fits, whatever the path carries.
  void hold(bool held) noexcept {
    held_ = held;
    update();
  }
  bool held() const noexcept { return held_; }
  // After a pause the grant of the last acknowledgement is out of date: it may have been one for a
  // sender that was alone.
  void begin_burst() noexcept;

  // How long a frame stands for where all that the receiver expects send at once; 0 where it grants
  // each of them a frame.
  uint64_t idle_interval_ns(uint32_t bytes) const noexcept;
  // The first of a burst, of whose round trip little is known.
  uint64_t start_interval_ns(uint32_t bytes, const RttEstimator& rtt) const noexcept;
  // How long a frame above the limit stands for.
  uint64_t interval_ns(uint32_t bytes, const RttEstimator& rtt) const noexcept;

 private:
  Window window_;
  uint64_t bytes_ = 0;
  bool granted_ = false;  // bytes_ is the grant's, not congestion control's
  bool held_ = false;     // bytes_ is 0
  uint16_t grant_ = 0;
  uint16_t idle_grant_ = 0;
};

}  // namespace mercury
