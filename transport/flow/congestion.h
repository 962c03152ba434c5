// What a session asks of congestion control. Here the simplest that models it, a window that never
// moves; it is safe where the fan-in is known and the windows are sized for it.
//
// Units: bytes of UDP payload. Owner/thread: one engine; nothing allocates.
#pragma once

#include <concepts>
#include <cstdint>

namespace mercury {

template <class C>
concept CongestionControl = requires(C control, const C& const_control, uint32_t bytes,
                                     uint64_t time_ns) {
  { control.on_sent(bytes, time_ns) }
  noexcept;
  // bytes acknowledged, when they were sent, now.
  { control.on_acked(bytes, time_ns, time_ns) }
  noexcept;
  // bytes lost, when they were sent, now. MTU probes are not reported: their loss says nothing
  // about load.
  { control.on_lost(bytes, time_ns, time_ns) }
  noexcept;
  { const_control.window_bytes() }
  noexcept->std::same_as<uint64_t>;
};

class FixedWindow {
 public:
  explicit FixedWindow(uint64_t window_bytes) : window_bytes_(window_bytes) {}
  void on_sent(uint32_t, uint64_t) noexcept {}
  void on_acked(uint32_t, uint64_t, uint64_t) noexcept {}
  void on_lost(uint32_t, uint64_t, uint64_t) noexcept {}
  uint64_t window_bytes() const noexcept { return window_bytes_; }

 private:
  uint64_t window_bytes_;
};
static_assert(CongestionControl<FixedWindow>);

}  // namespace mercury
