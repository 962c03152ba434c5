// This side's reset token, on its way to the peer: it goes once the session is open, again until it
// is acknowledged. A host that was started again computes it anew (engine/reset_tokens.h), and by
// it the peer knows that the session is gone.
//
// Owner/thread: one engine. Cold.
#pragma once

#include <cstdint>

namespace mercury {

class ResetNotice {
 public:
  void start(uint64_t token) noexcept {
    token_ = token;
    due_ = true;
  }
  bool due() const noexcept { return due_; }
  uint64_t token() const noexcept { return token_; }
  void on_sent() noexcept { due_ = false; }
  void on_lost() noexcept { due_ = true; }

 private:
  uint64_t token_ = 0;
  bool due_ = false;
};

}  // namespace mercury
