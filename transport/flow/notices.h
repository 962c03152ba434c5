// What a side says once a session is open, and each again until it is acknowledged: its reset
// token, which it computes anew when it was started again (engine/reset_tokens.h), and by which the
// peer then knows that the session is gone; and its source ports, which it keeps to itself once
// they were lost kMostLosses times while other frames arrived.
//
// Owner/thread: one engine. Cold, but for due().
#pragma once

#include <cstdint>

namespace mercury {

class Notices {
 public:
  enum Kind : uint8_t { kResetToken = 1, kSourcePorts = 2 };

  void tell_reset_token(uint64_t token) noexcept {
    reset_token_ = token;
    tell(kResetToken);
  }
  void tell(Kind kind) noexcept { due_ = static_cast<uint8_t>(due_ | kind); }
  bool due() const noexcept { return due_ != 0; }  // one of them
  bool due(Kind kind) const noexcept { return (due_ & kind) != 0; }
  uint64_t reset_token() const noexcept { return reset_token_; }
  void on_sent(Kind kind) noexcept { due_ = static_cast<uint8_t>(due_ & ~kind); }
  void on_lost(Kind kind) noexcept { tell(kind); }
  // Source ports were lost, and what was sent later was not if `overtaken`. False: they are told no
  // more.
  bool on_ports_lost(bool overtaken) noexcept {
    if (overtaken && ++ports_losses_ >= kMostLosses) return false;
    tell(kSourcePorts);
    return true;
  }

 private:
  // Where half of all frames are lost 1 session in 65,536 has all of these lost by chance.
  static constexpr uint8_t kMostLosses = 16;

  uint64_t reset_token_ = 0;
  uint8_t due_ = 0;
  uint8_t ports_losses_ = 0;
};

}  // namespace mercury
