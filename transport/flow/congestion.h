// What a session asks of congestion control: how many bytes may be in flight. Two answers: a window
// that never moves, for networks where the fan-in is known and the windows are sized for it; and
// the adaptive one (adaptive_window.h), which is the default.
//
// Units: bytes of UDP payload. Owner/thread: one engine; nothing allocates.
#pragma once

#include <concepts>
#include <cstdint>

namespace mercury {

// What one ACK frame says.
struct AckSample {
  uint64_t bytes = 0;           // newly acknowledged
  uint32_t packets = 0;         // newly acknowledged
  uint32_t marked = 0;          // that the network marked, of what arrived since the last ACK
  uint64_t newest_sent_ns = 0;  // when the latest of them was sent
  // The network's part of the round trip: without what the frame waited at the peer, and its
  // acknowledgement here, until an engine took it. 0 = no sample. Where of a wait only a bound is
  // known it lies between these two.
  uint64_t rtt_ns = 0;
  uint64_t rtt_most_ns = 0;      // 0: the same
  uint64_t in_flight_bytes = 0;  // before this ACK
  uint64_t now_ns = 0;
};

// clang-format off
// (Version 14 knows no concepts.)
template <class C>
concept CongestionControl = requires(C control, const C& const_control, const AckSample& sample,
                                     uint32_t bytes, bool silence, uint64_t now_ns) {
  // The largest frame of the path, once it is known better.
  { control.set_frame_bytes(bytes) } noexcept;
  { control.on_ack(sample) } noexcept;
  // A packet was lost; by silence: the path carried nothing for two probe time-outs. MTU probes are
  // not reported: their loss says nothing about load.
  { control.on_lost(silence, now_ns) } noexcept;
  { const_control.window_bytes() } noexcept -> std::same_as<uint64_t>;
};
// clang-format on

class FixedWindow {
 public:
  explicit FixedWindow(uint64_t window_bytes) : window_bytes_(window_bytes) {}
  void set_frame_bytes(uint32_t) noexcept {}
  void on_ack(const AckSample&) noexcept {}
  void on_lost(bool, uint64_t) noexcept {}
  uint64_t window_bytes() const noexcept { return window_bytes_; }

 private:
  uint64_t window_bytes_;
};
static_assert(CongestionControl<FixedWindow>);

}  // namespace mercury
